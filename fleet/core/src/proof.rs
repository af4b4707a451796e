//! Whether a guest is healthy, and whether a program on trial is good, both seen from outside.

use protocol::parts::{PartPhase, PartState};

use crate::world::{Facts, Guest, Observed};

/// Time after the start of a trial in which agent and page may be away, and the process may still
/// run what it ran before, seconds. A daemon calls the part on trial before its process changes.
pub const RECONNECT_SECONDS: u64 = 15;
/// Most memory of a part's process.
const RESIDENT_BYTES: u64 = 16 << 20;

/// Whether a settled guest is healthy. `None` without figures.
#[must_use]
pub fn health(guest: &Guest) -> Option<bool> {
    match &guest.observed {
        Observed::Seen(part) if part.state.phase == PartPhase::Trial => None,
        Observed::Seen(_) => Some(trouble(&guest.facts).is_none()),
        Observed::Silent => Some(false),
        Observed::Unmanaged(_) | Observed::Unreachable => None,
    }
}

/// Why a program on trial is not good, with its figures. `None`: nothing speaks against it.
#[must_use]
pub fn broken(part: &PartState, facts: &Facts, sha256: &str, ran_seconds: u64) -> Option<String> {
    if part.resident_bytes > RESIDENT_BYTES {
        let resident = part.resident_bytes;
        return Some(format!(
            "holds {resident} bytes of memory, above {RESIDENT_BYTES}"
        ));
    }
    if ran_seconds < RECONNECT_SECONDS {
        return None;
    }
    if part.sha256 != sha256 && !part.sha256.is_empty() {
        return Some(format!("runs {}, not {sha256}", part.sha256));
    }
    trouble(facts).map(|trouble| format!("{trouble} after {ran_seconds} s of the trial"))
}

fn trouble(facts: &Facts) -> Option<String> {
    if let Some(message) = &facts.degraded {
        return Some(format!("the VM is degraded ({message})"));
    }
    let trouble = if facts.page_answers == Some(false) {
        Some("its metrics page does not answer")
    } else if facts.agent_connected == Some(false) {
        Some("its agent is not connected")
    } else {
        None
    };
    trouble.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use protocol::parts::PartSource;

    use super::*;

    fn part(sha256: &str) -> PartState {
        PartState {
            version: String::new(),
            sha256: sha256.to_owned(),
            from: PartSource::A,
            phase: PartPhase::Trial,
            left_s: 0,
            token: String::new(),
            reason: String::new(),
            starts: 1,
            resident_bytes: 0,
        }
    }

    /// A driver that starts during a trial may look before the process has changed.
    ///
    /// Requirement: B38
    #[test]
    fn program_of_before_speaks_against_a_trial_only_after_its_first_seconds() {
        let facts = Facts::default();
        let old = |ran_seconds| broken(&part("old"), &facts, "new", ran_seconds);
        assert_eq!(old(RECONNECT_SECONDS - 1), None);
        assert_eq!(old(RECONNECT_SECONDS), Some("runs old, not new".to_owned()));
        assert_eq!(broken(&part("new"), &facts, "new", 600), None);
    }

    #[test]
    fn degraded_vm_speaks_against_a_trial_with_its_message() {
        let facts = Facts {
            degraded: Some("the runner does not answer".to_owned()),
            ..Facts::default()
        };
        let reason = broken(&part("new"), &facts, "new", 20).expect("a reason");
        assert_eq!(
            reason,
            "the VM is degraded (the runner does not answer) after 20 s of the trial"
        );
    }
}
