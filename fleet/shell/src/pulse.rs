//! Whether the tasks of the driver get on. A task that stands still in one step is a defect.
//! Another process should take its work.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Value of a task that waits for work.
const AT_REST: u64 = 0;

#[derive(Debug)]
struct Shared {
    base: Instant,
    tasks: Mutex<Vec<Weak<AtomicU64>>>,
}

/// Pulses of all tasks; clones share them.
#[derive(Debug, Clone)]
pub struct Pulses(Arc<Shared>);

/// Pulse of one task. It counts until it is dropped.
#[derive(Debug)]
pub(crate) struct Pulse {
    shared: Arc<Shared>,
    /// Milliseconds from the base to the begin of the step, plus one, or [`AT_REST`].
    since: Arc<AtomicU64>,
}

impl Default for Pulses {
    fn default() -> Self {
        Self(Arc::new(Shared {
            base: Instant::now(),
            tasks: Mutex::default(),
        }))
    }
}

impl Pulses {
    /// Longest time that a task has spent in its step. Zero if all wait for work.
    #[must_use]
    pub fn longest_step(&self) -> Duration {
        let now = self.0.now();
        let mut tasks = self.0.lock();
        tasks.retain(|task| task.strong_count() > 0);
        let tasks = tasks.iter().filter_map(Weak::upgrade);
        let steps = tasks.map(|since| match since.load(Ordering::Relaxed) {
            AT_REST => 0,
            since => now.saturating_sub(since),
        });
        Duration::from_millis(steps.max().unwrap_or(0))
    }

    pub(crate) fn task(&self) -> Pulse {
        let since = Arc::new(AtomicU64::new(AT_REST));
        self.0.lock().push(Arc::downgrade(&since));
        Pulse {
            shared: Arc::clone(&self.0),
            since,
        }
    }
}

impl Pulse {
    /// Begins a step.
    pub(crate) fn beat(&self) {
        self.since.store(self.shared.now(), Ordering::Relaxed);
    }

    /// The task waits for work.
    pub(crate) fn rest(&self) {
        self.since.store(AT_REST, Ordering::Relaxed);
    }
}

impl Shared {
    fn now(&self) -> u64 {
        let elapsed = self.base.elapsed().as_millis();
        u64::try_from(elapsed).unwrap_or(u64::MAX).saturating_add(1)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<AtomicU64>>> {
        // A push is whole.
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(20);
    const PATIENCE: Duration = Duration::from_secs(30);

    fn reaches(pulses: &Pulses, step: Duration) {
        let begun = Instant::now();
        while pulses.longest_step() < step {
            assert!(begun.elapsed() < PATIENCE, "the step is not seen");
            std::thread::yield_now();
        }
    }

    /// Requirement: B42
    #[test]
    fn task_that_stands_still_is_seen_and_one_at_rest_or_gone_is_not() {
        let pulses = Pulses::default();
        let (busy, idle) = (pulses.task(), pulses.task());
        busy.beat();
        idle.beat();
        idle.rest();
        reaches(&pulses, STEP);
        busy.rest();
        assert_eq!(pulses.longest_step(), Duration::ZERO);
        busy.beat();
        reaches(&pulses, STEP);
        drop(busy);
        assert_eq!(pulses.longest_step(), Duration::ZERO);
    }
}
