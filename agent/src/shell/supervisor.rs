//! Restarts one VM's task after a panic: at once if it ran for long, or else after a wait. Each
//! panic is counted and shown. Tasks of other VMs are not affected. Source:
//! docs/compatibility/agent.md §6.1.

use std::time::Duration;

use daemon_kit::clock::Clock;
use protocol::time::Span;
use rand::Rng;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::metrics::{AgentMetrics, DriverState};
use super::state::{EndState, StateSlot, text_of};

/// A task that ran for longer than this restarts at once.
const LONG_LIFE: Span = Span::from_secs(10);
/// Wait before any other restart, seconds.
const RESTART_WAIT_S: std::ops::RangeInclusive<u64> = 5..=9;

/// Supervisor of one VM's task.
pub(super) struct Supervisor {
    pub metrics: AgentMetrics,
    pub clock: Clock,
    pub slot: StateSlot,
    pub cancel: CancellationToken,
}

impl Supervisor {
    /// Runs the tasks that `make` returns, one after the other, until cancelled.
    pub(super) async fn run<F>(self, mut make: impl FnMut() -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.metrics.starts.inc();
        loop {
            let started = self.clock.now();
            // The task ends when this supervisor is dropped.
            let task = AbortOnDropHandle::new(tokio::spawn(make().in_current_span()));
            let Err(error) = task.await else {
                self.note_end("canceled", None);
                return;
            };
            self.metrics.panics.inc();
            let text = panic_text(error);
            tracing::error!(error = text, "the VM's task crashed");
            self.note_end("panicked", Some(text));
            if self.clock.now().since(started) <= LONG_LIFE {
                let wait = Duration::from_secs(rand::rng().random_range(RESTART_WAIT_S));
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = self.cancel.cancelled() => return,
                }
            }
            self.metrics.restarts.inc();
        }
    }

    fn note_end(&self, exit_kind: &'static str, error: Option<String>) {
        let time = text_of(&self.clock, self.clock.now());
        let mut view = self.slot.lock();
        if error.is_some() {
            view.state = Some(DriverState::Panicked);
            view.state_updated_at.clone_from(&time);
        }
        view.ended(EndState {
            exit_kind,
            error,
            time,
        });
    }
}

fn panic_text(error: tokio::task::JoinError) -> String {
    match error.try_into_panic() {
        Err(error) => error.to_string(),
        Ok(panic) => panic
            .downcast_ref::<&str>()
            .map(ToString::to_string)
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a crash without a text".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use prometheus_client::registry::Registry;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn panicked_task_restarts_after_a_wait() {
        let metrics = AgentMetrics::new(&mut Registry::default());
        let (slot, cancel) = (StateSlot::default(), CancellationToken::new());
        let supervisor = Supervisor {
            metrics: metrics.clone(),
            clock: Clock::new(),
            slot: slot.clone(),
            cancel: cancel.clone(),
        };
        let lives = Arc::new(AtomicU32::new(0));
        let began = tokio::time::Instant::now();
        let (counted, stop) = (Arc::clone(&lives), cancel.clone());
        let make = move || {
            let (life, stop) = (counted.fetch_add(1, Ordering::Relaxed), stop.clone());
            async move {
                assert!(life >= 2, "crash number {life}");
                stop.cancel();
            }
        };
        supervisor.run(make).await;
        assert_eq!(lives.load(Ordering::Relaxed), 3);
        assert_eq!((metrics.panics.get(), metrics.restarts.get()), (2, 2));
        let waited = began.elapsed().as_secs();
        assert!(
            (10..=18).contains(&waited),
            "two waits of 5 to 9 s: {waited}"
        );
        let view = slot.lock();
        assert_eq!(
            view.end_state.as_ref().map(|end| end.exit_kind),
            Some("canceled")
        );
        let crashes: Vec<_> = view
            .previous_end_states
            .iter()
            .filter_map(|end| end.error.as_deref())
            .collect();
        assert_eq!(crashes, ["crash number 0", "crash number 1"]);
    }

    #[tokio::test(start_paused = true)]
    async fn panicked_task_does_not_restart_after_cancellation() {
        let metrics = AgentMetrics::new(&mut Registry::default());
        let cancel = CancellationToken::new();
        let (stop, clock) = (cancel.clone(), Clock::new());
        let supervisor = Supervisor {
            metrics: metrics.clone(),
            clock,
            slot: StateSlot::default(),
            cancel,
        };
        let make = move || {
            stop.cancel();
            async { panic!("at once") }
        };
        supervisor.run(make).await;
        assert_eq!((metrics.panics.get(), metrics.restarts.get()), (1, 0));
    }

    /// Of two VMs, the task of one panics at every start.
    #[tokio::test(start_paused = true)]
    async fn panic_of_one_vm_task_leaves_others_running() {
        let metrics = AgentMetrics::new(&mut Registry::default());
        let (cancel, clock) = (CancellationToken::new(), Clock::new());
        let supervise = |slot: &StateSlot| Supervisor {
            metrics: metrics.clone(),
            clock,
            slot: slot.clone(),
            cancel: cancel.clone(),
        };
        let (bad, good) = (StateSlot::default(), StateSlot::default());
        let stop = cancel.clone();
        let works = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&works);
        let working = supervise(&good).run(move || {
            let (counted, stop) = (Arc::clone(&counted), stop.clone());
            async move {
                for _ in 0..60 {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    counted.fetch_add(1, Ordering::Relaxed);
                }
                stop.cancel();
            }
        });
        let crashing = supervise(&bad).run(|| async { panic!("at every start") });
        tokio::join!(working, crashing);
        assert_eq!(works.load(Ordering::Relaxed), 60, "in one life");
        assert!(metrics.panics.get() >= 6, "{}", metrics.panics.get());
        assert_eq!(metrics.starts.get(), 2);
        assert!(good.lock().previous_end_states.is_empty());
        assert_eq!(
            good.lock().end_state.as_ref().map(|end| end.exit_kind),
            Some("canceled")
        );
        let crashes = bad.lock().previous_end_states.len();
        assert!(crashes > 0, "and the other is shown to have crashed");
    }
}
