//! Synchronises directories of the pod into the guest: the schedule, and the messages about it.
//!
//! ```text
//!            all are in the guest                       a directory changed, here
//!   hurry ───────────────────────► keep (every 30 s) ──────────────────────────────► due at once
//!  (every second)  ◄─────────────── one fails ─────┘
//! ```
//!
//! A look compares checksums and pushes the differing files. So a lost notification does no harm,
//! and a changed copy in the guest is restored. Invariants:
//! 1. A directory that failed is retried within a second, whatever the failure
//!    (`tests::failed_directory_is_retried_every_second`).
//! 2. A change is reported once, a failure once per reason
//!    (`tests::failure_is_reported_once_per_reason`).

use std::collections::BTreeMap;

use protocol::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};

/// Pause between two looks until all directories are in sync.
const HURRY: Span = Span::from_secs(1);
/// Pause between two looks while all directories are in sync.
const KEEP: Span = Span::from_secs(30);

/// Errors of synchronising one directory, with a message for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "message", rename_all = "snake_case")]
pub enum SyncProblem {
    /// The directory is missing in the pod.
    Missing(String),
    /// The directory in the pod cannot be read.
    Unreadable(String),
    /// The directory exceeds the size of one request.
    TooLarge(String),
    /// The guest's daemon does not answer.
    Unreached(String),
    /// The guest's daemon refuses the directory.
    Refused(String),
}

impl SyncProblem {
    /// All values of [`Self::kind`], for metrics at zero.
    pub const KINDS: [&'static str; 5] =
        ["missing", "unreadable", "too_large", "unreached", "refused"];

    /// Label value of the problem in metrics, without the message.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        let [missing, unreadable, too_large, unreached, refused] = Self::KINDS;
        match self {
            Self::Missing(_) => missing,
            Self::Unreadable(_) => unreadable,
            Self::TooLarge(_) => too_large,
            Self::Unreached(_) => unreached,
            Self::Refused(_) => refused,
        }
    }
}

/// Result of comparing one directory with the guest's copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    /// The guest's copy was up to date.
    Same,
    /// The guest's copy was updated.
    Pushed,
    /// The guest's copy is out of date.
    Failed(SyncProblem),
}

/// A change in the state of one directory, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyncChange {
    /// The directory is in sync.
    Fresh(String),
    /// The directory is out of sync, for this reason.
    Stale(String, SyncProblem),
}

/// Synchronisation state of one guest's directories.
#[derive(Debug, Clone)]
pub struct Sync {
    problems: BTreeMap<String, Option<SyncProblem>>,
    looked: bool,
    look_at: Timestamp,
}

impl Sync {
    /// Directories of a guest that has just answered. All are due.
    #[must_use]
    pub fn new(now: Timestamp, paths: impl IntoIterator<Item = String>) -> Self {
        Self {
            problems: paths.into_iter().map(|path| (path, None)).collect(),
            looked: false,
            look_at: now,
        }
    }

    /// The directories, if a look is due.
    #[must_use]
    pub fn due(&self, now: Timestamp) -> Option<Vec<String>> {
        (now >= self.look_at).then(|| self.problems.keys().cloned().collect())
    }

    /// Number of directories that were out of sync at the last look.
    #[must_use]
    pub fn stale(&self) -> usize {
        self.problems.values().flatten().count()
    }

    /// When the next look is due.
    #[must_use]
    pub fn deadline(&self) -> Timestamp {
        self.look_at
    }

    /// A directory changed in the pod: a look is due.
    pub fn changed(&mut self, now: Timestamp) {
        self.look_at = self.look_at.min(now);
    }

    /// Takes the results of a look and returns the changes in state.
    pub fn looked(&mut self, now: Timestamp, found: Vec<(String, Look)>) -> Vec<SyncChange> {
        let mut changes = Vec::new();
        let first = !std::mem::replace(&mut self.looked, true);
        for (path, look) in found {
            let Some(known) = self.problems.get_mut(&path) else {
                continue;
            };
            match look {
                Look::Failed(problem) => {
                    if known.as_ref() != Some(&problem) {
                        changes.push(SyncChange::Stale(path, problem.clone()));
                    }
                    *known = Some(problem);
                }
                Look::Same if known.is_none() && !first => {}
                Look::Same | Look::Pushed => {
                    *known = None;
                    changes.push(SyncChange::Fresh(path));
                }
            }
        }
        self.look_at = now + if self.stale() > 0 { HURRY } else { KEEP };
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(0) + Span::from_secs(seconds)
    }

    fn two() -> Sync {
        Sync::new(at(0), ["/a".to_owned(), "/b".to_owned()])
    }

    fn missing() -> Look {
        Look::Failed(SyncProblem::Missing("no /a".into()))
    }

    #[test]
    fn failed_directory_is_retried_every_second() {
        let mut sync = two();
        assert_eq!(sync.due(at(0)).unwrap(), ["/a", "/b"]);
        for second in 0..50 {
            let now = at(second);
            let _ = sync.looked(
                now,
                vec![("/a".into(), missing()), ("/b".into(), Look::Same)],
            );
            assert_eq!(sync.deadline(), at(second + 1));
            assert_eq!(sync.stale(), 1);
            assert_eq!(sync.due(now), None);
        }
        let _ = sync.looked(
            at(50),
            vec![("/a".into(), Look::Pushed), ("/b".into(), Look::Same)],
        );
        assert_eq!(sync.deadline(), at(80));
        assert_eq!(sync.stale(), 0);
        sync.changed(at(60));
        assert!(sync.due(at(60)).is_some());
        sync.changed(at(70));
        assert_eq!(sync.deadline(), at(60), "a change does not put off");
    }

    #[test]
    fn failure_is_reported_once_per_reason() {
        let mut sync = two();
        let look = |sync: &mut Sync, a| {
            sync.looked(at(0), vec![("/a".into(), a), ("/b".into(), Look::Same)])
        };
        let changes = look(&mut sync, missing());
        assert!(
            matches!(&changes[..], [SyncChange::Stale(a, _), SyncChange::Fresh(b)] if a == "/a" && b == "/b"),
            "{changes:?}"
        );
        assert_eq!(look(&mut sync, missing()), []);
        let other = Look::Failed(SyncProblem::Refused("500".into()));
        assert_eq!(look(&mut sync, other).len(), 1);
        assert_eq!(
            look(&mut sync, Look::Same),
            [SyncChange::Fresh("/a".into())]
        );
        assert_eq!(look(&mut sync, Look::Same), []);
        assert_eq!(
            look(&mut sync, Look::Pushed),
            [SyncChange::Fresh("/a".into())]
        );
    }

    #[test]
    fn kinds_of_problems_have_one_spelling() {
        let all = [
            SyncProblem::Missing,
            SyncProblem::Unreadable,
            SyncProblem::TooLarge,
            SyncProblem::Unreached,
            SyncProblem::Refused,
        ];
        for (make, kind) in all.into_iter().zip(SyncProblem::KINDS) {
            let problem = make(String::new());
            let logged = serde_json::to_value(&problem).unwrap();
            assert_eq!(logged["kind"], kind);
            assert_eq!(problem.kind(), kind);
        }
    }
}
