//! Whether a guest is healthy, and whether a program on trial is good, both seen from outside.

use protocol::parts::{PartPhase, PartState};
use protocol::time::WallTime;

use crate::cause::{EndCause, Why};
use crate::world::{Degradation, Facts, Guest, Observed};

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
        Observed::Seen(_) => is_well(&guest.facts),
        Observed::Silent => Some(false),
        Observed::Unmanaged(_) | Observed::Unreachable => None,
    }
}

/// An agent that is away for its own reasons says nothing about its guests.
fn is_well(facts: &Facts) -> Option<bool> {
    let is_faulty = facts.degraded.is_some() || facts.fault.is_some() || facts.check.is_some();
    if is_faulty || facts.page_answers == Some(false) {
        return Some(false);
    }
    match facts.agent_connected {
        Some(false) if facts.agent_is_new => None,
        connected => Some(connected != Some(false)),
    }
}

/// A program on trial.
#[derive(Debug, Clone, Copy)]
pub struct Trial<'a> {
    /// The part, as the guest's daemon reports it.
    pub part: &'a PartState,
    /// Digest of the program on trial.
    pub sha256: &'a str,
    /// Age of the trial, seconds.
    pub ran_seconds: u64,
    /// Time of the report.
    pub now: WallTime,
}

/// What a look at a program on trial has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// Nothing speaks against the program.
    Whole,
    /// Something does that the program has not caused. It must be over before the program is kept.
    Open(Why),
    /// The program is not good.
    Broken(Why),
}

/// Looks at a program on trial.
#[must_use]
pub fn prove(trial: &Trial<'_>, facts: &Facts) -> Proof {
    let resident = trial.part.resident_bytes;
    if resident > RESIDENT_BYTES {
        let text = format!("holds {resident} bytes of memory, above {RESIDENT_BYTES}");
        return Proof::Broken(Why::new(EndCause::Memory, text));
    }
    let ran_seconds = trial.ran_seconds;
    if ran_seconds < RECONNECT_SECONDS {
        return Proof::Whole;
    }
    let (sha256, runs) = (trial.sha256, &trial.part.sha256);
    // An order that was cut off can leave the former program running, in a trial that goes back.
    if runs != sha256 && !runs.is_empty() {
        let text = format!("runs {runs}, not {sha256}");
        return Proof::Open(Why::new(EndCause::Other, text));
    }
    let dated = |why: Why| {
        let text = format!("{} after {ran_seconds} s of the trial", why.text);
        Why { text, ..why }
    };
    if let Some(fault) = &facts.fault {
        return Proof::Broken(dated(Why::new(EndCause::Ended, fault)));
    }
    // A guest with it gets no turn, so it came in the trial.
    if let Some(check) = &facts.check {
        let text = format!("its health check failed ({check})");
        return Proof::Broken(dated(Why::new(EndCause::Other, text)));
    }
    if facts.page_answers == Some(false) {
        let text = "its metrics page does not answer";
        return Proof::Broken(dated(Why::new(EndCause::Page, text)));
    }
    let agent = (facts.agent_connected == Some(false))
        .then(|| dated(Why::new(EndCause::Agent, "its agent is not connected")));
    let agent = match agent {
        Some(why) if !facts.agent_is_new => return Proof::Broken(why),
        agent => agent,
    };
    let began = WallTime(trial.now.0.saturating_sub(micros(ran_seconds)));
    let is_of_trial = |it: &&Degradation| it.since.is_none_or(|since| since >= began);
    // A condition from before the trial is the former program's.
    match facts.degraded.as_ref().filter(is_of_trial) {
        // The host and the guest's kernel resize a VM, and the monitor only asks for it.
        Some(it) if it.in_resize => Proof::Open(dated(degraded(it))),
        Some(it) => Proof::Broken(dated(degraded(it))),
        None => agent.map_or(Proof::Whole, Proof::Open),
    }
}

fn micros(seconds: u64) -> i64 {
    i64::try_from(seconds.saturating_mul(1_000_000)).unwrap_or(i64::MAX)
}

fn degraded(it: &Degradation) -> Why {
    let text = format!("the VM is degraded ({})", it.message);
    Why::new(EndCause::Degraded, text)
}

#[cfg(test)]
mod tests {
    use protocol::parts::PartSource;

    use super::*;

    const NOW: WallTime = WallTime(1_000_000_000);

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

    fn proof(runs: &str, facts: &Facts, ran_seconds: u64) -> Proof {
        let trial = Trial {
            part: &part(runs),
            sha256: "new",
            ran_seconds,
            now: NOW,
        };
        prove(&trial, facts)
    }

    /// A VM that is degraded for some seconds.
    fn degraded_for(seconds: i64, in_resize: bool) -> Facts {
        let degraded = Degradation {
            message: "the runner does not answer".to_owned(),
            since: Some(WallTime(NOW.0 - seconds * 1_000_000)),
            in_resize,
        };
        Facts {
            degraded: Some(degraded),
            ..Facts::default()
        }
    }

    /// A driver that starts during a trial may look before the process has changed.
    ///
    /// Requirement: B38
    #[test]
    fn program_of_before_leaves_a_proof_open_after_its_first_seconds() {
        let facts = Facts::default();
        let old = |ran_seconds| proof("old", &facts, ran_seconds);
        assert_eq!(old(RECONNECT_SECONDS - 1), Proof::Whole);
        let why = Why::new(EndCause::Other, "runs old, not new");
        assert_eq!(old(RECONNECT_SECONDS), Proof::Open(why));
        assert_eq!(proof("new", &facts, 600), Proof::Whole);
    }

    #[test]
    fn vm_degraded_in_a_trial_speaks_against_it_with_its_message() {
        let text = "the VM is degraded (the runner does not answer) after 20 s of the trial";
        let why = Why::new(EndCause::Degraded, text);
        assert_eq!(
            proof("new", &degraded_for(5, false), 20),
            Proof::Broken(why)
        );
        let undated = Facts {
            degraded: Some(Degradation::default()),
            ..Facts::default()
        };
        assert!(matches!(proof("new", &undated, 20), Proof::Broken(_)));
    }

    /// Requirement: B26
    #[test]
    fn vm_degraded_before_a_trial_does_not_speak_against_it() {
        assert_eq!(proof("new", &degraded_for(21, false), 20), Proof::Whole);
        let mut deaf = degraded_for(21, false);
        deaf.agent_connected = Some(false);
        let why = Why::new(
            EndCause::Agent,
            "its agent is not connected after 20 s of the trial",
        );
        assert_eq!(proof("new", &deaf, 20), Proof::Broken(why));
    }

    /// Requirement: B26
    #[test]
    fn agent_that_has_just_begun_leaves_proof_and_health_open() {
        let mut facts = Facts {
            agent_connected: Some(false),
            agent_is_new: true,
            ..Facts::default()
        };
        let why = Why::new(
            EndCause::Agent,
            "its agent is not connected after 20 s of the trial",
        );
        assert_eq!(proof("new", &facts, 20), Proof::Open(why.clone()));
        assert_eq!(is_well(&facts), None);
        facts.agent_is_new = false;
        assert_eq!(proof("new", &facts, 20), Proof::Broken(why));
        assert_eq!(is_well(&facts), Some(false));
        facts.agent_connected = Some(true);
        facts.agent_is_new = true;
        assert_eq!(proof("new", &facts, 20), Proof::Whole);
        assert_eq!(is_well(&facts), Some(true));
        facts.page_answers = Some(false);
        assert!(matches!(proof("new", &facts, 20), Proof::Broken(_)));
        assert_eq!(is_well(&facts), Some(false));
    }

    /// Requirement: B51
    #[test]
    fn health_check_of_the_operator_is_part_of_the_proof() {
        let facts = Facts {
            check: Some("replication stands still".to_owned()),
            ..Facts::default()
        };
        let text = "its health check failed (replication stands still) after 20 s of the trial";
        let why = Why::new(EndCause::Other, text);
        assert_eq!(proof("new", &facts, 20), Proof::Broken(why));
        assert_eq!(is_well(&facts), Some(false));
    }

    /// Requirement: B26
    #[test]
    fn resize_that_degrades_a_vm_leaves_the_proof_open() {
        let text = "the VM is degraded (the runner does not answer) after 20 s of the trial";
        let why = Why::new(EndCause::Degraded, text);
        assert_eq!(proof("new", &degraded_for(5, true), 20), Proof::Open(why));
    }
}
