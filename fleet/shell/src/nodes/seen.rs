//! The agent of a node, as the engine reads it.

use fleet_core::node::{AgentSigns, READY_SECONDS, trial};
use fleet_core::{Facts, Guest, Observed, PartFacts, Returned, is_open};
use protocol::fleet::TurnVerb;
use protocol::parts::{PartPhase, PartSource, PartState};
use protocol::time::WallTime;

use super::objects::AgentPod;
use super::page::AgentPage;
use crate::node::seconds_since;

/// What pod and page show of an agent.
pub(super) fn signs(
    pod: &AgentPod,
    page: Option<&AgentPage>,
    monitors_lost: u32,
    now: WallTime,
) -> AgentSigns {
    AgentSigns {
        age_seconds: pod.created.map_or(0, |created| seconds_since(created, now)),
        ready_seconds: pod.ready_since.map(|since| seconds_since(since, now)),
        ends: pod.ends,
        waits_for: pod.waits_for.clone(),
        version: page.and_then(|page| page.version.clone()),
        monitors_lost,
    }
}

/// Adds what was seen of the agent. It is on trial while its pod has the image of an open turn.
pub(super) fn observe(
    guest: &mut Guest,
    pod: &AgentPod,
    signs: &AgentSigns,
    page_answers: Option<bool>,
    trial_seconds: u64,
) {
    let turn = guest.turn.as_ref().filter(|turn| {
        let is_tried = turn.verb == TurnVerb::Try && turn.sha256 == pod.sha256;
        is_tried && is_open(Some(turn), guest.last.as_ref())
    });
    let (phase, left_s, fault) = match turn {
        Some(turn) => {
            let trial = trial(signs, &turn.version);
            let left = trial.left_seconds(trial_seconds);
            (PartPhase::Trial, left, trial.fault)
        }
        None => (PartPhase::Settled, 0, fault_of_settled(signs)),
    };
    let state = PartState {
        version: signs.version.clone().unwrap_or_default(),
        sha256: pod.sha256.clone(),
        from: PartSource::Image,
        phase,
        left_s,
        token: turn.map_or_else(String::new, |turn| turn.token.clone()),
        reason: String::new(),
        starts: signs.ends.saturating_add(1),
        resident_bytes: 0,
    };
    guest.facts = Facts {
        fault,
        page_answers,
        ..Facts::default()
    };
    guest.observed = Observed::Seen(PartFacts {
        state,
        returned: Returned::Ended,
    });
}

/// A pod that has just begun is unhealthy by its page alone.
fn fault_of_settled(signs: &AgentSigns) -> Option<String> {
    let is_late = signs.ready_seconds.is_none() && signs.age_seconds >= READY_SECONDS;
    let reason = signs.waits_for.as_deref().unwrap_or("no reason is known");
    is_late.then(|| format!("its pod is not ready: {reason}"))
}
