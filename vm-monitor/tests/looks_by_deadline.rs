//! A real monitor over a group that has `memory.current`: cheap looks, early requests, and no
//! request for page cache.

mod harness;

use harness::{GIB, Guest, MIB};
use protocol::monitor::MonitorBody;

/// Sets both figures of the group, the bound first when memory grows.
fn set(guest: &Guest, used: u64, cache: u64) {
    let bound = guest.files.cgroup().join("memory.current");
    guest.files.write(&bound, &format!("{}\n", used + cache));
    guest.files.set_usage(used);
}

async fn number(guest: &Guest, pointer: &str) -> u64 {
    let is_there = |state: &serde_json::Value| state.pointer(pointer).is_some_and(|n| n.is_u64());
    let state = guest.state_when(pointer, is_there).await;
    state
        .pointer(pointer)
        .and_then(serde_json::Value::as_u64)
        .expect("a number")
}

#[tokio::test]
async fn n29_n30_a_jump_is_asked_about_with_its_reason() {
    let guest = Guest::start().await;
    set(&guest, 100 * MIB, 0);
    let mut agent = guest.agent().await;
    guest.settle(100 * MIB).await;
    set(&guest, 3600 * MIB, 0);
    assert_eq!(agent.frame().await.body, MonitorBody::UpscaleRequest);
    let asked = |state: &serde_json::Value| state["asked"]["reason"].is_string();
    let state = guest.state_when("the reason", asked).await;
    let reason = state["asked"]["reason"]
        .as_str()
        .expect("a word")
        .to_owned();
    assert!(
        ["forecast", "threshold"].contains(&reason.as_str()),
        "{reason}"
    );
    let page = guest.page("/metrics", 200).await;
    // One a second, for as long as this took.
    let start = format!("vm_monitor_upscale_requests_by_reason_total{{reason=\"{reason}\"}} ");
    let count = page.lines().find_map(|line| line.strip_prefix(&start));
    let count: u64 = count
        .and_then(|count| count.parse().ok())
        .unwrap_or_default();
    assert!(count >= 1, "{start} is not in\n{page}");
    guest.stop().await;
}

#[tokio::test]
async fn n29_a_flood_of_page_cache_asks_for_nothing() {
    let guest = Guest::start().await;
    set(&guest, 100 * MIB, 0);
    let mut agent = guest.agent().await;
    guest.settle(100 * MIB).await;
    let before = number(&guest, "/counters/samples/read").await;
    for cache in 0..40 {
        set(&guest, 100 * MIB, cache * 100 * MIB);
        assert!(agent.is_alive().await);
    }
    // It was seen, the use was read because of it, and nothing was asked for.
    let seen = |state: &serde_json::Value| {
        let reads = state["counters"]["samples"]["read"].as_u64();
        state["bound"] == "4000Mi" && reads.is_some_and(|reads| reads > before)
    };
    let state = guest.state_when("the flood", seen).await;
    assert!(state["asked"].is_null(), "{state}");
    assert_eq!(state["counters"]["sent"]["UpscaleRequest"], 0);
    guest.stop().await;
}

#[tokio::test]
async fn a_shrink_rests_on_what_cannot_be_reclaimed() {
    let guest = Guest::start().await;
    set(&guest, 100 * MIB, 3800 * MIB);
    let mut agent = guest.agent().await;
    guest.settle(100 * MIB).await;
    let answer = agent.downscale(GIB).await;
    assert!(
        matches!(answer, MonitorBody::DownscaleResult { ok: true, .. }),
        "{answer:?}"
    );
    guest.stop().await;
}

#[tokio::test]
async fn n30_a_kill_in_the_group_is_asked_about() {
    let files = harness::Files::new();
    let events = files.cgroup().join("memory.events");
    let text = |kills: u32| format!("low 0\nhigh 0\nmax 0\noom 0\noom_kill {kills}\n");
    files.write(&events, &text(2));
    let config = files.config();
    let guest = Guest::with(files, config).await;
    let mut agent = guest.agent().await;
    guest
        .state_when("the counts", |state| state["oom"]["oom_kill"] == 2)
        .await;
    guest.files.write(&events, &text(3));
    assert_eq!(agent.frame().await.body, MonitorBody::UpscaleRequest);
    let state = guest
        .state_when("the reason", |state| state["asked"].is_object())
        .await;
    assert_eq!(state["asked"]["reason"], "oom_event");
    guest.stop().await;
}

#[tokio::test]
async fn without_psi_the_monitor_serves_all_the_same() {
    let files = harness::Files::new();
    std::fs::remove_file(files.cgroup().join("memory.pressure")).expect("removed");
    std::fs::remove_dir_all(files.proc_root().join("pressure")).expect("removed");
    let config = files.config();
    let guest = Guest::with(files, config).await;
    let mut agent = guest.agent().await;
    guest.settle(3600 * MIB).await;
    assert_eq!(agent.frame().await.body, MonitorBody::UpscaleRequest);
    let state = guest.state_when("the state", |_| true).await;
    assert_eq!(state["signals"], serde_json::json!([]));
    guest.stop().await;
}
