//! Every peer late, broken or hostile: it delays, and harms nobody else.

mod peers;

use std::sync::atomic::Ordering;

use peers::guest::{Guest, Page};
use peers::scheduler::{Mood, PLENTY};
use peers::{Seen, World, address, api, is_patch, position, until};
use protocol::monitor::{MonitorBody, MonitorFrame};
use serde_json::{Value, json};

fn is_permit(seen: &Seen) -> bool {
    matches!(seen, Seen::Permit(_))
}

/// Requirement: N02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_metrics_only_delay() {
    let garbled = "host_load1 }{ \u{0}\n# TYPE host_load1 gauge\nhost_load1 1\n".to_owned();
    let binary: Vec<u8> = (0..=255).cycle().take(5_000).collect();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let pages = [
        (Page::Text(garbled), "garbled"),
        (Page::Text(text(&binary)), "garbled"),
        (Page::Text(String::new()), "garbled"),
        (Page::Raw(binary), "request"),
        (Page::Unavailable, "status"),
        (Page::Silent, "slow"),
        (Page::Endless, "large"),
        (Page::Long(100 << 20), "large"),
        (Page::HalfClosed, "broken"),
    ];
    for (page, cause) in pages {
        let mut world = World::new().await;
        world.config["metrics"]["system"]["requestTimeoutSeconds"] = json!(1);
        world.guest.set(page.clone());
        world.start().await;
        world
            .trace
            .until("two scrapes were tried", |all| {
                (all.iter().filter(|seen| **seen == Seen::Scrape).count() >= 2).then_some(())
            })
            .await;
        assert_eq!(world.trace.count(is_patch), 0, "{page:?} led to a patch");
        let counted = format!(
            "autoscaling_agent_scrape_failures_total{{source=\"system\",cause=\"{cause}\"}} "
        );
        world.until_metric(&counted).await;
        world.guest.set(Page::Good(0.5, 0.0));
        world
            .trace
            .until("good metrics are used at last", |all| {
                position(all, is_patch)
            })
            .await;
        let dump = world.state.dump();
        assert_eq!(
            dump["pods"][0]["status"]["previousEndStates"],
            json!([]),
            "{page:?} crashed the task"
        );
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_metrics_hold_the_size() {
    let mut world = World::new().await;
    world.config["metrics"]["system"]["staleAfterSeconds"] = json!(2);
    world.config["scheduler"]["requestAtLeastEverySeconds"] = json!(1);
    world.guest.set(Page::Good(0.5, 0.0));
    world.start().await;
    world
        .trace
        .until("it has grown", |all| position(all, is_patch))
        .await;
    world.guest.set(Page::Unavailable);
    until("the metrics are stale", || {
        world.state.dump()["pods"][0]["lastDecision"]["reason"] == "stale_metrics"
    })
    .await;
    assert_eq!(world.api.size("vm"), (json!("500m"), json!(2)));
    world.guest.set(Page::Good(0.0, 0.0));
    world
        .trace
        .until("fresh metrics shrink it", |all| {
            position(all, |seen| matches!(seen, Seen::Patch(_, 1, _)))
        })
        .await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn misbehaving_scheduler_never_grows_a_vm() {
    for mood in [
        Mood::Fails,
        Mood::Garbage,
        Mood::Late,
        Mood::TooMuch,
        Mood::TooLittle,
    ] {
        let mut world = World::new().await;
        world.config["scheduler"]["requestTimeoutSeconds"] = json!(1);
        world.config["scheduler"]["retryFailedRequestSeconds"] = json!(1);
        world.guest.set(Page::Good(0.9, 0.0));
        world.scheduler.set(mood);
        world.start().await;
        world
            .trace
            .until("it asked three times", |all| {
                (all.iter().filter(|seen| is_permit(seen)).count() >= 3).then_some(())
            })
            .await;
        assert_eq!(world.trace.count(is_patch), 0, "{mood:?} made it grow");
        world.scheduler.set(Mood::Grants(PLENTY));
        world
            .trace
            .until("it grows once permitted", |all| position(all, is_patch))
            .await;
        world.stop().await;
    }
}

/// Requirement: N01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_without_scheduler_waits_and_still_shrinks() {
    let mut world = World::new().await;
    world.config["scheduler"]["retryFailedRequestSeconds"] = json!(1);
    world.config["scheduler"]["requestPort"] = json!(1);
    world.api.change_vm("vm", |vm| {
        vm["spec"]["guest"]["cpus"]["use"] = json!("500m");
        vm["spec"]["guest"]["memorySlots"]["use"] = json!(2);
    });
    world.start().await;
    world
        .trace
        .until("it shrinks", |all| {
            position(all, |seen| matches!(seen, Seen::Patch(_, 1, _)))
        })
        .await;
    let line = r#"autoscaling_agent_scheduler_plugin_requests_total{code="[error doing request: could not connect]"}"#;
    world.until_metric(line).await;
    world.stop().await;
}

/// Requirement: N37
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mute_monitor_is_disconnected_and_dialled_again() {
    let mut world = World::new().await;
    world.config["monitor"]["responseTimeoutSeconds"] = json!(1);
    world.config["monitor"]["maxHealthCheckSequentialFailuresSeconds"] = json!(1);
    world.config["monitor"]["connectionRetryMinWaitSeconds"] = json!(1);
    world.config["monitor"]["unhealthyAfterSilenceDurationSeconds"] = json!(1);
    world.config["refereshStateIntervalSeconds"] = json!(1);
    world.start().await;
    world
        .trace
        .until("health is checked", |all| {
            position(all, |seen| *seen == Seen::HealthCheck)
        })
        .await;
    world.guest.manners.is_mute.store(true, Ordering::Relaxed);
    until("the VM counts as stuck", || {
        world.state.dump()["pods"][0]["status"]["state"] == "stuck"
    })
    .await;
    let line = r#"autoscaling_agent_runners_current{is_endpoint="false",state="stuck"} 1"#;
    world.until_metric(line).await;
    world
        .trace
        .until("it dials again", |all| {
            position(all, |seen| *seen == Seen::Connected(2))
        })
        .await;
    world.guest.manners.is_mute.store(false, Ordering::Relaxed);
    until("the VM is well again", || {
        world.state.dump()["pods"][0]["status"]["state"] == "ok"
    })
    .await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn response_of_the_wrong_kind_is_no_approval() {
    let mut world = World::new().await;
    world.config["monitor"]["retryFailedRequestSeconds"] = json!(1);
    world.api.change_vm("vm", |vm| {
        vm["spec"]["guest"]["cpus"]["use"] = json!("500m");
        vm["spec"]["guest"]["memorySlots"]["use"] = json!(2);
    });
    world.guest.manners.confuses.store(true, Ordering::Relaxed);
    world.start().await;
    world
        .trace
        .until("it asks again and again", |all| {
            (all.iter()
                .filter(|seen| matches!(seen, Seen::AskedToShrink(_)))
                .count()
                >= 2)
                .then_some(())
        })
        .await;
    assert_eq!(world.trace.count(is_patch), 0);
    world.guest.manners.confuses.store(false, Ordering::Relaxed);
    world
        .trace
        .until("a true approval counts", |all| position(all, is_patch))
        .await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_frames_get_a_complaint_or_end_the_link() {
    let mut world = World::new().await;
    world.config["monitor"]["connectionRetryMinWaitSeconds"] = json!(1);
    world.start().await;
    world
        .trace
        .until("health is checked", |all| {
            position(all, |seen| *seen == Seen::HealthCheck)
        })
        .await;
    world.guest.say_raw(r#"{"type":"Gossip","id":5}"#);
    world.guest.say(&MonitorFrame {
        body: MonitorBody::UpscaleConfirmation,
        id: 4_000_000,
    });
    world
        .trace
        .until("both are complained about", |all| {
            (all.iter()
                .filter(|seen| matches!(seen, Seen::Complaint(_)))
                .count()
                >= 2)
                .then_some(())
        })
        .await;
    assert_eq!(
        world.trace.count(|seen| matches!(seen, Seen::Connected(_))),
        1,
        "the connection lives on"
    );
    let bad_frames = [
        "no JSON",
        "[1]",
        r#"{"type":"HealthCheck"}"#,
        r#"{"type":"DownscaleResult","id":2}"#,
    ];
    for (bad, connection) in bad_frames.into_iter().zip(2..) {
        world.guest.say_raw(bad);
        world
            .trace
            .until("it dials again", |all| {
                position(all, |seen| *seen == Seen::Connected(connection))
            })
            .await;
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_patches_are_repeated() {
    let mut world = World::new().await;
    world.config["neonvm"]["retryFailedRequestSeconds"] = json!(1);
    world.guest.set(Page::Good(0.5, 0.0));
    world.api.fail_patches(2);
    world.start().await;
    world
        .trace
        .until("the third one succeeds", |all| position(all, is_patch))
        .await;
    let requests = "autoscaling_agent_neonvm_outbound_requests_total";
    world
        .until_metric(&format!(r#"{requests}{{result="ok"}} 1"#))
        .await;
    world
        .until_metric(&format!(r#"{requests}{{result="[error: told to fail"#))
        .await;
    world.stop().await;
}

fn pods(dump: &Value) -> Vec<String> {
    let pods = dump["pods"].as_array().expect("a list");
    pods.iter()
        .map(|pod| pod["podName"]["name"].as_str().unwrap_or("").to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_object_affects_only_itself_until_fixed() {
    let mut world = World::new().await;
    let other = Guest::start(world.trace.clone(), address()).await;
    let mut bad = api::vm("bad", &other.ip.to_string());
    bad["metadata"]["annotations"] = json!({"autoscaling.neon.tech/bounds": "{\"min\":1}"});
    let mut worse = api::vm("worse", &other.ip.to_string());
    worse["spec"]["guest"] = json!("not an object");
    world.api.put_vm(bad);
    world.api.put_vm(worse.clone());
    world.start().await;
    until("the good one is managed", || {
        pods(&world.state.dump()) == ["vm-pod"]
    })
    .await;
    until("the bad ones are shown", || {
        world.state.dump()["unparsable"]
            .as_object()
            .is_some_and(|bad| bad.len() == 2)
    })
    .await;
    world
        .api
        .change_vm("bad", |vm| vm["metadata"]["annotations"] = json!({}));
    until("the fixed one is managed", || {
        pods(&world.state.dump()) == ["bad-pod", "vm-pod"]
    })
    .await;
    // A bad update keeps the last good settings; a deletion works whatever the object says.
    world.api.change_vm("bad", |vm| {
        vm["spec"]["guest"]["cpus"]["min"] = json!("many")
    });
    until("it is shown as bad", || {
        world.state.dump()["unparsable"]["default/bad"].is_string()
    })
    .await;
    assert_eq!(
        pods(&world.state.dump()),
        ["bad-pod", "vm-pod"],
        "still managed"
    );
    world.api.delete_vm("bad");
    until("the deleted one is gone", || {
        pods(&world.state.dump()) == ["vm-pod"]
    })
    .await;
    world
        .api
        .change_vm("vm", |vm| vm["metadata"]["labels"] = json!({}));
    until("without its label it is not ours", || {
        pods(&world.state.dump()).is_empty()
    })
    .await;
    world.api.change_vm("vm", |vm| {
        vm["metadata"]["labels"] = json!({"autoscaling.neon.tech/enabled": "true"});
        vm["status"]["podName"] = json!("vm-pod-2");
    });
    until("a new pod of the same VM is managed", || {
        pods(&world.state.dump()) == ["vm-pod-2"]
    })
    .await;
    world.stop().await;
}

/// Requirement: N32
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn monitor_without_a_common_version_is_dialled_again() {
    for greeting in [
        r#"{"error":"too old"}"#,
        r#"{"version":3}"#,
        r#"{"version":"1"}"#,
        "hello",
    ] {
        let mut world = World::new().await;
        world.config["monitor"]["connectionRetryMinWaitSeconds"] = json!(1);
        *world.guest.manners.greeting.lock().expect("free") = Some(greeting.to_owned());
        world.start().await;
        world
            .trace
            .until("it dials again", |all| {
                (all.iter().filter(|seen| **seen == Seen::Refused).count() >= 2).then_some(())
            })
            .await;
        assert_eq!(
            world.trace.count(|seen| *seen == Seen::HealthCheck),
            0,
            "{greeting}"
        );
        *world.guest.manners.greeting.lock().expect("free") = None;
        world
            .trace
            .until("it connects", |all| {
                position(all, |seen| *seen == Seen::Connected(1))
            })
            .await;
        world.stop().await;
    }
}
