//! Publishes the runner's state, and wakes the clients that wait for a change.
//!
//! Each published state wakes the controller, on a machine whose guest is busy then. Mere progress
//! of a resize waits a moment for the next change; all else is published at once.

use protocol::runner::RunnerState;
use protocol::time::{Span, Timestamp};
use tokio::sync::watch;

/// How long progress of a resize may wait.
const PROGRESS_INTERVAL: Span = Span::from_millis(100);

/// Channel of the state, and the time of the last change.
#[derive(Debug)]
pub(super) struct StatePublisher {
    state: watch::Sender<RunnerState>,
    at: Timestamp,
    is_behind: bool,
}

impl StatePublisher {
    /// Continues with the last state of the channel.
    pub(super) fn new(state: watch::Sender<RunnerState>) -> Self {
        Self {
            state,
            at: Timestamp(0),
            is_behind: false,
        }
    }

    /// Copy of the published state.
    pub(super) fn current(&self) -> RunnerState {
        self.state.borrow().clone()
    }

    /// Publishes the next state under a new generation, unless it is equal or can wait.
    pub(super) fn publish(&mut self, now: Timestamp, next: RunnerState) {
        let is_same = same(&self.state.borrow(), &next);
        let is_soon = now < self.at + PROGRESS_INTERVAL;
        self.is_behind = !is_same && is_soon && is_progress(&self.state.borrow(), &next);
        if is_same || self.is_behind {
            return;
        }
        self.at = now;
        self.state.send_modify(|state| {
            *state = RunnerState {
                generation: state.generation + 1,
                ..next
            };
        });
    }

    /// When the waiting state is due.
    pub(super) fn poll_deadline(&self) -> Option<Timestamp> {
        self.is_behind.then(|| self.at + PROGRESS_INTERVAL)
    }
}

/// Whether two states are equal, except for generations and the jitter of stamps' starts.
fn same(a: &RunnerState, b: &RunnerState) -> bool {
    let plain = |state: &RunnerState| {
        let mut state = state.clone();
        state.generation = 0;
        // These change by themselves. Who needs them asks the guest through the runner.
        for part in state.guest_parts.values_mut() {
            (part.left_s, part.resident_bytes) = (0, 0);
        }
        let resize = state.resize.iter_mut();
        for stamp in resize.flat_map(|resize| &mut resize.stages) {
            stamp.start_unix_us = 0;
        }
        state
    };
    plain(a) == plain(b)
}

/// Whether two states differ only in the progress of an unfinished resize, or in CPUs that are
/// plugged ahead of one.
fn is_progress(a: &RunnerState, b: &RunnerState) -> bool {
    let is_ahead = b.cpus.ahead.is_some_and(|cpu| cpu.0 > 0);
    let is_under_way = a.resize.as_ref().is_some_and(|resize| !resize.done);
    // A client that orders CPUs ahead, or releases them, expects it in the response.
    if a.cpus.ahead != b.cpus.ahead || !(is_under_way || is_ahead) {
        return false;
    }
    let mut b = b.clone();
    (b.cpus, b.memory) = (a.cpus, a.memory);
    if let (Some(report), Some(resize)) = (&mut b.resize, &a.resize) {
        report.stages.clone_from(&resize.stages);
        // With CPUs ahead of it, the former order is not as it was.
        report.done = if is_ahead { resize.done } else { report.done };
    }
    same(a, &b)
}

#[cfg(test)]
mod tests {
    use super::super::initial_state::waiting_state;
    use super::*;
    use protocol::runner::{ResizeReport, SizeOrder};
    use protocol::trace::TraceId;
    use protocol::units::{Bytes, MilliCpu};

    /// A guest during a resize, with this memory plugged.
    fn resizing(revision: i64, gib: u64, done: bool) -> RunnerState {
        let order = SizeOrder {
            cpu: MilliCpu(1000),
            memory: Bytes(8 << 30),
            trace: TraceId {
                vm: "default/vm".into(),
                revision,
            },
        };
        let mut state = waiting_state();
        state.memory.plugged = Bytes(gib << 30);
        state.resize = Some(ResizeReport {
            order,
            done,
            stages: Vec::new(),
            problem: None,
        });
        state
    }

    #[test]
    fn only_progress_of_a_resize_is_delayed() {
        let (state, mut observer) = watch::channel(RunnerState {
            generation: 0,
            ..waiting_state()
        });
        let mut publisher = StatePublisher::new(state);
        let at = |ms| Timestamp(1_000_000) + Span::from_millis(ms);
        let mut publishes = |ms, next: RunnerState| {
            publisher.publish(at(ms), next);
            let is_published = observer.has_changed().unwrap();
            let generation = observer.borrow_and_update().generation;
            (is_published, generation, publisher.poll_deadline())
        };
        assert_eq!(publishes(0, resizing(1, 0, false)), (true, 1, None));
        let due = Some(at(100));
        assert_eq!(publishes(10, resizing(1, 1, false)), (false, 1, due));
        assert_eq!(publishes(99, resizing(1, 2, false)), (false, 1, due));
        assert_eq!(publishes(100, resizing(1, 2, false)), (true, 2, None));
        assert_eq!(
            publishes(101, resizing(1, 2, false)),
            (false, 2, None),
            "the same"
        );
        // The end of a resize, another order and a problem are published at once.
        assert_eq!(
            publishes(110, resizing(1, 7, false)),
            (false, 2, Some(at(200)))
        );
        assert_eq!(publishes(111, resizing(1, 8, true)), (true, 3, None));
        assert_eq!(publishes(112, resizing(2, 8, false)), (true, 4, None));
        let mut stuck = resizing(2, 8, false);
        let resize = stuck.resize.as_mut().unwrap();
        resize.problem = Some(protocol::runner::ResizeProblem::CpuStuck { missing: 1 });
        assert_eq!(publishes(113, stuck), (true, 5, None));
        // A state that returned to the published one is not due.
        assert_eq!(publishes(114, resizing(2, 8, false)).1, 6);
        assert_eq!(
            publishes(115, resizing(2, 7, false)),
            (false, 6, Some(at(214)))
        );
        assert_eq!(publishes(116, resizing(2, 8, false)), (false, 6, None));
        // CPUs ahead of an order: the request is published at once, their number is not.
        assert!(publishes(300, resizing(2, 8, true)).0);
        let ahead = |plugged, done| {
            let mut state = resizing(2, 8, done);
            state.cpus.ahead = Some(MilliCpu(3000));
            state.cpus.plugged = plugged;
            state
        };
        assert!(publishes(301, ahead(1, true)).0);
        assert_eq!(publishes(302, ahead(2, false)).2, Some(at(401)));
        assert!(publishes(303, resizing(2, 8, true)).0, "taken back");
        // The same during an order.
        assert!(publishes(500, resizing(2, 8, false)).0);
        assert!(publishes(501, ahead(1, false)).0);
        assert!(publishes(502, resizing(2, 8, false)).0);
    }
}
