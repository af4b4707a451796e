//! The answers as text, for the agent's log.

use std::fmt;

use super::{Approval, Failure, Refusal};
use crate::core::figures::{Mib, change};
use crate::core::squeeze::{GaveUp, Squeezed};
use crate::core::zones::Zones;

impl fmt::Display for Approval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotWatched => f.write_str("no memory is watched"),
            Self::Fits {
                watched,
                was,
                threshold,
                total,
            } => {
                write!(f, "{} set ", watched.noun())?;
                change(f, *was, *threshold)?;
                write!(f, ", for a new total of {}", Mib(*total))
            }
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(failure) => failure.fmt(f),
            Self::TooFewSamples { have, need } => {
                write!(f, "not enough memory samples yet: have {have}, need {need}")
            }
            Self::RecentPeak { threshold, peak } => write!(
                f,
                "memory threshold would be too low: {} (new threshold) < {} (in use a moment ago)",
                Mib(*threshold),
                Mib(*peak)
            ),
            Self::Swapped {
                threshold,
                in_memory,
                swap,
                buffer,
            } => write!(
                f,
                "memory threshold would be too low: {} (new threshold) < {} (in memory) + {} (in swap) + {} (buffer for a shrink)",
                Mib(*threshold),
                Mib(*in_memory),
                Mib(*swap),
                Mib(*buffer)
            ),
            Self::Pressure { some_permille } => write!(
                f,
                "tasks waited for memory in {}.{} % of the last ten seconds",
                some_permille / 10,
                some_permille % 10
            ),
            Self::NotMovable {
                by,
                can_give,
                zones: Zones {
                    movable, others, ..
                },
                ..
            } => write!(
                f,
                "no more than {} can be given back now, {} are asked for: of {} movable {} are free and {} page cache, elsewhere {} and {}",
                Mib(*can_give),
                Mib(*by),
                Mib(movable.managed),
                Mib(movable.free),
                Mib(movable.cache),
                Mib(others.free),
                Mib(others.cache)
            ),
            Self::Squeezed(squeezed) => squeezed.fmt(f),
            Self::Hook(veto) => write!(f, "hook {veto}"),
            Self::TooLow {
                threshold,
                in_use,
                buffer,
            } => write!(
                f,
                "memory threshold would be too low: {} (new threshold) < {} (in use) + {} (buffer for a shrink)",
                Mib(*threshold),
                Mib(*in_use),
                Mib(*buffer)
            ),
        }
    }
}

impl fmt::Display for Squeezed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "squeezed to fit into {}, ", Mib(self.goal))?;
        match self.reached {
            Some(reached) => write!(f, "the group still had {} ", Mib(reached))?,
            None => f.write_str("the group did not answer ")?,
        }
        let waited = self.waited.as_millis();
        match self.why {
            GaveUp::Hurts => write!(f, "and its tasks had waited {waited} ms for memory"),
            GaveUp::TooSlow => write!(f, "when the time was over ({waited} ms of waiting)"),
            GaveUp::Stuck => write!(f, "and would give no more ({waited} ms of waiting)"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale { age } => {
                write!(f, "the newest memory sample is {} ms old", age.as_millis())
            }
            Self::FileCache { detail } => write!(f, "could not set the file cache: {detail}"),
            Self::Busy { waiting } => write!(f, "{waiting} requests are waiting already"),
        }
    }
}
