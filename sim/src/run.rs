//! One run from its seed to its end, and what came of it.

use protocol::journal::Record;
use protocol::time::Span;
use serde::Serialize;

use crate::check::Violation;
use crate::faults::Tally;
use crate::options::Options;
use crate::world::{BEGIN, World};

/// Newest notes that a violation shows.
const LINES: usize = 400;

/// Result of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Options of the run.
    pub options: Options,
    /// Number of steps until the end or the violation.
    pub steps: u64,
    /// Virtual time of the run, seconds.
    pub virtual_seconds: f64,
    /// Hash over everything that happened. Runs of the same options have the same hash.
    pub hash: u64,
    /// Number of single checks. A run with 0 has proved nothing.
    pub checks: u64,
    /// Number of quiescent phases at whose end the world had converged.
    pub calms: u64,
    /// First invariant that did not hold.
    pub violation: Option<Violation>,
    /// Newest notes of the run. Empty without a violation.
    pub last: Vec<String>,
    /// Number of faults by name.
    #[serde(skip)]
    pub tally: Tally,
}

/// Runs a world to its end or to the first violation. Calls `progress` every 4,096 steps.
pub fn run(options: Options, mut progress: impl FnMut(&World)) -> Outcome {
    /// Steps between two looks at the caller's clock.
    const TELL_EVERY: u64 = 4_096;
    let (length, steps) = (options.length, options.steps);
    let mut world = World::new(options);
    let mut violation = None;
    while world.steps < steps && world.now.since(BEGIN) < length {
        if let Err(found) = world.step() {
            violation = Some(found);
            break;
        }
        if world.steps.is_multiple_of(TELL_EVERY) {
            progress(&world);
        }
    }
    outcome(world, violation)
}

/// Runs a world as [`run`] does. Returns the decision journal of all its agents.
///
/// # Errors
/// The first violation.
pub fn recorded(options: Options) -> Result<Vec<Record>, Violation> {
    let (length, steps) = (options.length, options.steps);
    let mut world = World::new(options);
    world.record();
    while world.steps < steps && world.now.since(BEGIN) < length {
        world.step()?;
    }
    Ok(world.recorded())
}

fn outcome(world: World, violation: Option<Violation>) -> Outcome {
    let vm = violation.as_ref().and_then(|violation| violation.vm);
    let last = if violation.is_some() {
        world.journal.lines(vm, LINES)
    } else {
        Vec::new()
    };
    let passed: Span = world.now.since(BEGIN);
    Outcome {
        steps: world.steps,
        virtual_seconds: passed.as_secs_f64(),
        hash: world.journal.hash(),
        checks: world.checks.made,
        calms: world.fault_schedule.converged,
        violation,
        last,
        tally: world.tally,
        options: world.options,
    }
}

impl Outcome {
    /// The line a failing run begins with: all that is needed to see it again.
    #[must_use]
    pub fn headline(&self) -> Option<String> {
        let violation = self.violation.as_ref()?;
        let whom = violation
            .vm
            .map_or_else(String::new, |vm| format!(" (vm-{vm:04})"));
        Some(format!(
            "seed {}, step {}, invariant {}{whom}: {}",
            self.options.seed, self.steps, violation.invariant, violation.text
        ))
    }
}
