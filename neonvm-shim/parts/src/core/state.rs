//! The state of a part, from its record, its files and its process.

use protocol::parts::{PartPhase, PartSource, PartState};

use super::record::Record;
use super::trial::{ReturnNote, Slot, Trial, source};

/// Files of a part at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sight {
    /// Program that the link `current` selects. `None` is the image's.
    pub current: Option<Slot>,
    /// Trial in progress.
    pub trial: Option<Trial>,
    /// Trial that ended badly and whose return is not finished.
    pub returning: Option<Trial>,
    /// Reason of the last return.
    pub note: Option<ReturnNote>,
}

/// The process of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Origin of its program.
    pub from: PartSource,
    /// SHA-256 of its program. Empty if unknown.
    pub sha256: String,
    /// Version that the program names. Empty if it names none.
    pub version: String,
    /// Starts since the guest's boot.
    pub starts: u64,
    /// Resident memory, bytes. Zero if it does not run.
    pub resident_bytes: u64,
}

/// Progress of a part's change.
#[must_use]
pub fn phase(record: &Record, sight: &Sight) -> PartPhase {
    if sight.trial.is_some() || sight.returning.is_some() {
        return PartPhase::Trial;
    }
    match &record.staged {
        None => PartPhase::Settled,
        // Kept, and the daemon ended before it recorded that.
        Some(staged) if sight.current == Some(staged.slot) => PartPhase::Settled,
        Some(staged) if staged.tried || is_noted(sight, &staged.token) => PartPhase::Back,
        Some(_) => PartPhase::Staged,
    }
}

/// Whether the last return was that of this token.
#[must_use]
pub fn is_noted(sight: &Sight, token: &str) -> bool {
    sight.note.as_ref().is_some_and(|note| note.token == token)
}

/// State of the part at this uptime. Between two starts of a kept program it is that program.
#[must_use]
pub fn state(record: &Record, sight: &Sight, running: &Running, uptime_s: u64) -> PartState {
    let phase = phase(record, sight);
    let is_between = running.sha256.is_empty() && phase != PartPhase::Trial;
    let next = sight.current.filter(|_| is_between);
    let from = next.map_or(running.from, |slot| source(Some(slot)));
    let slot = match from {
        PartSource::A => Some(Slot::A),
        PartSource::B => Some(Slot::B),
        PartSource::Image | PartSource::Package => None,
    };
    // The sender's word, if the file is the one that was sent.
    let brought = slot.and_then(|slot| record.programs.get(&slot));
    let brought = brought.filter(|one| next.is_some() || one.sha256 == running.sha256);
    let trial = sight.trial.as_ref();
    let reason = match phase {
        PartPhase::Back => sight.note.as_ref().map(|note| note.reason.clone()),
        _ => None,
    };
    let (version, sha256) = match brought {
        Some(one) => (&one.version, &one.sha256),
        None => (&running.version, &running.sha256),
    };
    PartState {
        version: version.clone(),
        sha256: sha256.clone(),
        from,
        phase,
        left_s: trial.map_or(0, |trial| trial.end_s.saturating_sub(uptime_s)),
        token: record.token.clone(),
        reason: reason.unwrap_or_default(),
        starts: running.starts,
        resident_bytes: running.resident_bytes,
    }
}
