//! The end of a turn, and the record of it.

use protocol::fleet::{InstancePart, TurnEnd, TurnResult, TurnVerb};
use protocol::parts::{PartPhase, PartSource};
use protocol::time::WallTime;

use crate::cause::{EndCause, Why};
use crate::proof::health;
use crate::world::{Guest, Observed};

/// End of a turn.
#[derive(Debug, Clone)]
pub(in crate::engine) struct Ending {
    pub(in crate::engine) result: TurnResult,
    pub(in crate::engine) why: Why,
}

impl Ending {
    pub(super) fn new(result: TurnResult, cause: EndCause, text: impl Into<String>) -> Self {
        let why = Why::new(cause, text);
        Self { result, why }
    }

    pub(super) fn kept() -> Self {
        Self::new(TurnResult::Good, EndCause::Kept, "")
    }
}

/// State of the part with the end of its turn.
pub(in crate::engine) fn ended_part(
    guest: &Guest,
    ending: Ending,
    at: WallTime,
) -> Option<InstancePart> {
    let result = ending.result;
    let turn = guest.turn.as_ref()?;
    let seen = match &guest.observed {
        Observed::Seen(part) => Some(&part.state),
        _ => None,
    };
    let is_good = result == TurnResult::Good;
    let is_brought = is_good && turn.verb == TurnVerb::Try;
    let text = |of_turn: &String, seen: Option<&String>| {
        let shown = if is_brought { Some(of_turn) } else { seen };
        shown.cloned().unwrap_or_default()
    };
    Some(InstancePart {
        version: text(&turn.version, seen.map(|part| &part.version)),
        sha256: text(&turn.sha256, seen.map(|part| &part.sha256)),
        from: seen.map_or(PartSource::Image, |part| part.from),
        phase: match seen.map(|part| part.phase) {
            _ if is_good => PartPhase::Settled,
            // It was taken back since the report.
            Some(PartPhase::Trial) | None => PartPhase::Back,
            Some(phase) => phase,
        },
        healthy: is_good || health(guest) == Some(true),
        last: TurnEnd {
            token: turn.token.clone(),
            result,
            reason: ending.why.text,
            at,
        },
    })
}
