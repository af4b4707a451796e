//! Does a guest go now, or does it wait for a window?
//!
//! Critical goes, an unhealthy guest goes, an open window lets go, all else waits. Attempts that no
//! person ordered are 30 to 60 minutes apart in each guest, whatever wakes the engine.

use crate::hash;

/// Least time between two attempts that no person ordered, seconds.
pub const SPACING_SECONDS: u64 = 1800;
/// Share of the time that differs from guest to guest and from attempt to attempt. A pass of a
/// minute stays below an hour with it.
const SPREAD_SECONDS: u64 = 1740;
/// Time in which a guest has just begun: bringing it forward disturbs nobody, seconds.
pub const YOUNG_SECONDS: u64 = 600;

/// What the decision rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Inputs {
    /// The channel calls the version critical.
    pub is_critical: bool,
    /// The guest is unhealthy, or its program failed elsewhere.
    pub is_unhealthy: bool,
    /// A window is open, with time for a trial.
    pub is_open: bool,
}

/// Why a guest goes, or that it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// The version is critical.
    Critical,
    /// The guest is unhealthy.
    Unhealthy,
    /// A window is open.
    Window,
    /// Nothing lets it go.
    Wait,
}

/// What a guest does now, by urgency and windows.
#[must_use]
pub const fn decide(inputs: Inputs) -> Urgency {
    if inputs.is_critical {
        Urgency::Critical
    } else if inputs.is_unhealthy {
        Urgency::Unhealthy
    } else if inputs.is_open {
        Urgency::Window
    } else {
        Urgency::Wait
    }
}

/// Time from an attempt until the next one that no person ordered, seconds. `attempt` names the
/// attempt before, such as its token.
#[must_use]
pub fn spacing_seconds(guest: &str, attempt: &str) -> u64 {
    SPACING_SECONDS + hash::of(&["spacing", guest, attempt]) % (SPREAD_SECONDS + 1)
}

/// Whether a guest has just begun.
#[must_use]
pub fn is_young(uptime_seconds: Option<u64>) -> bool {
    uptime_seconds.is_some_and(|uptime| uptime < YOUNG_SECONDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: R18
    #[test]
    fn critical_goes_before_unhealthy_before_window() {
        let rows = [
            (false, false, false, Urgency::Wait),
            (false, false, true, Urgency::Window),
            (false, true, false, Urgency::Unhealthy),
            (false, true, true, Urgency::Unhealthy),
            (true, false, false, Urgency::Critical),
            (true, false, true, Urgency::Critical),
            (true, true, false, Urgency::Critical),
            (true, true, true, Urgency::Critical),
        ];
        for (is_critical, is_unhealthy, is_open, expected) in rows {
            let inputs = Inputs {
                is_critical,
                is_unhealthy,
                is_open,
            };
            assert_eq!(decide(inputs), expected, "{inputs:?}");
        }
    }

    /// A pass each minute looks at a guest whose program ends at once.
    ///
    /// Requirement: R16
    #[test]
    fn attempts_that_nobody_ordered_are_24_to_48_a_day() {
        for seed in 0_u32..1000 {
            let guest = format!("vm-{seed}");
            let (mut attempts, mut next) = (0_u32, 0_u64);
            for minute in 0_u64..24 * 60 {
                let second = minute * 60 + u64::from(seed % 60);
                if second >= next {
                    attempts += 1;
                    next = second + spacing_seconds(&guest, &attempts.to_string());
                }
            }
            assert!((24..=48).contains(&attempts), "{guest}: {attempts}");
        }
    }

    /// Requirement: R16
    #[test]
    fn attempts_of_guests_are_spread() {
        let times: std::collections::BTreeSet<u64> = (0..100)
            .map(|number| spacing_seconds(&format!("vm-{number}"), "1"))
            .collect();
        assert!(times.len() > 80, "{}", times.len());
    }
}
