//! Version 2 of the monitor link over real sockets: what the agent names, and what it does with the
//! details.

mod peers;

use std::sync::atomic::Ordering;

use peers::{Seen, World, position, units, until};
use protocol::fleet::KEY_SCHEDULE;
use protocol::monitor::{Allocation, MonitorBody, MonitorFrame};
use protocol::monitor_v2::{
    AskReason, GuestMetrics, MachineGauges, MonitorBodyV2, MonitorFrameV2, SYSTEMD_TIMER,
    ScheduleRequest, UpscaleDetails, Urgency,
};
use protocol::units::Resources;
use serde_json::json;

/// The sizes asked of the scheduler, in order, without repetition.
fn sizes(all: &[Seen]) -> Vec<Resources> {
    let mut sizes: Vec<Resources> = all
        .iter()
        .filter_map(|seen| match seen {
            Seen::Permit(request) => Some(request.resources),
            _ => None,
        })
        .collect();
    sizes.dedup();
    sizes
}

async fn until_told(world: &World, n: u32) -> Vec<Seen> {
    let granted = Seen::Granted(Allocation {
        cpu: 0.25 * f64::from(n),
        mem: u64::from(n) << 30,
    });
    world
        .trace
        .until("the monitor is told", |all| {
            position(all, |seen| *seen == granted).map(|at| all[..=at].to_vec())
        })
        .await
}

fn asked(urgency: Urgency, gib: u64) -> String {
    let wanted = Allocation {
        cpu: 1.0,
        mem: gib << 30,
    };
    let body = MonitorBodyV2::Asked(UpscaleDetails {
        reason: AskReason::Forecast,
        urgency: Some(urgency),
        wanted: Some(wanted),
    });
    MonitorFrameV2 { body, id: 3 }.encode()
}

/// Requirement: N32, N37
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_frame_has_capabilities_and_an_upscale_request_is_granted_whole() {
    let mut world = World::new().await;
    world.guest.manners.speaks_v2.store(true, Ordering::Relaxed);
    world.start_connected().await;
    let named = world.trace.until("capabilities", |all| {
        all.iter().find_map(|seen| match seen {
            Seen::Capabilities(id, names) => Some((*id, names.clone())),
            _ => None,
        })
    });
    let (id, names) = named.await;
    assert_eq!(id, 2, "it is the first frame");
    assert_eq!(
        names,
        [
            "ask_details",
            "refusal_details",
            "refusal_again",
            "observed",
            "metrics=1000",
            "schedule"
        ],
        "metrics as often as they would be scraped"
    );
    world.guest.say_raw(&asked(Urgency::Soon, 4));
    let all = until_told(&world, 4).await;
    assert_eq!(sizes(&all), [units(1), units(4)], "one step");
    assert!(
        !all.iter().any(|seen| matches!(seen, Seen::Complaint(_))),
        "{all:#?}"
    );
    world.stop().await;
}

/// Requirements: R19, R20
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn monitor_gets_the_schedule_of_the_vms_annotation_as_it_is_now() {
    let mut world = World::new().await;
    world.guest.manners.speaks_v2.store(true, Ordering::Relaxed);
    world.start_connected().await;
    let ask = |id, kind: &str| {
        let (version, kind) = ("1.2.3".to_owned(), kind.to_owned());
        let body = MonitorBodyV2::ScheduleRequest(ScheduleRequest { version, kind });
        MonitorFrameV2 { body, id }.encode()
    };
    world.guest.say_raw(&ask(3, SYSTEMD_TIMER));
    let answered = world.trace.until("a schedule", |all| {
        all.iter().find_map(|seen| match seen {
            Seen::Schedule(id, spec) => Some((*id, spec.clone())),
            _ => None,
        })
    });
    let none = (3, String::new());
    assert_eq!(answered.await, none, "the VM has no annotation");
    let spec = "Sat,Sun *-*-* 02,03:00/20:00 Europe/Berlin";
    world.api.change_vm("vm", |vm| {
        vm["metadata"]["annotations"] = json!({ KEY_SCHEDULE: spec });
    });
    let seen = Seen::Schedule(5, spec.to_owned());
    until("the agent's watch has brought the annotation", || {
        world.guest.say_raw(&ask(5, SYSTEMD_TIMER));
        world.trace.all().contains(&seen)
    })
    .await;
    world.guest.say_raw(&ask(1001, "kube-controller"));
    let complaint = world.trace.until("the agent refuses", |all| {
        all.iter().find_map(|seen| match seen {
            Seen::Complaint(text) => Some(text.clone()),
            _ => None,
        })
    });
    assert!(complaint.await.contains(SYSTEMD_TIMER));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_urgent_upscale_request_counts_right_after_another() {
    let mut world = World::new().await;
    world.guest.manners.speaks_v2.store(true, Ordering::Relaxed);
    world.start_connected().await;
    world.guest.say_raw(&asked(Urgency::Soon, 2));
    world.guest.say_raw(&asked(Urgency::Critical, 4));
    until_told(&world, 4).await;
    world.stop().await;
}

/// Requirement: N31
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn monitor_of_version_1_gets_no_new_members_and_one_unit() {
    let mut world = World::new().await;
    world.start_connected().await;
    world.guest.say(&MonitorFrame {
        body: MonitorBody::UpscaleRequest,
        id: 3,
    });
    let all = until_told(&world, 2).await;
    assert_eq!(sizes(&all), [units(1), units(2)]);
    // Its words have no members of version 2, even if it sends some.
    world
        .guest
        .say_raw(r#"{"type":"Metrics","cgroup":{},"id":5}"#);
    let complaint = world.trace.until("the agent complains", |all| {
        all.iter().find_map(|seen| match seen {
            Seen::Complaint(text) => Some(text.clone()),
            _ => None,
        })
    });
    assert!(complaint.await.contains("Metrics"));
    world.stop().await;
}

/// What a guest of 4 GiB pushes, with this load.
fn pushed(load: f64) -> String {
    let metrics = GuestMetrics {
        load1: Some(load),
        load5: Some(load),
        memory: Some(MachineGauges {
            total: 4 << 30,
            available: 4 << 30,
            cached: 0,
        }),
        ..GuestMetrics::default()
    };
    let body = MonitorBodyV2::Metrics(Box::new(metrics));
    MonitorFrameV2 { body, id: 5 }.encode()
}

/// Pushes until something is seen; returns how many scrapes there were meanwhile.
async fn push_until(world: &World, load: f64, seen: impl Fn(&[Seen]) -> bool) -> usize {
    let scrapes = || world.trace.count(|seen| *seen == Seen::Scrape);
    let before = scrapes();
    let pushing = async {
        loop {
            world.guest.say_raw(&pushed(load));
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    };
    tokio::select! {
        () = pushing => {}
        () = world.trace.until("pushed metrics have their effect", |all| seen(all).then_some(())) => {}
    }
    scrapes() - before
}

/// Requirement: N02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushed_metrics_replace_scrapes() {
    let mut world = World::new().await;
    world.guest.manners.speaks_v2.store(true, Ordering::Relaxed);
    world.start_connected().await;
    // The page asks for nothing; what is pushed asks for two units.
    let granted = |n: u32| {
        Seen::Granted(Allocation {
            cpu: 0.25 * f64::from(n),
            mem: u64::from(n) << 30,
        })
    };
    push_until(&world, 0.4, |all| all.contains(&granted(2))).await;
    let checks = |all: &[Seen]| {
        all.iter()
            .filter(|seen| **seen == Seen::HealthCheck)
            .count()
    };
    // For as long as it takes to check the health of the monitor several times, at most one scrape
    // that was under way.
    let now = checks(&world.trace.all());
    let scrapes = push_until(&world, 0.4, |all| checks(all) >= now + 4).await;
    assert!(scrapes <= 1, "{scrapes} scrapes");
    assert_eq!(
        world
            .trace
            .count(|seen| matches!(seen, Seen::AskedToShrink(_))),
        0,
        "no page was believed meanwhile"
    );
    // The pushes stop: the page is read again, and decides.
    world
        .trace
        .until("it shrinks by what is on the page", |all| {
            position(all, |seen| matches!(seen, Seen::Patch(_, 1, _)))
        })
        .await;
    assert_eq!(
        world.trace.count(|seen| matches!(seen, Seen::Complaint(_))),
        0
    );
    world.stop().await;
}

/// The size that a refusal names is what the monitor is asked for next; what a confirmation says
/// the guest has is shown.
///
/// Requirement: N27, N36
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sizes_named_by_a_monitor_are_used_and_shown() {
    let mut world = World::new().await;
    world.guest.manners.speaks_v2.store(true, Ordering::Relaxed);
    world.guest.manners.observes.store(true, Ordering::Relaxed);
    world.start_connected().await;
    world.guest.say_raw(&asked(Urgency::Soon, 4));
    until_told(&world, 4).await;
    until("what the guest has is shown", || {
        world.state.dump()["pods"][0]["runner"]["monitor"]["observed"]
            == json!({"vCPUs": 1, "mem": "4Gi"})
    })
    .await;
    // It wants no more than it needs: three units, it says, when it is asked for less.
    *world.guest.manners.smallest_gib.lock().expect("free") = Some(3);
    let sizes = world
        .trace
        .until("it is asked for what it named", |all| {
            let asked: Vec<u64> = all
                .iter()
                .filter_map(|seen| match seen {
                    Seen::AskedToShrink(size) => Some(size.mem >> 30),
                    _ => None,
                })
                .collect();
            (asked.len() >= 2).then_some(asked)
        })
        .await;
    assert_eq!(sizes[..2], [1, 3]);
    world
        .trace
        .until("it shrinks to that", |all| {
            position(all, |seen| matches!(seen, Seen::Patch(_, 3, _)))
        })
        .await;
    // What it agrees to no more is shown in its own words.
    until("its refusal is shown", || {
        let refusal = world.state.dump()["pods"][0]["lastDecision"]["refusal"].clone();
        refusal["status"] == "in use" && refusal["smallest"]["mem"] == "3Gi"
    })
    .await;
    world.stop().await;
}
