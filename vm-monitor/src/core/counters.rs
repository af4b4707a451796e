//! What the monitor has done since it started, as plain numbers. Rendered by the shell, never used
//! for decisions.

use std::collections::BTreeMap;

use protocol::monitor_v2::RefusalReason;
use serde::Serialize;

use super::growth_request::AskReason;
use super::handshake::HandshakeFailure;

/// A counter per label value. All the values are known beforehand, so that each series exists from
/// the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Family(BTreeMap<&'static str, u64>);

impl Family {
    fn of<I: IntoIterator<Item = &'static str>>(labels: I) -> Self {
        Self(labels.into_iter().map(|label| (label, 0)).collect())
    }

    /// One more of these.
    pub fn add(&mut self, label: &'static str) {
        let count = self.0.entry(label).or_insert(0);
        *count = count.saturating_add(1);
    }

    /// The count of one label, 0 if it is unknown.
    #[must_use]
    pub fn get(&self, label: &str) -> u64 {
        self.0.get(label).copied().unwrap_or(0)
    }

    /// Label and count, in the labels' order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(label, count)| (*label, *count))
    }
}

/// Every counter of the core.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Agents that completed a handshake.
    pub connections: u64,
    /// Connections ended because a newer agent came.
    pub replaced: u64,
    /// Handshakes that failed, by reason.
    pub handshake_failures: Family,
    /// Frames from agents by type, bad ones by what was wrong.
    pub received: Family,
    /// Frames to agents, by type.
    pub sent: Family,
    /// Shrinks asked for, by outcome.
    pub downscales: Family,
    /// Growth told of, by outcome.
    pub upscales: Family,
    /// Looks at memory: at the bound alone (`probed`), and at the use, by outcome.
    pub samples: Family,
    /// Runs of the hooks, by outcome.
    pub hooks: Family,
    /// Soft squeezes, by how they ended.
    pub squeezes: Family,
    /// Shrinks refused, by reason.
    pub refusals: Family,
    /// Stalls the kernel told of, and those that were not for want of memory.
    pub stalls: Family,
    /// Requests for growth, by reason.
    pub asks: Family,
    /// Attempts to set the file cache, by outcome.
    pub file_cache_sets: Family,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            connections: 0,
            replaced: 0,
            handshake_failures: Family::of(HandshakeFailure::ALL.map(HandshakeFailure::label)),
            received: Family::of([
                "DownscaleRequest",
                "UpscaleNotification",
                "HealthCheck",
                "Capabilities",
                "Schedule",
                "InvalidMessage",
                "InternalError",
                "not_json",
                "not_a_frame",
                "unknown_type",
                "bad_content",
                "not_text",
                "too_large",
                "not_utf8",
            ]),
            sent: Family::of([
                "DownscaleResult",
                "UpscaleConfirmation",
                "UpscaleRequest",
                "HealthCheck",
                "Capabilities",
                "Metrics",
                "ScheduleRequest",
                "InvalidMessage",
                "InternalError",
            ]),
            downscales: Family::of(["approved", "refused", "failed"]),
            upscales: Family::of(["confirmed", "failed", "not_seen"]),
            samples: Family::of(["probed", "read", "failed"]),
            hooks: Family::of(["passed", "vetoed", "failed"]),
            squeezes: Family::of(["done", "hurts", "too_slow", "stuck", "impossible"]),
            refusals: Family::of(RefusalReason::ALL.map(RefusalReason::label)),
            stalls: Family::of([
                "cgroup_some",
                "cgroup_full",
                "machine_some",
                "machine_full",
                "not_for_want",
            ]),
            asks: Family::of(AskReason::ALL.map(AskReason::label)),
            file_cache_sets: Family::of(["set", "not_managed", "failed"]),
        }
    }
}
