//! Growth and shrink over real sockets: who is asked first, who is told last.

mod peers;

use std::sync::atomic::Ordering;

use peers::guest::Page;
use peers::scheduler::{Mood, PLENTY};
use peers::{Seen, World, is_patch, position, units};
use protocol::monitor::{Allocation, MonitorBody, MonitorFrame};
use protocol::trace::Stage;
use protocol::units::Resources;
use serde_json::json;

fn allocation(n: u32) -> Allocation {
    Allocation {
        cpu: 0.25 * f64::from(n),
        mem: u64::from(n) << 30,
    }
}

fn granted(n: u32) -> impl Fn(&Seen) -> bool {
    move |seen| *seen == Seen::Granted(allocation(n))
}

fn permit_for(n: u32) -> impl Fn(&Seen) -> bool {
    move |seen| matches!(seen, Seen::Permit(request) if request.resources == units(n))
}

fn patch_to(slots: u64) -> impl Fn(&Seen) -> bool {
    move |seen| matches!(seen, Seen::Patch(_, to, _) if *to == slots)
}

async fn until_seen(world: &World, what: &str, wanted: impl Fn(&Seen) -> bool) -> Vec<Seen> {
    world
        .trace
        .until(what, |all| {
            position(all, &wanted).map(|at| all[..=at].to_vec())
        })
        .await
}

/// Requirement: N09
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_request_is_informative() {
    let mut world = World::new().await;
    // A load that asks for all there is, from the first scrape on.
    world.guest.set(Page::Good(9.0, 0.0));
    world.start().await;
    let all = until_seen(&world, "the VM has grown", is_patch).await;
    let permits: Vec<_> = all
        .iter()
        .filter_map(|seen| {
            if let Seen::Permit(request) = seen {
                Some(request)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(
        permits[0].last_permit, None,
        "the first request carries no permit"
    );
    assert_eq!(
        permits[0].resources,
        units(1),
        "and asks for exactly what is in use"
    );
    assert_eq!(
        permits[1].last_permit,
        Some(units(1)),
        "the second carries the first permit"
    );
    assert_eq!(permits[1].resources, units(4));
    world.stop().await;
}

/// Requirement: N07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permit_request_equals_the_deployed_agents() {
    let mut world = World::new().await;
    world.start().await;
    until_seen(&world, "the first request", |seen| {
        matches!(seen, Seen::Permit(_))
    })
    .await;
    let text = world.scheduler.first_body();
    let load = if text.contains(r#""metrics":null"#) {
        "null"
    } else {
        r#"{"loadAvg1M":0.0}"#
    };
    assert_eq!(
        text,
        format!(
            r#"{{"protoVersion":7,"pod":{{"namespace":"default","name":"vm-pod"}},"computeUnit":{{"vCPUs":"250m","mem":"1Gi"}},"resources":{{"vCPUs":"250m","mem":"1Gi"}},"lastPermit":null,"metrics":{load}}}"#
        )
    );
    world.stop().await;
}

/// Requirement: N05, N36
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn growth_is_permitted_then_patched_then_notified() {
    let mut world = World::new().await;
    world.start_connected().await;
    world.guest.set(Page::Good(0.5, 0.0));
    let all = until_seen(&world, "the monitor is told", granted(2)).await;
    let permit = position(&all, permit_for(2)).expect("a permit was asked");
    let patch = position(&all, patch_to(2)).expect("the object was patched");
    let told = position(&all, granted(2)).expect("the monitor was told");
    assert!(permit < patch && patch < told, "{all:#?}");
    assert_eq!(world.api.size("vm"), (json!("500m"), json!(2)));
    let stages = world.stages.snapshot();
    for stage in [Stage::Decision, Stage::Permit, Stage::Patch] {
        let record = stages.iter().find(|record| record.stage == stage);
        let record = record.unwrap_or_else(|| panic!("no {stage:?} in {stages:#?}"));
        assert_eq!(
            (record.trace.vm.as_str(), record.trace.revision),
            ("default/vm", 1)
        );
    }
    world.stop().await;
}

/// Requirement: N11, N35
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shrink_is_approved_then_patched_then_reported() {
    shrinks("whole", &[1]).await;
    shrinks("unit", &[3, 2, 1]).await;
}

/// Lets a VM of 4 units fall to 1. Its monitor is asked for these sizes; each is approved before it
/// is patched, and reported only after its patch.
async fn shrinks(step: &str, sizes: &[u32]) {
    let mut world = World::new().await;
    world.config["scaling"]["defaultConfig"]["shrinkStep"] = json!(step);
    world.start_connected().await;
    world.guest.set(Page::Good(0.9, 0.0));
    until_seen(&world, "it has grown", granted(4)).await;
    let before = world.trace.all().len();
    world.guest.set(Page::Good(0.0, 0.0));
    let told_last = |seen: &Seen| matches!(seen, Seen::Permit(request) if request.resources == units(1) && request.last_permit.is_some_and(|p| p != units(1)));
    let all = world
        .trace
        .until("the scheduler knows of the minimum", |all| {
            position(&all[before..], told_last).map(|at| all[before..=before + at].to_vec())
        })
        .await;
    let asked = all.iter().filter_map(|seen| match seen {
        Seen::AskedToShrink(size) => Some(*size),
        _ => None,
    });
    let wanted: Vec<_> = sizes.iter().copied().map(allocation).collect();
    assert_eq!(asked.collect::<Vec<_>>(), wanted, "{step}");
    for n in sizes.iter().copied() {
        let asked = |seen: &Seen| *seen == Seen::AskedToShrink(allocation(n));
        let approved = position(&all, asked).expect("the monitor was asked");
        if let Some(patched) = position(&all, patch_to(n.into())) {
            assert!(approved < patched, "{n}: {all:#?}");
            if let Some(reported) = position(&all, permit_for(n)) {
                assert!(patched < reported, "{n}: {all:#?}");
            }
        }
    }
    assert_eq!(world.api.size("vm"), (json!("250m"), json!(1)));
    let stages = world.stages.snapshot();
    assert!(
        stages
            .iter()
            .any(|record| record.stage == Stage::MonitorApproval),
        "{stages:#?}"
    );
    world.stop().await;
}

/// Seed 2926 of the simulation, over sockets: a VM gets another pod while the agent's watch is
/// late, and what it is told of the new pod is from before its own last patch. The next task goes
/// by what the last one knew.
///
/// Requirement: N09
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_with_late_watch_reports_the_size_of_the_last_patch() {
    let mut world = World::new().await;
    world.start_connected().await;
    let mut late = world.api.get_vm("vm");
    world.api.watch_is_late();
    world.guest.set(Page::Good(0.9, 0.0));
    // The monitor is told once the patch was answered.
    until_seen(&world, "it has grown", granted(4)).await;
    let before = world.trace.all().len();
    late["status"]["podName"] = json!("vm-pod-2");
    world.api.tell_vm(&late);
    let first = |seen: &Seen| match seen {
        Seen::Permit(request) if request.pod.name == "vm-pod-2" => Some(request.clone()),
        _ => None,
    };
    let request = world
        .trace
        .until("the new task asks", |all| {
            all[before..].iter().find_map(first)
        })
        .await;
    assert_eq!((request.resources, request.last_permit), (units(4), None));
    assert_eq!(world.api.size("vm").1, json!(4));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_shrink_is_not_patched() {
    let mut world = World::new().await;
    world.guest.manners.refuses.store(true, Ordering::Relaxed);
    world.config["monitor"]["retryDeniedDownscaleSeconds"] = json!(1);
    world.start_connected().await;
    world.guest.set(Page::Good(0.5, 0.0));
    until_seen(&world, "it has grown", granted(2)).await;
    world.guest.set(Page::Good(0.0, 0.0));
    let asked = |seen: &Seen| matches!(seen, Seen::AskedToShrink(_));
    world
        .trace
        .until("it asks again after the cooldown", |all| {
            (all.iter().filter(|seen| asked(seen)).count() >= 3).then_some(())
        })
        .await;
    assert_eq!(
        world.api.size("vm"),
        (json!("500m"), json!(2)),
        "refused three times, never shrunk"
    );
    world.guest.manners.refuses.store(false, Ordering::Relaxed);
    let before = world.trace.all().len();
    world
        .trace
        .until("it shrinks once allowed", |all| {
            position(&all[before..], patch_to(1))
        })
        .await;
    world.stop().await;
}

/// Requirement: N34
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upscale_request_is_patched_without_waiting_for_metrics() {
    let mut world = World::new().await;
    // After the first scrape the next one is an hour away, so only the wish can lead to the patch.
    world.config["metrics"]["system"]["secondsBetweenRequests"] = json!(3600);
    world.config["metrics"]["system"]["staleAfterSeconds"] = json!(0);
    // The first request waits a random part of the period: the source is asked at once only by a
    // short one.
    world.config["metrics"]["system"]["secondsBetweenRequests"] = json!(1);
    world.start().await;
    until_seen(&world, "the first permit", |seen| {
        matches!(seen, Seen::Permit(_))
    })
    .await;
    until_seen(&world, "the monitor is connected", |seen| {
        matches!(seen, Seen::Connected(_))
    })
    .await;
    world
        .trace
        .until("metrics came", |all| {
            position(all, |seen| *seen == Seen::Scrape)
        })
        .await;
    peers::until("the agent is connected", || {
        world.state.dump()["pods"][0]["runner"]["monitor"].is_object()
    })
    .await;
    world.guest.set(Page::Silent);
    let from = world.trace.now();
    world.guest.say(&MonitorFrame {
        body: MonitorBody::UpscaleRequest,
        id: 3,
    });
    let all = until_seen(&world, "the monitor is told", granted(2)).await;
    let patch = position(&all, patch_to(2)).expect("the object was patched");
    let timed = world.trace.timed();
    println!("wish to patch: {} us", timed[patch].0.since(from).0);
    println!(
        "wish to notification: {} us",
        timed[all.len() - 1].0.since(from).0
    );
    peers::until("its reason is shown", || {
        world.state.dump()["pods"][0]["lastDecision"]["reason"] == "requested_upscale"
    })
    .await;
    world.stop().await;
}

/// Requirement: N14
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partial_permit_is_used_and_requested_again() {
    let mut world = World::new().await;
    world
        .scheduler
        .set(Mood::Grants(Resources::new(500, 2 << 30)));
    world.start_connected().await;
    world.guest.set(Page::Good(0.9, 0.0));
    until_seen(&world, "the part is used", patch_to(2)).await;
    world
        .trace
        .until("it asks again", |all| {
            (all.iter().filter(|seen| permit_for(4)(seen)).count() >= 2).then_some(())
        })
        .await;
    assert_eq!(
        world.api.size("vm"),
        (json!("500m"), json!(2)),
        "never past the permit"
    );
    peers::until("its bound is shown", || {
        let bounded = world.state.dump()["pods"][0]["lastDecision"]["boundedBy"].clone();
        bounded
            .as_array()
            .is_some_and(|all| all.contains(&json!("permit")))
    })
    .await;
    world.scheduler.set(Mood::Grants(PLENTY));
    until_seen(&world, "the rest follows", patch_to(4)).await;
    world.stop().await;
}

/// Requirement: N15
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_patched_after_a_migration_is_announced() {
    let mut world = World::new().await;
    world.config["scheduler"]["requestAtLeastEverySeconds"] = json!(1);
    world.scheduler.set(Mood::Migrates);
    world.start().await;
    until_seen(&world, "the flag was sent", |seen| {
        matches!(seen, Seen::Permit(_))
    })
    .await;
    peers::until("the flag was read", || {
        world.state.dump()["pods"][0]["lastDecision"]["reason"] == "migrating"
    })
    .await;
    world.guest.set(Page::Good(9.0, 0.0));
    let before = world.trace.count(|seen| matches!(seen, Seen::Permit(_)));
    world
        .trace
        .until("it still says that it is there", |all| {
            (all.iter()
                .filter(|seen| matches!(seen, Seen::Permit(_)))
                .count()
                >= before + 3)
                .then_some(())
        })
        .await;
    assert_eq!(world.trace.count(is_patch), 0, "no patch after the flag");
    assert_eq!(
        world.trace.count(permit_for(4)),
        0,
        "and no increase is asked for"
    );
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_cache_is_scraped_when_the_vm_enables_it() {
    let mut world = World::new().await;
    world.config["metrics"]["lfc"]["port"] = json!(world.guest.metrics_port);
    world.config["metrics"]["lfc"]["secondsBetweenRequests"] = json!(1);
    let mut page = Page::text(0.0, 0.0);
    for name in ["lfc_hits", "lfc_misses", "lfc_writes"] {
        page.push_str(&format!("# TYPE {name} gauge\n{name} 1\n"));
    }
    let name = "lfc_approximate_working_set_size_windows";
    page.push_str(&format!("# TYPE {name} gauge\n"));
    for minute in 1..=60 {
        page.push_str(&format!(
            "{name}{{duration_seconds=\"{}\"}} 262144\n",
            minute * 60
        ));
    }
    world.guest.set(Page::Text(page));
    world.start().await;
    until_seen(&world, "the first permit", |seen| {
        matches!(seen, Seen::Permit(_))
    })
    .await;
    assert_eq!(
        world.trace.count(is_patch),
        0,
        "the working set is not looked at by default"
    );
    world.api.change_vm("vm", |vm| {
        vm["metadata"]["annotations"] =
            json!({"autoscaling.neon.tech/config": "{\"enableLFCMetrics\":true}"});
    });
    until_seen(&world, "it grows to the working set", patch_to(3)).await;
    peers::until("its reason is shown", || {
        world.state.dump()["pods"][0]["lastDecision"]["reason"] == "working_set"
    })
    .await;
    world.stop().await;
}
