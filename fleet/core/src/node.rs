//! How far is the trial of a node's agent, and what speaks against it?
//!
//! A guest's daemon times the trial of a part. Nobody on a node does so for its agent: the age of
//! the pod, and the time since it is ready, stand for it. A trial begins when the pod is ready.

use crate::proof::RECONNECT_SECONDS;

/// Time after its creation in which a pod becomes ready, seconds.
pub const READY_SECONDS: u64 = 60;
/// Time after its start in which an agent connects to the monitors of its node, seconds.
pub const CONNECT_SECONDS: u64 = 30;
/// Age of a trial that says nothing for or against the version so far, seconds.
const UNDECIDED_SECONDS: u64 = RECONNECT_SECONDS - 1;

/// The agent of a node, as its pod and its page show it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentSigns {
    /// Age of its pod.
    pub age_seconds: u64,
    /// Time since the pod is ready. `None` if it is not.
    pub ready_seconds: Option<u64>,
    /// Times at which the container of the pod ended.
    pub ends: u64,
    /// Why the container waits, if it does.
    pub waits_for: Option<String>,
    /// Version on its page. `None` if the page does not answer or names none.
    pub version: Option<String>,
    /// Monitors of its node that were connected before the turn, and are not now.
    pub monitors_lost: u32,
}

/// A trial of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentTrial {
    /// Age of the trial, as [`crate::proof::Trial`] has it.
    pub ran_seconds: u64,
    /// What speaks against the version.
    pub fault: Option<String>,
}

impl AgentTrial {
    fn at(ran_seconds: u64) -> Self {
        Self {
            ran_seconds,
            fault: None,
        }
    }

    fn faulty(ran_seconds: u64, fault: String) -> Self {
        Self {
            ran_seconds: ran_seconds.max(RECONNECT_SECONDS),
            fault: Some(fault),
        }
    }

    /// Rest of the trial for a proof of `trial_seconds`, as a guest's daemon reports it.
    #[must_use]
    pub const fn left_seconds(&self, trial_seconds: u64) -> u64 {
        (trial_seconds + crate::engine::MARGIN_SECONDS).saturating_sub(self.ran_seconds)
    }
}

/// Looks at an agent on trial that should run a version.
#[must_use]
pub fn trial(signs: &AgentSigns, version: &str) -> AgentTrial {
    if signs.ends > 0 {
        let text = format!("ends of its container: {}", signs.ends);
        return AgentTrial::faulty(signs.age_seconds, text);
    }
    let Some(ready) = signs.ready_seconds else {
        if signs.age_seconds < READY_SECONDS {
            return AgentTrial::at(0);
        }
        let reason = signs.waits_for.as_deref().unwrap_or("no reason is known");
        let text = format!("its pod is not ready: {reason}");
        return AgentTrial::faulty(signs.age_seconds, text);
    };
    if let Some(runs) = signs.version.as_deref().filter(|runs| *runs != version) {
        let text = format!("it calls itself version {runs}, not {version}");
        return AgentTrial::faulty(ready, text);
    }
    if signs.monitors_lost > 0 {
        let text = format!("{} monitors are not connected again", signs.monitors_lost);
        return match ready < CONNECT_SECONDS {
            true => AgentTrial::at(ready.min(UNDECIDED_SECONDS)),
            false => AgentTrial::faulty(ready, text),
        };
    }
    // A page that does not answer breaks the proof by itself after the first seconds.
    AgentTrial::at(ready)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: &str = "1.1.0";

    fn ready(seconds: u64) -> AgentSigns {
        AgentSigns {
            age_seconds: seconds + 3,
            ready_seconds: Some(seconds),
            version: Some(VERSION.to_owned()),
            ..AgentSigns::default()
        }
    }

    fn fault(signs: &AgentSigns) -> Option<String> {
        trial(signs, VERSION).fault
    }

    /// Requirement: R23
    #[test]
    fn trial_begins_when_the_pod_is_ready_and_lasts_its_time() {
        let waits = AgentSigns {
            age_seconds: READY_SECONDS - 1,
            ..AgentSigns::default()
        };
        assert_eq!(trial(&waits, VERSION), AgentTrial::at(0));
        for seconds in [0, 20, 700] {
            let trial = trial(&ready(seconds), VERSION);
            assert_eq!(trial, AgentTrial::at(seconds));
            assert_eq!(trial.left_seconds(60), 90_u64.saturating_sub(seconds));
        }
    }

    /// Requirement: R23
    #[test]
    fn pod_that_is_not_ready_in_time_speaks_against_its_version_with_the_reason() {
        let signs = AgentSigns {
            age_seconds: READY_SECONDS,
            waits_for: Some("ErrImagePull".to_owned()),
            ..AgentSigns::default()
        };
        let found = trial(&signs, VERSION);
        assert!(found.ran_seconds >= RECONNECT_SECONDS, "{found:?}");
        let text = found.fault.expect("a fault");
        assert_eq!(text, "its pod is not ready: ErrImagePull");
    }

    /// Requirement: R23
    #[test]
    fn container_that_ends_and_another_version_speak_against_it_at_once() {
        let ended = AgentSigns {
            ends: 1,
            ..ready(1)
        };
        assert!(fault(&ended).is_some_and(|text| text.ends_with("container: 1")));
        let other = AgentSigns {
            version: Some("1.0.0".to_owned()),
            ..ready(1)
        };
        let text = fault(&other).expect("a fault");
        assert_eq!(text, "it calls itself version 1.0.0, not 1.1.0");
        assert!(trial(&other, VERSION).ran_seconds >= RECONNECT_SECONDS);
    }

    /// Requirement: R23
    #[test]
    fn monitors_have_a_time_to_connect_again_and_then_count() {
        let lost = |seconds| AgentSigns {
            monitors_lost: 2,
            ..ready(seconds)
        };
        let early = trial(&lost(CONNECT_SECONDS - 1), VERSION);
        assert_eq!(early, AgentTrial::at(UNDECIDED_SECONDS));
        let text = fault(&lost(CONNECT_SECONDS)).expect("a fault");
        assert_eq!(text, "2 monitors are not connected again");
    }
}
