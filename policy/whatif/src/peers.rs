//! Rules of the modelled peers.

use agent::core::{DownscaleResponse, Refusal};
use protocol::time::{Span, Timestamp};
use protocol::units::{Bytes, Resources};

use crate::trace::Trace;

/// Part of its memory over which a guest's monitor requests growth.
pub(crate) const REQUEST_FRACTION: f64 = 0.85;
/// How long a recorded refusal holds for sizes up to the refused one, while the need is no smaller.
const REFUSAL_HOLDS: Span = Span::from_secs(600);
/// Memory that a monitor wants for each byte of need, and beside that.
const SHRINK_FACTOR: f64 = 1.15;
const SHRINK_SPARE: f64 = 104_857_600.0;
/// Time of a resize where none is recorded.
const UNKNOWN: Span = Span::from_secs(2);

/// Times from a patch until the guest has the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResizeTimes {
    pub(crate) up: Span,
    pub(crate) down: Span,
}

impl Default for ResizeTimes {
    fn default() -> Self {
        Self {
            up: UNKNOWN,
            down: UNKNOWN,
        }
    }
}

impl ResizeTimes {
    /// Medians of the recorded times; of `other` where there are none.
    pub(crate) fn of<'a>(traces: impl Iterator<Item = &'a Trace> + Clone, other: Self) -> Self {
        let up = median(traces.clone().flat_map(|trace| &trace.grew));
        let down = median(traces.flat_map(|trace| &trace.shrank));
        Self {
            up: up.unwrap_or(other.up),
            down: down.unwrap_or(other.down),
        }
    }
}

fn median<'a>(times: impl Iterator<Item = &'a Span>) -> Option<Span> {
    let mut sorted: Vec<Span> = times.copied().collect();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

/// A refusal of the record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refused {
    pub(crate) at: Timestamp,
    pub(crate) size: Resources,
    pub(crate) refusal: Refusal,
    /// Need at that time, bytes.
    pub(crate) need_bytes: f64,
}

/// Response of the monitor to a smaller size.
pub(crate) fn downscale(
    now: Timestamp,
    target: Resources,
    need_bytes: f64,
    recorded: &[Refused],
) -> DownscaleResponse {
    let holds = |one: &&Refused| {
        now.since(one.at) <= REFUSAL_HOLDS
            && target.mem <= one.size.mem
            && need_bytes >= one.need_bytes
    };
    if let Some(held) = recorded.iter().rev().find(holds) {
        return DownscaleResponse::Denied(held.refusal);
    }
    let wanted = need_bytes * SHRINK_FACTOR + SHRINK_SPARE;
    if wanted <= target.mem.0 as f64 {
        return DownscaleResponse::Allowed;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates"
    )]
    let mem = Bytes(wanted.ceil() as u64);
    DownscaleResponse::denied_below(Resources { mem, ..target })
}

/// Response of the scheduler to a request, where it permits no more than `limit`. It never takes
/// away what is in use.
pub(crate) fn permit(asked: Resources, using: Resources, limit: Option<Resources>) -> Resources {
    limit.map_or(asked, |limit| asked.field_min(limit.field_max(using)))
}
