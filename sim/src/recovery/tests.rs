//! Each fault converges within its own bound, and a slow component does not.

use super::rows::{NO_FAULTS, rows};
use super::*;
use crate::check::Violation;
use crate::fault_schedule::FAULT_KINDS;
use crate::options::{Level, Options, Sabotage};

/// The bound that every phase of every run once had.
const OLD_BOUND: Span = Span::from_secs(200);
/// A seed whose VMs have default settings.
const SEED: u64 = 2;

fn world(sabotage: Option<Sabotage>) -> World {
    let mut options = Options::short(SEED, Level::None, u64::MAX);
    (options.vms, options.nodes) = (2, 1);
    options.sabotage = sabotage;
    World::new(options)
}

/// Steps until the phase is about to end, plays the fault, and steps on until its quiescent phase
/// has ended.
fn next_phase(world: &mut World, fault: impl FnOnce(&mut World)) -> Result<(), Violation> {
    let converged = world.fault_schedule.converged;
    while world.fault_schedule.faults_end.since(world.now) > Span::from_secs(1) {
        world.step()?;
    }
    fault(world);
    while world.fault_schedule.converged == converged {
        world.step()?;
    }
    Ok(())
}

/// A world that has converged once, so that its guests are up.
fn converged_world(sabotage: Option<Sabotage>) -> World {
    let mut world = world(sabotage);
    world.fault_schedule.fixed_bound = Some(OLD_BOUND);
    next_phase(&mut world, |_| {}).expect("it converges");
    world.fault_schedule.fixed_bound = None;
    world
}

fn bound_with(world: &mut World, faults: &[&'static str]) -> Span {
    world.fault_schedule.tally_before = world.tally.clone();
    faults.iter().for_each(|name| world.tally.count(name));
    world.recovers_within()
}

#[test]
fn phase_has_the_bound_of_its_slowest_fault() {
    let mut world = converged_world(None);
    let least = bound_with(&mut world, &[]);
    for name in NO_FAULTS {
        assert_eq!(bound_with(&mut world, &[name]), least, "{name}");
    }
    let scrape = bound_with(&mut world, &["scrape lost"]);
    let order = bound_with(&mut world, &["order lost"]);
    assert!(least < scrape && scrape < order);
    let both = bound_with(&mut world, &["scrape lost", "order lost"]);
    assert_eq!(both, order);
    for row in rows() {
        let last = row.faults.last().expect("a row has faults");
        let bound = bound_with(&mut world, &[last]);
        assert!(bound < OLD_BOUND, "{last}: {bound:?}");
    }
}

#[test]
fn fault_without_a_row_is_a_violation() {
    let mut world = converged_world(None);
    bound_with(&mut world, &["a new fault"]);
    let violation = world.step().expect_err("it has no bound");
    assert_eq!(violation.invariant, "every_fault_has_a_bound");
}

/// Each kind of fault by itself, a second before the phase ends. Numbers 1 and 3 repeat 0 and 2.
#[test]
fn world_converges_within_the_bound_of_each_fault() {
    let mut world = converged_world(None);
    for kind in (0..FAULT_KINDS).filter(|kind| ![1, 3].contains(kind)) {
        let before = world.tally.clone();
        let played = next_phase(&mut world, |world| {
            let target = world.draw_target();
            world.play_fault(kind, target);
        });
        let names = world.tally.names_since(&before);
        played.unwrap_or_else(|violation| panic!("{names:?}: {violation:?}"));
        assert!(!names.is_empty(), "fault {kind} was not played");
    }
    let crash = next_phase(&mut world, |world| {
        world.guest_ends(0, "a panic of its own")
    });
    assert_eq!(crash, Ok(()));
}

fn with_slow_dial(fixed_bound: Option<Span>) -> Result<(), Violation> {
    let mut world = converged_world(Some(Sabotage::SlowDial));
    world.fault_schedule.fixed_bound = fixed_bound;
    next_phase(&mut world, |world| world.break_a_link(0))
}

/// The agent waits two minutes before it connects again. A bound for all faults hides that.
#[test]
fn slow_component_breaks_the_bound_of_its_fault_alone() {
    let violation = with_slow_dial(None).expect_err("it is slow");
    assert_eq!(violation.invariant, "converges_within_bound");
    assert!(violation.text.contains("monitor"), "{violation:?}");
    assert_eq!(with_slow_dial(Some(OLD_BOUND)), Ok(()));
}

#[test]
fn readme_lists_the_bound_of_each_fault() {
    let readme = include_str!("../../README.md");
    let none = format!("| none | | {} |", undisturbed().as_secs_f64());
    let lines = rows().iter().map(|row| row.line()).collect::<Vec<_>>();
    let wanted = std::iter::once(&none).chain(&lines);
    let missing: Vec<&String> = wanted
        .filter(|line| !readme.lines().any(|it| it == line.as_str()))
        .collect();
    assert!(missing.is_empty(), "README.md lacks: {missing:#?}");
}
