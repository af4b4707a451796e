//! Record of the policy that decides.

use protocol::journal::{self, PolicyPart};
use protocol::time::Timestamp;

use crate::core::advice::{LastAdvice, PolicyState, ShrinkBucket};

pub(super) fn policy_record(state: &PolicyState) -> PolicyPart {
    let PolicyState {
        terms,
        asked_since,
        last,
        fault,
        has_fallen_back,
        bucket: ShrinkBucket { credit, at },
    } = *state;
    PolicyPart {
        asked: asked_since.0,
        credit,
        credited: at.0,
        fallen: has_fallen_back,
        fault: fault.map(|(since, kind)| (since.0, kind)),
        last: last.map(|last| journal::LastAdvice {
            at: last.at.0,
            cu: last.units,
        }),
        terms,
    }
}

pub(super) fn policy_of(part: &PolicyPart) -> PolicyState {
    PolicyState {
        terms: part.terms,
        asked_since: Timestamp(part.asked),
        last: part.last.map(|last| LastAdvice {
            at: Timestamp(last.at),
            units: last.cu,
        }),
        fault: part.fault.map(|(since, kind)| (Timestamp(since), kind)),
        has_fallen_back: part.fallen,
        bucket: ShrinkBucket {
            credit: part.credit,
            at: Timestamp(part.credited),
        },
    }
}
