//! Directories of the pod that are kept the same in the guest: what is due when, and what is told
//! of it.
//!
//! ```text
//!            all are in the guest                       a directory changed, here
//!   hurry ───────────────────────► keep (every 30 s) ──────────────────────────────► due at once
//!  (every second)  ◄─────────────── one fails ─────┘
//! ```
//!
//! A look compares checksums and pushes what differs, so nothing is lost with a notice that did not
//! come, and a guest whose own copy was changed gets it back. Invariants:
//! 1. A directory that failed is tried again within a second, however it failed
//!    (`tests::what_fails_is_tried_every_second`).
//! 2. A change is told once, a failure once per reason
//!    (`tests::a_failure_is_told_once_per_reason`).

use std::collections::BTreeMap;

use protocol::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};

/// Pause between two looks until all is in the guest.
const HURRY: Span = Span::from_secs(1);
/// The same from then on.
const KEEP: Span = Span::from_secs(30);

/// Why a directory is not in the guest as it is here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "message", rename_all = "snake_case")]
pub enum SyncProblem {
    /// It is not here yet.
    Missing(String),
    /// It cannot be read.
    Unreadable(String),
    /// It is too much for one request.
    TooLarge(String),
    /// The guest's daemon does not answer.
    Unreached(String),
    /// It does not take it.
    Refused(String),
}

impl SyncProblem {
    /// All kinds there are.
    pub const KINDS: [&'static str; 5] =
        ["missing", "unreadable", "too_large", "unreached", "refused"];

    /// Its kind, without the words.
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

/// What a look found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    /// The guest had it.
    Same,
    /// The guest has it now.
    Pushed,
    /// The guest has it not.
    Failed(SyncProblem),
}

/// Something to tell people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// The guest has what is here.
    Fresh(String),
    /// It has not.
    Stale(String, SyncProblem),
}

/// All directories of one guest.
#[derive(Debug, Clone)]
pub struct Sync {
    problems: BTreeMap<String, Option<SyncProblem>>,
    looked: bool,
    look_at: Timestamp,
}

impl Sync {
    /// Directories of a guest that has just answered.
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

    /// How many directories were not in the guest as here at the last look.
    #[must_use]
    pub fn stale(&self) -> usize {
        self.problems.values().flatten().count()
    }

    /// When the next look is due.
    #[must_use]
    pub fn deadline(&self) -> Timestamp {
        self.look_at
    }

    /// Something changed here.
    pub fn changed(&mut self, now: Timestamp) {
        self.look_at = self.look_at.min(now);
    }

    /// What a look found; what is worth telling of it.
    pub fn looked(&mut self, now: Timestamp, found: Vec<(String, Look)>) -> Vec<News> {
        let mut news = Vec::new();
        let first = !std::mem::replace(&mut self.looked, true);
        for (path, look) in found {
            let Some(known) = self.problems.get_mut(&path) else {
                continue;
            };
            match look {
                Look::Failed(problem) => {
                    if known.as_ref() != Some(&problem) {
                        news.push(News::Stale(path, problem.clone()));
                    }
                    *known = Some(problem);
                }
                Look::Same if known.is_none() && !first => {}
                Look::Same | Look::Pushed => {
                    *known = None;
                    news.push(News::Fresh(path));
                }
            }
        }
        self.look_at = now + if self.stale() > 0 { HURRY } else { KEEP };
        news
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
    fn what_fails_is_tried_every_second() {
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
    fn a_failure_is_told_once_per_reason() {
        let mut sync = two();
        let look = |sync: &mut Sync, a| {
            sync.looked(at(0), vec![("/a".into(), a), ("/b".into(), Look::Same)])
        };
        let told = look(&mut sync, missing());
        assert!(
            matches!(&told[..], [News::Stale(a, _), News::Fresh(b)] if a == "/a" && b == "/b"),
            "{told:?}"
        );
        assert_eq!(look(&mut sync, missing()), []);
        let other = Look::Failed(SyncProblem::Refused("500".into()));
        assert_eq!(look(&mut sync, other).len(), 1);
        assert_eq!(look(&mut sync, Look::Same), [News::Fresh("/a".into())]);
        assert_eq!(look(&mut sync, Look::Same), []);
        assert_eq!(look(&mut sync, Look::Pushed), [News::Fresh("/a".into())]);
    }

    #[test]
    fn a_kind_is_called_the_same_everywhere() {
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
