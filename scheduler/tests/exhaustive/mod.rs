//! Every state of a model within its bounds: what must hold in all of them, and what must be reached for that to mean
//! something.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, Model};

/// Whether the bounds that take minutes were asked for (`cargo xtask model`).
pub(crate) fn is_large() -> bool {
    std::env::var("SCHEDULER_MODEL").is_ok_and(|bound| bound == "large")
}

/// Checks every reachable state of a model called `text`; returns how many there are.
pub(crate) fn check<M>(
    text: &str,
    model: M,
    safe: &[&'static str],
    reached: &[&'static str],
) -> usize
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + Send + Sync + PartialEq,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let began = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checker = model.checker().threads(threads);
    if is_large() {
        // It keeps few whole states at a time, and finds long ways to what must not be.
        judge(text, began, &checker.spawn_dfs().join(), safe, reached)
    } else {
        judge(text, began, &checker.spawn_bfs().join(), safe, reached)
    }
}

fn judge<M>(
    text: &str,
    began: Instant,
    checker: &impl Checker<M>,
    safe: &[&'static str],
    reached: &[&'static str],
) -> usize
where
    M: Model,
    M::State: Clone + Debug + Hash + PartialEq,
    M::Action: Clone + Debug + PartialEq,
{
    assert!(checker.is_done());
    for name in safe {
        if let Some(path) = checker.discovery(name) {
            panic!("{name} does not hold in {text}: {:?}", path.into_actions());
        }
    }
    for name in reached {
        assert!(checker.discovery(name).is_some(), "never: {name} in {text}");
    }
    let states = checker.unique_state_count();
    eprintln!(
        "{text}: {states} states, {} steps, {:.1} s",
        checker.state_count(),
        began.elapsed().as_secs_f64()
    );
    assert!(states > 1_000, "too small to mean anything");
    states
}
