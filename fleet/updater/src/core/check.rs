//! What does the frequent check do? It ends the wait for a window, and installs nothing.

use fleet_core::decide::{Inputs, Urgency, decide};
use semver::Version;

/// What a check rests on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckInputs {
    /// Version of the channel. `None` if it could not be read.
    pub wanted: Option<Version>,
    /// Version of the installed package. `None` without one.
    pub installed: Option<Version>,
    /// Whether the channel calls its version critical.
    pub is_critical: bool,
    /// Whether a schedule holds the timer of upgrades back.
    pub has_schedule: bool,
    /// Whether the file of the schedule is there. It goes when the monitor ends.
    pub has_source: bool,
}

/// Whether the schedule is removed, so that the next upgrade is at most half an hour away.
///
/// A critical version waits for no window (R18, R31). A schedule without its file is left over from
/// a monitor that ended.
#[must_use]
pub fn ends_wait(inputs: &CheckInputs) -> bool {
    if !inputs.has_source {
        return inputs.has_schedule;
    }
    let Some(wanted) = &inputs.wanted else {
        return false;
    };
    let urgency = decide(Inputs {
        is_critical: inputs.is_critical,
        ..Inputs::default()
    });
    inputs.has_schedule && inputs.installed.as_ref() != Some(wanted) && urgency == Urgency::Critical
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: R31
    #[test]
    fn check_ends_wait_for_another_critical_version_alone() {
        let old = || Some(Version::new(1, 2, 3));
        let new = || Some(Version::new(1, 2, 4));
        let rows = [
            (new(), old(), true, true, true),
            (old(), new(), true, true, true),
            (new(), None, true, true, true),
            (new(), old(), true, false, false),
            (new(), old(), false, true, false),
            (old(), old(), true, true, false),
            (None, old(), true, true, false),
        ];
        for (wanted, installed, is_critical, has_schedule, ends) in rows {
            let inputs = CheckInputs {
                wanted,
                installed,
                is_critical,
                has_schedule,
                has_source: true,
            };
            assert_eq!(ends_wait(&inputs), ends, "{inputs:?}");
        }
    }

    /// Requirement: R29
    #[test]
    fn check_removes_a_schedule_without_its_file() {
        for has_schedule in [true, false] {
            let inputs = CheckInputs {
                wanted: None,
                installed: None,
                is_critical: false,
                has_schedule,
                has_source: false,
            };
            assert_eq!(ends_wait(&inputs), has_schedule);
        }
    }
}
