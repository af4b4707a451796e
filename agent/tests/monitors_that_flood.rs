//! Monitors that send without pause: they cost the agent little, and no other VM waits for them.

mod peers;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use peers::guest::Guest;
use peers::{Seen, World, address, api, is_patch, position, until};
use protocol::monitor::{MonitorBody, MonitorFrame};
use serde_json::json;

/// Frames of one monitor that are read at once, and each second after.
const BURST: f64 = 200.0;
const EACH_SECOND: f64 = 20.0;
/// A monitor that floods for this long is left for at least as long.
const FLOOD_LIMIT: Duration = Duration::from_secs(10);
const FLOODING: u8 = 2;

/// A counter of the agent's metrics page; zero while it is not there.
async fn counter(world: &World, name: &str) -> f64 {
    let page = world.get(|addresses| addresses.metrics, "/metrics").await;
    let line = page.lines().find_map(|line| line.strip_prefix(name));
    line.map_or(0.0, |value| value.trim().parse().expect("a number"))
}

/// Requirement: W9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flooding_monitor_is_read_slowly_and_then_disconnected() {
    let mut world = World::new().await;
    world.config["monitor"]["connectionRetryMinWaitSeconds"] = json!(1);
    let ports = [world.guest.metrics_port, world.guest.monitor_port];
    let mut flooding = Vec::new();
    for n in 0..FLOODING {
        let trace = peers::Trace::default();
        let guest = Guest::start_at(trace.clone(), address(), ports).await;
        guest.manners.floods.store(true, Ordering::Relaxed);
        let vm = api::vm(&format!("flood-{n}"), &guest.ip.to_string());
        world.api.put_vm(vm);
        flooding.push(trace);
    }
    world.start_connected().await;
    let connected = |seen: &Seen| matches!(seen, Seen::Connected(_));
    for trace in &flooding {
        trace
            .until("the agent connects", |all| position(all, connected))
            .await;
    }
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let read = "autoscaling_agent_monitor_inbound_requests_total{endpoint=\"UpscaleRequest\",code=\"ok\"} ";
    let frames = counter(&world, read).await;
    let seconds = began.elapsed().as_secs_f64() + 2.0;
    let allowed = f64::from(FLOODING) * (BURST + EACH_SECOND * seconds);
    assert!(
        frames <= allowed,
        "{frames} frames were read, {allowed} are allowed"
    );
    assert!(counter(&world, "autoscaling_agent_monitor_pauses_total ").await >= 2.0);
    // Nobody else waits: an honest monitor's wish is carried out meanwhile.
    world.guest.say(&MonitorFrame {
        body: MonitorBody::UpscaleRequest,
        id: 1,
    });
    let patched = world
        .trace
        .until("the honest VM grows", |all| position(all, is_patch));
    patched.await;
    for trace in &flooding {
        trace
            .until("the agent comes back", |all| {
                (all.iter().filter(|seen| connected(seen)).count() == 2).then_some(())
            })
            .await;
        assert!(began.elapsed() >= 2 * FLOOD_LIMIT - Duration::from_secs(1));
    }
    world.stop().await;
}

/// Requirement: W9. Answers that come as a burst, as after a stall of the guest, are all taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn burst_of_an_honest_monitor_is_read_without_a_pause() {
    let mut world = World::new().await;
    world.start_connected().await;
    for _ in 0..100 {
        world.guest.say(&MonitorFrame {
            body: MonitorBody::UpscaleRequest,
            id: 1,
        });
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    world
        .trace
        .until("it grows", |all| position(all, is_patch))
        .await;
    until("health is checked after it", || {
        world.trace.count(|seen| *seen == Seen::HealthCheck) > 1
    })
    .await;
    assert_eq!(
        counter(&world, "autoscaling_agent_monitor_pauses_total ").await,
        0.0
    );
    world.stop().await;
}
