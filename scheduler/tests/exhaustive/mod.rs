//! Every state of a model within its bounds: what must hold in all of them, and what must be
//! reached for that to mean something.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, Model};

/// The order in which states are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "each test binary has bounds of one size")]
pub(crate) enum Order {
    /// The shortest way to what must not be.
    Breadth,
    /// Few whole states at a time, for millions of them; long ways to what must not be.
    Depth,
}

/// What must hold in all states, and what must be reached.
pub(crate) type Names<'a> = (&'a [&'static str], &'a [&'static str]);

/// Checks every reachable state of a model called `text`; returns how many there are.
pub(crate) fn check<M>(text: &str, model: M, order: Order, names: Names<'_>) -> usize
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + Send + Sync + PartialEq,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let began = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checker = model.checker().threads(threads);
    match order {
        Order::Breadth => judge(text, began, &checker.spawn_bfs().join(), names),
        Order::Depth => judge(text, began, &checker.spawn_dfs().join(), names),
    }
}

fn judge<M>(
    text: &str,
    began: Instant,
    checker: &impl Checker<M>,
    (safe, reached): Names<'_>,
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
