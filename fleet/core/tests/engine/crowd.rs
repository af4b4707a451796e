//! What many guests call for.

use fleet_core::{Action, Engine, Event, Guest, Now, Observed, Outcome, Write};
use protocol::core::Core as _;
use protocol::fleet::Rollout;
use protocol::time::Timestamp;

use super::world::*;

/// An open turn of the deployment `d`, whose program the guest has kept.
fn has_settled(guest: &mut Guest) {
    kept(guest, "1");
    guest.last = None;
    if let Observed::Seen(part) = &mut guest.observed {
        part.state.token = "d-1".to_owned();
    }
}

/// A pass over many guests is long, and so is a write for each change of a figure.
#[test]
fn figures_of_many_guests_are_not_written_after_each_of_them() {
    const GUESTS: u32 = 600;
    let rollout = Rollout {
        min_healthy_percent: 0,
        max_in_flight: GUESTS,
        ..Rollout::default()
    };
    let mut world = world(rollout, guests(GUESTS));
    world.guests.values_mut().for_each(|guest| tried(guest, 20));
    let mut engine = Engine::new(1);
    run(&mut engine, world.clone(), 0);
    let (mut ends, mut figures) = (0, 0);
    for millis in 1..=40 {
        let name = format!("vm-{millis}");
        let basis = engine.basis();
        let mut seen = engine.world().expect("its world").clone();
        has_settled(seen.guests.get_mut(&name).expect("a guest"));
        let now = Now {
            monotonic: Timestamp(millis * 1_000),
            ..at(0)
        };
        let event = Event::World {
            basis,
            world: Box::new(seen),
        };
        engine.handle(now, event);
        for write in writes(&mut engine, now) {
            match write {
                Write::End { .. } => ends += 1,
                _ => figures += 1,
            }
        }
    }
    assert_eq!(ends, 40);
    assert!((2..=4).contains(&figures), "{figures} writes of figures");
    let deadline = engine.poll_deadline().expect("figures are left");
    let now = Now {
        monotonic: deadline,
        ..at(0)
    };
    assert!(deadline < Timestamp(80_000), "{deadline:?}");
    assert_eq!(writes(&mut engine, now).len(), 2);
    let status = &engine.world().expect("its world").deployments[0].status;
    assert_eq!(status.progress.done, 40);
}

/// Carries out the writes that an engine asks for.
fn writes(engine: &mut Engine, now: Now) -> Vec<Write> {
    let mut writes = Vec::new();
    while let Some(action) = engine.poll_action(now) {
        if let Action::Write { id, write } = action {
            writes.push(write);
            let outcome = Outcome::Done;
            engine.handle(now, Event::Done { id, outcome });
        }
    }
    writes
}
