//! Frames no agent should send: N38. Never a panic, never silence, and the connection lives on.

mod harness;

use futures::{SinkExt as _, StreamExt as _};
use harness::{Agent, Guest, soon};
use proptest::prelude::*;
use protocol::monitor::{AgentFrame, MONITOR_FRAME_LIMIT_BYTES, MonitorBody};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{Frame, FrameHeader};
use vm_monitor::shell::link::HARD_FRAME_LIMIT_BYTES;

async fn complaint_under(agent: &mut Agent, id: u64) {
    let frame = agent.frame().await;
    assert!(
        matches!(frame.body, MonitorBody::InvalidMessage { .. }),
        "{frame:?}"
    );
    assert_eq!(frame.id, id);
}

fn part(opcode: Data, payload: &[u8], is_last: bool) -> Message {
    let mut frame = Frame::message(payload.to_vec(), OpCode::Data(opcode), is_last);
    *frame.header_mut() = FrameHeader {
        mask: Some([1, 2, 3, 4]),
        ..frame.header().clone()
    };
    Message::Frame(frame)
}

#[tokio::test]
async fn n38_unreadable_text_is_answered_under_its_id() {
    let guest = Guest::start().await;
    let mut agent = guest.agent().await;
    for (text, id) in [
        ("", 0),
        ("{", 0),
        ("[]", 0),
        (r#"{"id":4}"#, 4),
        (r#"{"type":"Migrate","content":{},"id":6}"#, 6),
        (r#"{"type":"DownscaleRequest","id":8}"#, 8),
        (
            r#"{"type":"DownscaleRequest","content":{"target":{"cpu":1,"mem":1.5}},"id":10}"#,
            10,
        ),
        (
            r#"{"type":"UpscaleNotification","content":{"granted":{"mem":1}},"id":18446744073709551615}"#,
            u64::MAX,
        ),
        (r#"{"type":"HealthCheck","content":{},"id":-1}"#, 0),
    ] {
        agent.send_text(text).await;
        complaint_under(&mut agent, id).await;
    }
    assert!(agent.is_alive().await);
    let state = guest.state_when("counted", |_| true).await;
    assert_eq!(state["counters"]["received"]["not_json"], 2);
    assert_eq!(state["counters"]["received"]["not_a_frame"], 3);
    assert_eq!(state["counters"]["received"]["unknown_type"], 1);
    assert_eq!(state["counters"]["received"]["bad_content"], 3);
    guest.stop().await;
}

#[tokio::test]
async fn n38_complaints_are_not_answered() {
    let guest = Guest::start().await;
    let mut agent = guest.agent().await;
    agent
        .send_text(r#"{"content":{"error":"?"},"type":"InvalidMessage","id":3}"#)
        .await;
    agent
        .send_text(r#"{"content":{"error":"?"},"type":"InternalError","id":2}"#)
        .await;
    agent.send_text(r#"{"type":"InvalidMessage"}"#).await;
    // The next frame is the answer to the next question.
    assert!(agent.is_alive().await);
    guest.stop().await;
}

#[tokio::test]
async fn n38_oversized_text_is_answered_and_dropped() {
    let guest = Guest::start().await;
    let mut agent = guest.agent().await;
    let check = r#"{"type":"HealthCheck","content":{},"id":2}"#;
    let fits = format!(
        "{check}{}",
        " ".repeat(MONITOR_FRAME_LIMIT_BYTES - check.len())
    );
    assert_eq!(fits.len(), MONITOR_FRAME_LIMIT_BYTES);
    agent.send_text(&fits).await;
    assert_eq!(agent.frame().await.body, MonitorBody::HealthCheck);
    agent.send_text(&format!("{fits} ")).await;
    complaint_under(&mut agent, 0).await;
    assert!(agent.is_alive().await);
    guest.stop().await;
}

#[tokio::test]
async fn n38_what_cannot_be_read_at_all_is_answered_before_the_end() {
    let guest = Guest::start().await;
    let mut agent = guest.agent().await;
    let huge = Message::text("x".repeat(HARD_FRAME_LIMIT_BYTES + 1));
    // The monitor may stop reading before all of it is written.
    let _ = soon("send", agent.socket.send(huge)).await;
    complaint_under(&mut agent, 0).await;
    assert_eq!(
        u16::from(agent.closed().await.expect("a close frame").code),
        1009
    );

    let mut agent = guest.agent().await;
    agent
        .send(part(Data::Text, b"{\"type\":\"\xff\"}", true))
        .await;
    complaint_under(&mut agent, 0).await;
    assert_eq!(
        u16::from(agent.closed().await.expect("a close frame").code),
        1007
    );
    let mut next = guest.agent().await;
    assert!(next.is_alive().await);
    guest.stop().await;
}

#[tokio::test]
async fn n38_binary_is_ignored_fragments_are_joined_and_pings_answered() {
    let guest = Guest::start().await;
    let mut agent = guest.agent().await;
    agent.send(Message::binary(vec![0, 159, 146, 150])).await;
    agent
        .send(part(Data::Text, br#"{"type":"Heal"#, false))
        .await;
    agent.send(Message::Ping("are you".into())).await;
    agent
        .send(part(Data::Continue, br#"thCheck","content":{},"#, false))
        .await;
    agent
        .send(part(Data::Continue, br#""id":1000}"#, true))
        .await;
    let (mut ponged, mut answered) = (false, false);
    while !(ponged && answered) {
        match soon("both", agent.socket.next())
            .await
            .expect("alive")
            .expect("alive")
        {
            Message::Pong(payload) => ponged = payload.as_ref() == b"are you",
            Message::Text(text) => {
                answered = text.as_str() == r#"{"type":"HealthCheck","id":1000}"#
            }
            other => panic!("{other:?}"),
        }
    }
    let state = guest.state_when("counted", |_| true).await;
    assert_eq!(state["counters"]["received"]["not_text"], 1);
    guest.stop().await;
}

#[tokio::test]
async fn n38_a_flood_is_slowed_and_all_of_it_answered() {
    let guest = Guest::start().await;
    let agent = guest.agent().await;
    let (mut to, mut from) = agent.socket.split();
    let count = 300;
    let flood = async {
        for n in 0..count {
            let text = format!(r#"{{"type":"HealthCheck","content":{{}},"id":{n}}}"#);
            to.send(Message::text(text)).await.expect("sent");
        }
    };
    let began = std::time::Instant::now();
    let answers = async {
        for n in 0..count {
            let answer = from.next().await.expect("alive").expect("alive");
            let text = format!(r#"{{"type":"HealthCheck","id":{n}}}"#);
            assert_eq!(answer, Message::text(text));
        }
    };
    soon("the flood", async { tokio::join!(flood, answers) }).await;
    // 200 at once, then 100 a second.
    assert!(
        began.elapsed().as_millis() >= 900,
        "not slowed: {:?}",
        began.elapsed()
    );
    guest.stop().await;
}

#[tokio::test]
async fn n32_a_first_frame_that_is_no_range_is_told_so() {
    let guest = Guest::start().await;
    for first in [
        Message::text("hello"),
        Message::text("[1,1]"),
        Message::binary(br#"{"min":1,"max":1}"#.to_vec()),
        Message::text("x".repeat(MONITOR_FRAME_LIMIT_BYTES + 1)),
        Message::text("x".repeat(HARD_FRAME_LIMIT_BYTES + 1)),
        part(Data::Text, b"\xff", true),
    ] {
        let mut agent = guest.dial().await;
        let _ = soon("send", agent.socket.send(first)).await;
        let answer = agent.text().await;
        assert!(answer.starts_with(r#"{"error":""#), "{answer}");
        assert!(agent.closed().await.is_some());
    }
    guest.stop().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Twenty frames of any bytes to one monitor, then a health check.
    #[test]
    fn n38_any_bytes_leave_a_live_connection(
        frames in proptest::collection::vec(
            prop_oneof![
                ".{0,60}",
                proptest::collection::vec(any::<u8>(), 0..60).prop_map(|b| String::from_utf8_lossy(&b).into_owned()),
                ("[A-Za-z]{0,12}", any::<i64>(), "[\\[\\]{}0-9a-z\":,.]{0,20}").prop_map(|(kind, id, content)| {
                    format!(r#"{{"type":"{kind}","content":{content},"id":{id}}}"#)
                }),
            ],
            20,
        )
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let guest = Guest::start().await;
            let mut agent = guest.agent().await;
            for text in &frames {
                agent.send_text(text).await;
                match AgentFrame::decode(text) {
                    Err(error) => complaint_under(&mut agent, error.id).await,
                    Ok(frame) => {
                        let is_answered = !matches!(frame.body.wire_type(), "InvalidMessage" | "InternalError");
                        if is_answered {
                            assert_eq!(agent.frame().await.id, frame.id);
                        }
                    }
                }
            }
            assert!(agent.is_alive().await);
            drop(agent);
            guest.stop().await;
        });
    }
}
