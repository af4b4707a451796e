//! One agent at a time: the newest, but only once it has shaken hands. And nobody may dawdle at the
//! door.

mod harness;

use std::time::{Duration, Instant};

use harness::{Agent, Files, Guest, soon};
use protocol::monitor::{AgentBody, MonitorBody};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Error;
use vm_monitor::Config;
use vm_monitor::shell::link::HANDSHAKES_AT_ONCE;

async fn failures(guest: &Guest, reason: &str, count: u64) {
    let is_so =
        |state: &serde_json::Value| state["counters"]["handshake_failures"][reason] == count;
    guest.state_when(reason, is_so).await;
}

#[tokio::test]
async fn a_second_agent_takes_over_only_after_its_handshake() {
    let guest = Guest::start().await;
    let mut first = guest.agent().await;
    let mut second = guest.dial().await;
    assert!(first.is_alive().await, "an upgrade alone changes nothing");
    let mut stranger = guest.dial().await;
    stranger.send_text(r#"{"min":3,"max":4}"#).await;
    assert!(stranger.text().await.contains("error"));
    assert!(first.is_alive().await, "nor does a failed handshake");

    second.send_text(r#"{"min":0,"max":1}"#).await;
    assert_eq!(second.text().await, r#"{"version":1}"#);
    assert!(second.is_alive().await);
    let close = first.closed().await.expect("a close frame");
    assert_eq!(u16::from(close.code), 1008);
    assert!(second.is_alive().await);
    let state = guest.state_when("counted", |_| true).await;
    assert_eq!(state["counters"]["connections"], 2);
    assert_eq!(state["counters"]["replaced"], 1);
    guest.stop().await;
}

/// RFC 6455 §7.1.1: the agent echoes the close frame and then waits for the end of the stream.
#[tokio::test]
async fn monitor_ends_tcp_right_behind_its_close_frame() {
    let guest = Guest::start().await;
    let mut first = guest.agent().await;
    let _second = guest.agent().await;
    first.closed().await.expect("a close frame");
    let began = Instant::now();
    assert!(first.closed().await.is_none());
    // Half of the time for which the monitor reads on.
    let took = began.elapsed();
    assert!(took < Duration::from_millis(500), "{took:?}");
    guest.stop().await;
}

/// An agent that is slow has answers to read, and sends on, when its connection is closed.
#[tokio::test]
async fn agent_that_reads_late_still_gets_its_answers_and_the_close_frame() {
    const ASKED: u64 = 50;
    let guest = Guest::start().await;
    let mut slow = guest.agent().await;
    for _ in 0..ASKED {
        slow.ask(AgentBody::HealthCheck).await;
    }
    let is_answered = |state: &serde_json::Value| state["counters"]["sent"]["HealthCheck"] == ASKED;
    guest.state_when("answered", is_answered).await;
    let mut next = guest.agent().await;
    for _ in 0..ASKED {
        assert!(next.is_alive().await);
        slow.ask(AgentBody::HealthCheck).await;
    }
    for _ in 0..ASKED {
        assert_eq!(slow.frame().await.body, MonitorBody::HealthCheck);
    }
    let close = slow.closed().await.expect("a close frame");
    assert_eq!(u16::from(close.code), 1008);
    guest.stop().await;
}

#[tokio::test]
async fn agent_with_token_is_not_replaced_by_caller_without_it() {
    const TOKEN: &str = "0123456789abcdef0123456789abcdef";
    let files = Files::new();
    let path = files.cgroup().with_file_name("agent.token");
    files.write(&path, TOKEN);
    let config = Config {
        agent_token: Some(path),
        ..files.config()
    };
    let guest = Guest::with(files, config).await;
    let right = format!("Bearer {TOKEN}");
    let dialled = Agent::dial_with(guest.addr, Some(&right)).await;
    let mut agent = dialled.expect("upgraded").version_one().await;
    for wrong in [None, Some("Bearer 0123456789abcdef"), Some(TOKEN)] {
        let refused = Agent::dial_with(guest.addr, wrong).await;
        match refused.err().expect("refused") {
            Error::Http(response) => assert_eq!(response.status(), 401, "{wrong:?}"),
            other => panic!("{other}"),
        }
    }
    assert!(agent.is_alive().await, "it is still the agent");
    failures(&guest, "no_token", 3).await;
    let next = Agent::dial_with(guest.addr, Some(&right)).await;
    let mut next = next.expect("upgraded").version_one().await;
    assert!(next.is_alive().await, "its holder takes over as before");
    guest.stop().await;
}

#[tokio::test]
async fn an_agent_that_left_can_come_back() {
    let guest = Guest::start().await;
    for _ in 0..3 {
        let mut agent = guest.agent().await;
        assert!(agent.is_alive().await);
        soon("close", agent.socket.close(None)).await.expect("sent");
        assert!(
            agent.closed().await.is_none(),
            "the close is echoed as it came"
        );
    }
    guest
        .state_when("nobody", |state| state["connection"].is_null())
        .await;
    guest.stop().await;
}

#[tokio::test]
async fn whoever_is_not_ready_in_time_is_let_go() {
    let files = Files::new();
    let config = vm_monitor::Config {
        ready_limit: Duration::from_secs(2),
        ..files.config()
    };
    let guest = Guest::with(files, config).await;
    let mut first = guest.agent().await;
    // One says nothing at all, one stops within its request, one after its upgrade.
    let mut silent = TcpStream::connect(guest.addr).await.expect("connected");
    let mut slow = TcpStream::connect(guest.addr).await.expect("connected");
    slow.write_all(b"GET /monitor HTTP/1.1\r\nHost: guest\r\n")
        .await
        .expect("sent");
    let mut shy = guest.dial().await;
    let mut rest = Vec::new();
    soon("silent ends", silent.read_to_end(&mut rest))
        .await
        .expect("closed");
    soon("slow ends", slow.read_to_end(&mut rest))
        .await
        .expect("closed");
    assert_eq!(rest, b"");
    soon("shy ends", async {
        while let Some(Ok(_)) = futures::StreamExt::next(&mut shy.socket).await {}
    })
    .await;
    failures(&guest, "timed_out", 3).await;
    assert!(
        first.is_alive().await,
        "the limit is for the handshake only"
    );
    guest.stop().await;
}

#[tokio::test]
async fn a_crowd_at_the_door_does_not_cut_the_agent_off() {
    let guest = Guest::start().await;
    let mut agent = guest.agent().await;
    let mut crowd = Vec::new();
    for _ in 0..HANDSHAKES_AT_ONCE + 4 {
        crowd.push(TcpStream::connect(guest.addr).await.expect("connected"));
    }
    failures(&guest, "too_many", 4).await;
    assert!(agent.is_alive().await);
    drop(crowd);
    // The places come free again.
    let mut next = guest.agent().await;
    assert!(next.is_alive().await);
    guest.stop().await;
}
