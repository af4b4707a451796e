//! Version 2 of the monitor link over real sockets: what the agent names, and what it does with the details.

mod peers;

use std::sync::atomic::Ordering;

use peers::{Seen, World, position};
use protocol::monitor::{Allocation, MonitorBody, MonitorFrame};
use protocol::monitor_v2::{AskReason, Asked, MonitorBodyV2, MonitorFrameV2, Urgency};
use protocol::units::Resources;

fn units(n: u32) -> Resources {
    Resources::new(250, 1 << 30).saturating_mul(n)
}

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
    let body = MonitorBodyV2::Asked(Asked {
        reason: AskReason::Forecast,
        urgency: Some(urgency),
        wanted: Some(wanted),
    });
    MonitorFrameV2 { body, id: 3 }.encode()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n32_n37_the_first_frame_names_capabilities_and_a_wish_is_granted_whole() {
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
    assert_eq!(names, ["ask_details", "refusal_details", "observed"]);
    world.guest.say_raw(&asked(Urgency::Soon, 4));
    let all = until_told(&world, 4).await;
    assert_eq!(sizes(&all), [units(1), units(4)], "one step");
    assert!(
        !all.iter().any(|seen| matches!(seen, Seen::Complaint(_))),
        "{all:#?}"
    );
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_more_urgent_wish_is_heard_right_after_another() {
    let mut world = World::new().await;
    world.guest.manners.speaks_v2.store(true, Ordering::Relaxed);
    world.start_connected().await;
    world.guest.say_raw(&asked(Urgency::Soon, 2));
    world.guest.say_raw(&asked(Urgency::Critical, 4));
    until_told(&world, 4).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n31_a_monitor_of_version_1_hears_nothing_new_and_its_wish_is_one_unit() {
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
