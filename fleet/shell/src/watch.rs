//! What guests go through while a judge watches them, by their monitors' pages and their resizes.
//!
//! * A look each ten seconds, at the guests that the deployment changed and at its control group.
//! * A page without figures gives no sample: no data is unknown.
//! * A new turn and a new deployment begin a new window.

use std::collections::BTreeMap;

use fleet_core::judge::{Readings, Sample};
use fleet_core::permit::Gate;
use fleet_core::{Guest, Now, Observed, watched};
use protocol::exposition::GuestFigures;
use protocol::time::{Span, Timestamp, WallTime};
use protocol::trace::{Stage, StageRecord};

use crate::look::Looked;

/// Between two samples of a guest.
const SAMPLE_EVERY: Span = Span::from_secs(10);
/// Time after a request for growth in which a guest gets no turn.
const REST_AFTER_REQUEST: Span = Span::from_secs(10);
/// Share of ten seconds in which tasks waited for memory, from which a guest gets no turn.
const PRESSURE_PERCENT: u64 = 10;

/// Figures of a guest that are no part of the world.
#[derive(Debug, Clone, Default)]
pub(crate) struct Felt {
    /// `namespace/name` of the VM.
    pub(crate) vm: String,
    pub(crate) figures: Option<GuestFigures>,
    /// Whether the VM could have grown on its node.
    pub(crate) node_has_room: bool,
    pub(crate) has_agent: bool,
}

/// Readings of the guests of one environment.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    windows: BTreeMap<String, Window>,
    requests: BTreeMap<String, Requests>,
}

/// Growth requests of a guest, and when they grew in number last.
#[derive(Debug, Clone, Copy)]
struct Requests {
    count: u64,
    grew: Option<Timestamp>,
}

/// Readings since a turn or a deployment.
#[derive(Debug, Default)]
struct Window {
    subject: String,
    since: WallTime,
    sampled: Option<Timestamp>,
    /// Newest resize that is counted.
    resize: i64,
    readings: Readings,
}

impl Watch {
    /// Adds readings and gates to a world that was read now.
    pub(crate) fn add(&mut self, now: Now, looked: &mut Looked, stages: &[StageRecord]) {
        self.close_gates(now.monotonic, looked);
        let lock = looked.world.environment.status.lock.as_ref();
        let deployment = lock.map_or_else(String::new, |lock| lock.deployment.clone());
        let watched = watched(&looked.world);
        self.windows.retain(|name, _| watched.contains(name));
        for name in watched {
            let Some(guest) = looked.world.guests.get_mut(&name) else {
                continue;
            };
            let felt = looked.felt.get(&name).cloned().unwrap_or_default();
            let token = guest.turn.as_ref().map_or("", |turn| &turn.token);
            let subject = format!("{deployment} {token}");
            let window = self.windows.entry(name).or_default();
            if window.subject != subject {
                *window = Window {
                    subject,
                    since: now.wall,
                    ..Window::default()
                };
            }
            window.add(now.monotonic, guest, &felt, stages);
            guest.readings = window.sampled.map(|_| window.readings.clone());
        }
    }

    /// Scaling comes first: a guest short of memory or asking for more gets no turn.
    fn close_gates(&mut self, now: Timestamp, looked: &mut Looked) {
        self.requests
            .retain(|name, _| looked.felt.contains_key(name));
        for (name, felt) in &looked.felt {
            let Some(figures) = felt.figures else {
                continue;
            };
            let count = figures.upscale_requests;
            let requests = self
                .requests
                .entry(name.clone())
                .or_insert(Requests { count, grew: None });
            if count > requests.count {
                requests.grew = Some(now);
            }
            requests.count = count;
            let asks = requests
                .grew
                .is_some_and(|grew| now.since(grew) < REST_AFTER_REQUEST);
            if (asks || figures.waiting_percent >= PRESSURE_PERCENT)
                && let Some(guest) = looked.world.guests.get_mut(name)
            {
                guest.gate = guest.gate.or(Some(Gate::Pressure));
            }
        }
    }
}

impl Window {
    fn add(&mut self, now: Timestamp, guest: &Guest, felt: &Felt, stages: &[StageRecord]) {
        let is_due = self
            .sampled
            .is_none_or(|sampled| now.since(sampled) >= SAMPLE_EVERY);
        let (true, Some(figures), Observed::Seen(part)) = (is_due, felt.figures, &guest.observed)
        else {
            return;
        };
        self.sampled = Some(now);
        self.readings.add(Sample {
            at: now.0 / 1_000_000,
            oom_kills: figures.oom_kills,
            refusals: figures.refusals,
            full_seconds: figures.full_seconds,
            starts: part.state.starts,
            node_has_room: felt.node_has_room,
            agent_connected: figures.agent_connected || !felt.has_agent,
            resident_bytes: part.state.resident_bytes.max(figures.resident_bytes),
        });
        for (revision, millis) in resizes(stages, &felt.vm, self.resize, self.since) {
            self.resize = self.resize.max(revision);
            self.readings.resize_millis.push(millis);
        }
    }
}

/// Finished resizes of a VM above a revision that began after a time: from the patch of the size
/// to the status that has it, milliseconds.
fn resizes(stages: &[StageRecord], vm: &str, above: i64, since: WallTime) -> Vec<(i64, u32)> {
    let mut spans: BTreeMap<i64, (Option<i64>, Option<i64>)> = BTreeMap::new();
    let of_vm = stages
        .iter()
        .filter(|one| one.trace.vm == vm && one.trace.revision > above);
    for one in of_vm {
        let (begun, ended) = spans.entry(one.trace.revision).or_default();
        match one.stage {
            Stage::Patch => *begun = begun.or(Some(one.start_unix_us)),
            Stage::Status => {
                let length = i64::try_from(one.duration_us).unwrap_or(i64::MAX);
                *ended = ended.or(Some(one.start_unix_us.saturating_add(length)));
            }
            _ => {}
        }
    }
    let finished = spans.into_iter().filter_map(|(revision, span)| {
        let (begun, ended) = (span.0?, span.1?);
        let millis = ended.saturating_sub(begun) / 1000;
        let is_new = begun >= since.0;
        is_new.then_some((revision, u32::try_from(millis.max(0)).unwrap_or(u32::MAX)))
    });
    finished.collect()
}

#[cfg(test)]
mod tests;
