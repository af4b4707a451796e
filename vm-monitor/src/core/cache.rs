//! What is known about the database's file cache, and what an attempt to set it means.

use std::fmt;

use protocol::units::Bytes;
use serde::Serialize;

use super::figures::change;

/// Whether the file cache is ours to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheMode {
    /// No: no connection string, or switched off.
    Off,
    /// If the database has the setting.
    Auto,
    /// Yes; without it we do not start.
    On,
}

/// A size that has been set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CacheChange {
    /// The size before.
    pub was: Option<Bytes>,
    /// The size now, after the database's own maximum.
    pub now: Bytes,
}

/// Why a size could not be set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum CacheFailure {
    /// The database answers, and has no such setting.
    #[error("the database has no setting {setting}")]
    NoSuchSetting {
        /// Setting from `--file-cache-setting` that the database does not have.
        setting: String,
    },
    /// The database does not answer.
    #[error("the database cannot be reached: {detail}")]
    Unreachable {
        /// What the connection said.
        detail: String,
    },
    /// The database refused a statement: missing rights, most likely.
    #[error("the database refused: {detail}")]
    Refused {
        /// What it said.
        detail: String,
    },
}

/// What is known about the file cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheState {
    /// The monitor never sets the cache: [`CacheMode::Off`].
    Off,
    /// Not tried yet.
    Unknown,
    /// Ours, and this big.
    Managed {
        /// The size last set.
        size: Bytes,
    },
    /// Tried, and there is nothing to manage for now. Tried again at each chance.
    NotManaged {
        /// Failure of the newest attempt, excused in [`CacheMode::Auto`].
        why: CacheFailure,
    },
    /// Ours, but the last attempt failed.
    Failing {
        /// Failure of the newest attempt. A request that waited for it was answered
        /// `InternalError`.
        why: CacheFailure,
    },
}

/// What an attempt came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheVerdict {
    /// The cache has its size.
    Set(CacheChange),
    /// There is no cache of ours; go on without.
    GoOn,
    /// What waited for it fails.
    Fail(CacheFailure),
}

impl CacheState {
    /// The state before anything was tried.
    #[must_use]
    pub const fn initial(mode: CacheMode) -> Self {
        match mode {
            CacheMode::Off => Self::Off,
            CacheMode::Auto | CacheMode::On => Self::Unknown,
        }
    }

    /// Whether there is, for all we know, no file cache of ours.
    #[must_use]
    pub const fn is_absent(&self) -> bool {
        matches!(self, Self::Off | Self::NotManaged { .. })
    }

    /// Takes in the outcome of an attempt.
    ///
    /// Once the setting has been seen, a database that does not answer is a failure: its cache may
    /// still be as large as before, so a shrink must not count on it.
    pub fn note(
        &mut self,
        mode: CacheMode,
        outcome: Result<CacheChange, CacheFailure>,
    ) -> CacheVerdict {
        let seen = matches!(self, Self::Managed { .. } | Self::Failing { .. });
        match outcome {
            Ok(change) => {
                *self = Self::Managed { size: change.now };
                CacheVerdict::Set(change)
            }
            Err(why) => {
                let excused = match &why {
                    CacheFailure::NoSuchSetting { .. } => true,
                    CacheFailure::Unreachable { .. } => !seen,
                    CacheFailure::Refused { .. } => false,
                };
                if mode == CacheMode::Auto && excused {
                    *self = Self::NotManaged { why };
                    CacheVerdict::GoOn
                } else {
                    *self = Self::Failing { why: why.clone() };
                    CacheVerdict::Fail(why)
                }
            }
        }
    }
}

impl fmt::Display for CacheChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("file cache limit set ")?;
        change(f, self.was, self.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreachable() -> CacheFailure {
        CacheFailure::Unreachable {
            detail: "refused".into(),
        }
    }

    fn absent() -> CacheFailure {
        CacheFailure::NoSuchSetting {
            setting: "neon.file_cache_size_limit".into(),
        }
    }

    const SET: CacheChange = CacheChange {
        was: None,
        now: Bytes::mib(1),
    };

    #[test]
    fn auto_goes_on_without_a_setting_or_a_database() {
        for why in [unreachable(), absent()] {
            let mut state = CacheState::initial(CacheMode::Auto);
            assert_eq!(
                state.note(CacheMode::Auto, Err(why.clone())),
                CacheVerdict::GoOn
            );
            assert_eq!(state, CacheState::NotManaged { why });
            assert!(state.is_absent());
        }
    }

    #[test]
    fn a_cache_that_was_seen_is_not_forgotten_when_the_database_is_away() {
        let mut state = CacheState::initial(CacheMode::Auto);
        assert_eq!(state.note(CacheMode::Auto, Ok(SET)), CacheVerdict::Set(SET));
        for _ in 0..2 {
            let verdict = state.note(CacheMode::Auto, Err(unreachable()));
            assert_eq!(verdict, CacheVerdict::Fail(unreachable()));
            assert!(!state.is_absent());
        }
        assert_eq!(
            state.note(CacheMode::Auto, Err(absent())),
            CacheVerdict::GoOn
        );
    }

    #[test]
    fn a_refusal_always_fails_and_on_excuses_nothing() {
        let refused = CacheFailure::Refused {
            detail: "permission denied".into(),
        };
        let mut state = CacheState::initial(CacheMode::Auto);
        assert!(matches!(
            state.note(CacheMode::Auto, Err(refused)),
            CacheVerdict::Fail(_)
        ));
        for why in [unreachable(), absent()] {
            let mut state = CacheState::initial(CacheMode::On);
            assert!(matches!(
                state.note(CacheMode::On, Err(why)),
                CacheVerdict::Fail(_)
            ));
        }
    }

    #[test]
    fn texts() {
        assert_eq!(SET.to_string(), "file cache limit set to 1 MiB");
        let change = CacheChange {
            was: Some(Bytes::mib(698)),
            now: Bytes::mib(232),
        };
        assert_eq!(
            change.to_string(),
            "file cache limit set from 698 MiB to 232 MiB"
        );
    }
}
