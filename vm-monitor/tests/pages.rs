//! The scrapers' port.

mod harness;

use harness::{Guest, MIB, http_get};

#[tokio::test]
async fn n02_the_agents_five_gauges_are_there() {
    let guest = Guest::start().await;
    let page = guest.page("/metrics", 200).await;
    for line in [
        "# TYPE host_load1 gauge\nhost_load1 0.26\n",
        "# TYPE host_load5 gauge\nhost_load5 1.75\n",
        "# TYPE host_memory_total_bytes gauge\nhost_memory_total_bytes 4294967296\n",
        "# TYPE host_memory_available_bytes gauge\nhost_memory_available_bytes 3072000000\n",
        "# TYPE host_memory_cached_bytes gauge\nhost_memory_cached_bytes 204800000\n",
    ] {
        assert_eq!(page.matches(line).count(), 1, "{line}{page}");
    }
    // Read at each scrape.
    let loadavg = guest.files.proc_root().join("loadavg");
    guest.files.write(&loadavg, "7.00 3.00 1.00 1/1 1\n");
    assert!(
        guest
            .page("/metrics", 200)
            .await
            .contains("\nhost_load1 7.00\n")
    );
    // A figure that cannot be read is left out, and the others stay.
    std::fs::remove_file(loadavg).expect("removed");
    let page = guest.page("/metrics", 200).await;
    assert!(!page.contains("host_load") && page.contains("host_memory_total_bytes 4294967296"));
    guest.stop().await;
}

#[tokio::test]
async fn counters_and_pressure_are_shown() {
    let guest = Guest::start().await;
    let mut agent = guest.agent().await;
    assert!(agent.is_alive().await);
    agent.send_text("nonsense").await;
    let _ = agent.frame().await;
    guest.settle(3600 * MIB).await;
    let _ = agent.frame().await;
    let _ = agent.downscale(MIB).await;
    let page = guest.page("/metrics", 200).await;
    for line in [
        "vm_monitor_agent_connected 1",
        "vm_monitor_connections_total 1",
        "vm_monitor_frames_received_total{type=\"HealthCheck\"} 1",
        "vm_monitor_frames_received_total{type=\"not_json\"} 1",
        "vm_monitor_frames_sent_total{type=\"InvalidMessage\"} 1",
        "vm_monitor_downscales_total{outcome=\"refused\"} 1",
        "vm_monitor_handshake_failures_total{reason=\"timed_out\"} 0",
        "vm_monitor_memory_in_use_bytes 3774873600",
        "host_pressure_percent{scope=\"machine\",resource=\"memory\",kind=\"some\",window=\"10s\"} 1.50",
        "host_pressure_stalled_seconds_total{scope=\"cgroup\",resource=\"memory\",kind=\"full\"} 0.000005",
    ] {
        assert!(
            page.contains(&format!("\n{line}\n")),
            "{line} is not in\n{page}"
        );
    }
    // One a second, for as long as this took.
    let asked = page.lines().find_map(|line| {
        let count = line.strip_prefix("vm_monitor_upscale_requests_total ")?;
        count.parse::<u64>().ok()
    });
    assert!(asked.is_some_and(|asked| asked >= 1), "{page}");
    guest.stop().await;
}

#[tokio::test]
async fn health_readiness_and_state() {
    let guest = Guest::start().await;
    assert_eq!(guest.page("/healthz", 200).await, "ok\n");
    assert_eq!(guest.page("/readyz", 200).await, "ready\n");
    let state: serde_json::Value =
        serde_json::from_str(&guest.page("/debug/state", 200).await).expect("JSON");
    assert_eq!(state["setup"]["watched"], "cgroup");
    assert_eq!(state["file_cache"], "off");
    assert_eq!(http_get(guest.metrics, "/monitor").await.0, 404);
    // Without an agent nothing is read, but readiness must not wait for one to find out.
    let file = guest.files.cgroup().join("memory.stat");
    std::fs::remove_file(file).expect("removed");
    let why = guest.page("/readyz", 503).await;
    assert!(why.contains("memory.stat"), "{why}");
    assert_eq!(guest.page("/healthz", 200).await, "ok\n");
    guest.stop().await;
}
