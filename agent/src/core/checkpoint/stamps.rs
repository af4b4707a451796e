//! Revisions and times as a checkpoint holds them.

use protocol::journal::Stamped;
use protocol::revision::Revision;
use protocol::time::Timestamp;

use crate::core::revision::StampedRevision;

pub(in crate::core) fn stamped(stamp: StampedRevision) -> Stamped {
    Stamped(stamp.revision.value, stamp.revision.flags, stamp.at.0)
}

pub(in crate::core) fn stamp_of(stamped: Stamped) -> StampedRevision {
    StampedRevision {
        revision: Revision {
            value: stamped.0,
            flags: stamped.1,
        },
        at: Timestamp(stamped.2),
    }
}

pub(super) fn micros(at: Option<Timestamp>) -> Option<u64> {
    at.map(|at| at.0)
}

pub(super) fn time(at: Option<u64>) -> Option<Timestamp> {
    at.map(Timestamp)
}
