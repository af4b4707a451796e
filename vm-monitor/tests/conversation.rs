//! Whole conversations over real sockets: N31 to N37.

mod harness;

use harness::{Files, GIB, Guest, MIB, http_get};
use protocol::monitor::{AgentBody, Allocation, MonitorBody, MonitorFrame, VersionResponse};
use vm_monitor::core::decision::Watched;

#[tokio::test]
async fn n31_the_agent_dials_and_the_monitor_listens_at_its_path() {
    let guest = Guest::start().await;
    let mut agent = guest.agent().await;
    assert!(agent.is_alive().await);
    let (status, text) = http_get(guest.addr, "/monitor").await;
    assert_eq!(status, 400, "not a WebSocket");
    assert!(
        text.contains("WebSocket") && text.contains("Upgrade: websocket"),
        "{text}"
    );
    assert_eq!(http_get(guest.addr, "/").await.0, 404);
    assert_eq!(
        http_get(guest.addr, "/metrics").await.0,
        404,
        "not on this port"
    );
    guest.stop().await;
}

#[tokio::test]
async fn n32_every_range_pair_is_answered() {
    let guest = Guest::start().await;
    for min in 0..=4_u8 {
        for max in 0..=4_u8 {
            let mut agent = guest.dial().await;
            agent
                .send_text(&format!(r#"{{"min":{min},"max":{max}}}"#))
                .await;
            let answer = agent.text().await;
            if let Some(common) = [2, 1].into_iter().find(|v| (min..=max).contains(v)) {
                let expected = format!(r#"{{"version":{common}}}"#);
                assert_eq!(answer, expected, "{min}..{max}");
                assert!(agent.is_alive().await);
            } else {
                let answer: VersionResponse = serde_json::from_str(&answer).expect("an answer");
                assert!(
                    matches!(answer, VersionResponse::Error(_)),
                    "{min}..{max}: {answer:?}"
                );
                let code = agent.closed().await.expect("a close frame").code;
                assert_eq!(u16::from(code), 1002, "{min}..{max}");
            }
        }
    }
    guest.stop().await;
}

#[tokio::test]
async fn n33_crossed_transactions_keep_their_ids() {
    let guest = Guest::start().await;
    let mut agent = guest.agent().await;
    guest.settle(3600 * MIB).await;
    let (mut asked, mut own) = (std::collections::BTreeMap::new(), Vec::new());
    // The monitor asks on its own, once a second, while the agent keeps two requests in flight.
    while own.len() < 3 || !asked.is_empty() {
        while asked.len() < 2 && own.len() < 3 {
            let target = Allocation { cpu: 1.0, mem: GIB };
            asked.insert(agent.ask(AgentBody::HealthCheck).await, "HealthCheck");
            asked.insert(
                agent.ask(AgentBody::DownscaleRequest { target }).await,
                "DownscaleResult",
            );
        }
        let MonitorFrame { body, id } = agent.frame().await;
        if body == MonitorBody::UpscaleRequest {
            own.push(id);
        } else {
            assert_eq!(asked.remove(&id), Some(body.wire_type()));
        }
    }
    assert_eq!(own, [3, 5, 7]);
    guest.stop().await;
}

#[tokio::test]
async fn n34_n36_growth_is_asked_for_and_confirmed() {
    let guest = Guest::start().await;
    let mut agent = guest.agent().await;
    guest.files.set_usage(3600 * MIB);
    let first = agent.frame().await;
    assert_eq!(
        first,
        MonitorFrame {
            body: MonitorBody::UpscaleRequest,
            id: 3
        }
    );
    assert_eq!(
        agent.upscale(8 * GIB).await,
        MonitorBody::UpscaleConfirmation
    );
    let state = guest
        .state_when("the new threshold", |state| state["threshold"] != "3481Mi")
        .await;
    assert_eq!(state["counters"]["upscales"]["confirmed"], 1);
    // 0.85 · (8192 − 100) MiB
    assert_eq!(state["threshold"], "7212315443");
    guest.stop().await;
}

#[tokio::test]
async fn n35_n27_a_shrink_is_approved_or_refused_by_what_is_in_use() {
    let guest = Guest::start().await;
    let mut agent = guest.agent().await;
    guest.settle(685 * MIB).await;
    let MonitorBody::DownscaleResult { ok: true, status } = agent.downscale(GIB).await else {
        panic!("refused at 685 MiB");
    };
    assert!(
        status.contains("785.4 MiB, for a new total of 924 MiB"),
        "{status}"
    );
    assert_eq!(
        agent.upscale(4 * GIB).await,
        MonitorBody::UpscaleConfirmation
    );
    guest.settle(686 * MIB).await;
    let MonitorBody::DownscaleResult { ok: false, status } = agent.downscale(GIB).await else {
        panic!("approved at 686 MiB");
    };
    assert!(
        status.contains("785.4 MiB (new threshold) < 686 MiB (in use) + 100 MiB"),
        "{status}"
    );
    guest.stop().await;
}

#[tokio::test]
async fn n35_right_after_connecting_there_is_too_little_to_go_by() {
    let files = Files::new();
    let mut config = files.config();
    config.rules.sample_interval = protocol::time::Span::from_secs(3600);
    let guest = Guest::with(files, config).await;
    let mut agent = guest.agent().await;
    let MonitorBody::DownscaleResult { ok: false, status } = agent.downscale(GIB).await else {
        panic!("approved on one sample");
    };
    assert_eq!(status, "not enough memory samples yet: have 1, need 2");
    guest.stop().await;
}

#[tokio::test]
async fn n35_unreadable_memory_refuses_and_comes_back() {
    let guest = Guest::start().await;
    let mut agent = guest.agent().await;
    guest.settle(100 * MIB).await;
    let file = guest.files.cgroup().join("memory.stat");
    std::fs::remove_file(&file).expect("removed");
    guest
        .state_when("the failure is seen", |state| {
            state["read_failure"].is_object()
        })
        .await;
    let MonitorBody::DownscaleResult { ok: false, status } = agent.downscale(GIB).await else {
        panic!("approved blindly");
    };
    assert!(
        status.contains("memory.stat") && status.contains("No such file"),
        "{status}"
    );
    guest.page("/readyz", 503).await;
    guest
        .files
        .write(&file, "active_anon none\ninactive_anon 5\n");
    let torn =
        |state: &serde_json::Value| state["read_failure"]["detail"] == "it has no line active_anon";
    guest.state_when("the torn file is seen", torn).await;
    assert!(matches!(
        agent.downscale(GIB).await,
        MonitorBody::DownscaleResult { ok: false, .. }
    ));
    guest.settle(100 * MIB).await;
    guest.page("/readyz", 200).await;
    assert!(matches!(
        agent.downscale(GIB).await,
        MonitorBody::DownscaleResult { ok: true, .. }
    ));
    guest.stop().await;
}

#[tokio::test]
async fn without_a_cgroup_the_whole_machine_is_watched() {
    let files = Files::new();
    let config = vm_monitor::Config {
        watched: Watched::Machine,
        cgroup: None,
        ..files.config()
    };
    let guest = Guest::with(files, config).await;
    let mut agent = guest.agent().await;
    let five = serde_json::json!(["30Mi", "30Mi", "30Mi", "30Mi", "30Mi"]);
    guest
        .state_when("five readings", |state| state["samples"] == five)
        .await;
    let MonitorBody::DownscaleResult { ok: true, status } = agent.downscale(GIB).await else {
        panic!("refused");
    };
    assert!(
        status.starts_with("machine memory threshold set from 3481.6 MiB"),
        "{status}"
    );
    guest.stop().await;
}

#[tokio::test]
async fn n37_health_checks_are_answered() {
    let guest = Guest::start().await;
    let mut agent = guest.agent().await;
    for _ in 0..3 {
        assert_eq!(
            agent.call(AgentBody::HealthCheck).await,
            MonitorBody::HealthCheck
        );
    }
    guest.stop().await;
}

#[tokio::test]
async fn the_end_of_the_process_is_told() {
    let guest = Guest::start().await;
    let mut agent = guest.agent().await;
    assert!(agent.is_alive().await);
    guest.cancel.cancel();
    let code = agent.closed().await.expect("a close frame").code;
    assert_eq!(u16::from(code), 1001);
    guest.stop().await;
}
