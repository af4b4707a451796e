//! A session of version 1, byte for byte as the deployed agent and monitor have it
//! (docs/compatibility/monitor.md §2): whatever version 2 adds, none of it may show here. Only the
//! text of `Status` is ours.

mod harness;

use harness::{Guest, MIB};

#[tokio::test]
async fn n31_to_n38_a_session_of_version_1_has_these_bytes() {
    let guest = Guest::start().await;
    let mut agent = guest.dial().await;
    agent.send_text("{\"min\":1,\"max\":1}\n").await;
    assert_eq!(agent.text().await, r#"{"version":1}"#);
    guest.settle(100 * MIB).await;
    let exchanges = [
        (
            r#"{"content":{},"type":"HealthCheck","id":2}"#,
            r#"{"type":"HealthCheck","id":2}"#,
        ),
        (
            r#"{"content":{"granted":{"cpu":1.0,"mem":4294967296}},"type":"UpscaleNotification","id":4}"#,
            r#"{"type":"UpscaleConfirmation","id":4}"#,
        ),
        (
            r#"{"type":"UpscaleNotification","content":{"granted":{"cpu":2,"mem":8589934592}},"id":6}"#,
            r#"{"type":"UpscaleConfirmation","id":6}"#,
        ),
        (
            r#"{"content":{"target":{"cpu":0.5,"mem":1073741824}},"type":"DownscaleRequest","id":8}"#,
            r#"{"type":"DownscaleResult","Ok":true,"Status":"cgroup memory threshold set from 6878.2 MiB to 785.4 MiB, for a new total of 924 MiB","id":8}"#,
        ),
        (
            r#"{"content":{"target":{"cpu":0.25,"mem":104857600}},"type":"DownscaleRequest","id":10}"#,
            r#"{"type":"DownscaleResult","Ok":false,"Status":"memory threshold would be too low: 0 MiB (new threshold) < 100 MiB (in use) + 100 MiB (buffer for a shrink)","id":10}"#,
        ),
        (
            r#"{"content":{"names":["observed"]},"type":"Capabilities","id":12}"#,
            r#"{"type":"InvalidMessage","error":"unknown message type \"Capabilities\"","id":12}"#,
        ),
    ];
    for (sent, expected) in exchanges {
        agent.send_text(sent).await;
        assert_eq!(agent.text().await, expected, "{sent}");
    }
    // Of its own accord: odd ids from 3, no members but type and id.
    guest.files.set_usage(3600 * MIB);
    assert_eq!(agent.text().await, r#"{"type":"UpscaleRequest","id":3}"#);
    assert_eq!(agent.text().await, r#"{"type":"UpscaleRequest","id":5}"#);
    guest.stop().await;
}
