//! Moves of guests to new runners, as their instances have them.

use protocol::fleet::{InstanceSpec, InstanceStatus, MoveResult, RunnerMove, RunnerMoveEnd};
use serde::{Deserialize as _, Serialize};
use serde_json::Value;

/// Newest move of a guest, and its end.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub(super) struct Moved {
    #[serde(rename = "move")]
    turn: Option<RunnerMove>,
    end: Option<RunnerMoveEnd>,
}

/// Where a guest stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Moving,
    PendingRestart,
    Bad,
    Done,
}

/// Guests by stage. Guests that were never moved are in none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MovedCounts {
    moving: usize,
    pending_restart: usize,
    bad: usize,
    moved: usize,
}

impl Moved {
    /// An instance that cannot be read has none.
    pub(super) fn of(instance: &Value) -> Self {
        let spec = InstanceSpec::of_object(instance).unwrap_or_default();
        let status = InstanceStatus::deserialize(&instance["status"]).unwrap_or_default();
        Self {
            turn: spec.runner,
            end: status.runner,
        }
    }

    fn stage(&self) -> Option<Stage> {
        let ended = self.end.as_ref().map(|end| end.migration.as_str());
        let turn = self.turn.as_ref().map(|turn| turn.migration.as_str());
        if turn.is_some() && turn != ended {
            return Some(Stage::Moving);
        }
        Some(match self.end.as_ref()?.result {
            MoveResult::PendingRestart => Stage::PendingRestart,
            MoveResult::Bad => Stage::Bad,
            MoveResult::Good => Stage::Done,
            MoveResult::Skip => return None,
        })
    }

    /// Sentences for people.
    pub(super) fn lines(&self) -> Vec<String> {
        let Some(stage) = self.stage() else {
            let given_up = self.end.iter().map(|end| {
                let RunnerMoveEnd { to, reason, at, .. } = end;
                format!("runner: the move to {to} was given up at {at}: {reason}.")
            });
            return given_up.collect();
        };
        let (turn, end) = (self.turn.as_ref(), self.end.as_ref());
        let line = match (stage, turn, end) {
            (Stage::Moving, Some(turn), _) => format!(
                "runner: moves to {} {} since {}, attempt {}, migration {}.",
                turn.version, turn.to, turn.since, turn.attempt, turn.migration
            ),
            (Stage::PendingRestart, _, Some(end)) => format!(
                "runner: {} comes with the guest's next start: {}.",
                end.to, end.reason
            ),
            (Stage::Bad, _, Some(end)) => {
                format!(
                    "runner: bad move to {} at {}: {}.",
                    end.to, end.at, end.reason
                )
            }
            (Stage::Done, _, Some(end)) => format!("runner: moved to {} at {}.", end.to, end.at),
            _ => return Vec::new(),
        };
        vec![line]
    }
}

impl MovedCounts {
    pub(super) fn of(instances: &[Value]) -> Self {
        let mut counts = Self::default();
        for stage in instances.iter().filter_map(|one| Moved::of(one).stage()) {
            let count = match stage {
                Stage::Moving => &mut counts.moving,
                Stage::PendingRestart => &mut counts.pending_restart,
                Stage::Bad => &mut counts.bad,
                Stage::Done => &mut counts.moved,
            };
            *count += 1;
        }
        counts
    }

    /// `None` if no guest was ever moved.
    pub(super) fn line(self) -> Option<String> {
        let Self {
            moving,
            pending_restart,
            bad,
            moved,
        } = self;
        let is_any = self != Self::default();
        is_any.then(|| {
            format!(
                "runners: {moved} guests moved, {moving} moving, {bad} bad, {pending_restart} \
                 pending restart"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn instance(end: Option<&str>, migration: &str) -> Value {
        let turn = json!({
            "migration": "fleet-1", "to": "r@sha256:0b", "version": "1.1.0", "attempt": 1,
            "since": "2026-01-04T12:00:00Z",
        });
        let end = end.map(|result| {
            json!({
                "migration": migration, "to": "r@sha256:0b", "result": result,
                "reason": "why", "at": "2026-01-04T12:05:00Z",
            })
        });
        json!({"spec": {"runner": turn}, "status": {"runner": end}})
    }

    #[test]
    fn each_stage_is_counted_and_said() {
        let rows = [
            (instance(None, ""), "moves to 1.1.0 r@sha256:0b"),
            (
                instance(Some("Bad"), "fleet-0"),
                "moves to 1.1.0 r@sha256:0b",
            ),
            (instance(Some("Good"), "fleet-1"), "moved to r@sha256:0b"),
            (instance(Some("Bad"), "fleet-1"), "bad move to r@sha256:0b"),
            (
                instance(Some("PendingRestart"), "fleet-1"),
                "comes with the guest's next start: why",
            ),
            (instance(Some("Skip"), "fleet-1"), "was given up"),
        ];
        for (instance, expected) in &rows {
            let lines = Moved::of(instance).lines();
            assert!(lines[0].contains(expected), "{lines:?}");
        }
        let all: Vec<Value> = rows.into_iter().map(|(instance, _)| instance).collect();
        let line = MovedCounts::of(&all).line().expect("a line");
        assert_eq!(
            line,
            "runners: 1 guests moved, 2 moving, 1 bad, 1 pending restart"
        );
    }

    #[test]
    fn guest_that_was_never_moved_has_no_line() {
        for odd in [json!({}), json!({"spec": {"runner": 7}}), Value::Null] {
            assert_eq!(Moved::of(&odd).lines(), [""; 0]);
            assert_eq!(MovedCounts::of(&[odd]).line(), None);
        }
    }
}
