//! Builds the questions to policies. A question holds what the core was fed, its last computation,
//! and what [`Memory`] kept. Driver and replay feed both the same events, so that a recorded
//! question can be built again.

use std::collections::BTreeMap;

use policy_contract::{
    Answer, Builtin, CONTRACT, Failing, Feed, Input, NodeLoad, Old, PermitCut, Reason, Refused,
    Scope, ShrinkRefused, Spec, Time, Unit, Vm, Votes, Want, WishSeen,
};
use protocol::journal::{Answered, Milli};
use protocol::monitor_v2::AskReason;
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;

use super::event::{DownscaleResponse, Event};
use super::machine::Core;
use super::units::units_in;

/// Age up to which refusals and upscale requests are part of a question.
const REMEMBERED: Span = Span::from_secs(3600);
/// Time that an upscale request after a kill counts as a failure.
const OOM_LASTS: Span = Span::from_secs(600);
/// Periods without a value after which a feed is silent.
const SILENT_PERIODS: u64 = 3;
/// Before the name of a feed in the list of failures.
const FEED_SILENT: &str = "feed_silent:";
/// Reason of an upscale request without details.
const UNSPECIFIED: &str = "unspecified";

/// What questions to one version need beyond the core's state. It begins with the past of the
/// version, and both stay with it when it gets another role.
#[derive(Debug, Clone)]
pub struct Memory {
    began: Timestamp,
    /// Newest value of each feed, by its name.
    feeds: BTreeMap<String, (Timestamp, f64)>,
    /// Time, request, and what the permit was below it.
    permit: Option<(Timestamp, Resources, Resources)>,
    shrink: Option<(Timestamp, Resources, Option<Resources>)>,
    wish: Option<(Timestamp, &'static str)>,
    oom: Option<Timestamp>,
    monitor_absent: Option<Timestamp>,
    old: Option<(Timestamp, Option<u32>, String)>,
}

/// The part of a question that neither core nor memory holds.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    /// The version that is asked.
    pub spec: &'a Spec,
    /// Labels of the VM.
    pub labels: &'a BTreeMap<String, String>,
    /// Calendar time of the clock's zero, microseconds since 1970.
    pub wall: u64,
    /// Time between two reads of the feeds.
    pub feed_every: Span,
    /// Number of VMs on the node.
    pub vms: u32,
    /// Units that other VMs requested within 5 s and were not permitted.
    pub starved: Milli,
}

impl Surroundings<'_> {
    /// Age from which a value of a feed is not given any more.
    fn silence(&self) -> Span {
        Span(self.feed_every.0.saturating_mul(SILENT_PERIODS))
    }
}

impl Memory {
    /// Memory that begins now.
    #[must_use]
    pub fn new(now: Timestamp, core: &Core) -> Self {
        Self {
            began: now,
            feeds: BTreeMap::new(),
            permit: None,
            shrink: None,
            wish: None,
            oom: None,
            monitor_absent: core.monitor.approved.is_none().then_some(now),
            old: None,
        }
    }

    /// Takes an event before the core handles it.
    pub fn event(&mut self, now: Timestamp, event: &Event, core: &Core) {
        match event {
            Event::MonitorActive => self.monitor_absent = None,
            Event::MonitorReset => self.monitor_absent = self.monitor_absent.or(Some(now)),
            Event::MonitorUpscaleRequested(request) => {
                let reason = request.reason.map_or(UNSPECIFIED, AskReason::label);
                self.wish = Some((now, reason));
                if request.reason == Some(AskReason::OomEvent) {
                    self.oom = Some(now);
                }
            }
            Event::PermitDone(id, Ok(response)) if core.scheduler.ongoing == Some(*id) => {
                let asked = core.last_request().unwrap_or_default();
                if response.permit.has_field_below(asked) {
                    self.permit = Some((now, asked, asked.saturating_sub(response.permit)));
                }
            }
            Event::MonitorDownscaleDone(id, Ok(DownscaleResponse::Denied(refusal))) => {
                if let Some(ongoing) = core.monitor.ongoing.filter(|ongoing| ongoing.id == *id) {
                    self.shrink = Some((now, ongoing.resources, refusal.smallest));
                }
            }
            _ => {}
        }
    }

    /// Takes a value of a feed.
    pub fn fed(&mut self, now: Timestamp, name: &str, value: f64) {
        self.feeds.insert(name.to_owned(), (now, value));
    }

    /// Takes an accepted answer.
    pub fn accepted(&mut self, now: Timestamp, cu: Option<u32>, reason: &str) {
        self.old = Some((now, cu, reason.to_owned()));
    }

    /// The question after the step at `now`. `None` without fresh metrics, because then the size is
    /// held anyway.
    #[must_use]
    pub fn question(
        &self,
        now: Timestamp,
        core: &Core,
        around: &Surroundings<'_>,
    ) -> Option<Input> {
        let decision = &core.last_evaluation()?.decision;
        if !decision.has_all_metrics {
            return None;
        }
        let unit = core.config.compute_unit;
        let units = |size: Resources| units_in(size, unit);
        let using = core.using();
        let vm = core.vm();
        let votes = decision.votes;
        Some(Input {
            v: CONTRACT,
            scope: Scope::Vm,
            params: around.spec.params.clone(),
            time: Time::of_unix_micros(around.wall.saturating_add(now.0)),
            unit: Unit {
                cpu_m: f64::from(unit.cpu.0),
                mem_bytes: unit.mem.0 as f64,
            },
            vm: Vm {
                name: vm.name.clone(),
                namespace: vm.namespace.clone(),
                labels: around.labels.clone(),
                min_cu: units(vm.min()),
                max_cu: units(vm.max()),
                use_cu: units(using),
                cpu_m: f64::from(using.cpu.0),
                mem_bytes: using.mem.0 as f64,
                permit_cu: core.permit().map(units),
                mode: vm.config.scaling.mode,
            },
            builtin: Builtin {
                cu: decision.goal_units,
                votes: Votes {
                    cpu: finite(votes.cpu),
                    memory: finite(votes.memory),
                    working_set: finite(votes.working_set),
                    monitor_estimate: finite(votes.monitor_estimate),
                },
            },
            old: self.old_answer(now),
            feeds: self.fresh_feeds(now, around),
            refused: self.refused(now, &units),
            wish: recent(now, self.wish, |(at, _)| *at).map(|(at, reason)| WishSeen {
                reason: reason.to_owned(),
                age_s: age(now, at),
            }),
            failing: self.failing(now, around),
            node: NodeLoad {
                vms: around.vms,
                starved_cu: around.starved.units(),
            },
        })
    }

    fn old_answer(&self, now: Timestamp) -> Option<Old> {
        let (at, cu, reason) = self.old.as_ref()?;
        Some(Old {
            cu: *cu,
            reason: reason.clone(),
            age_s: age(now, *at),
        })
    }

    fn refused(&self, now: Timestamp, units: &impl Fn(Resources) -> f64) -> Refused {
        Refused {
            permit: recent(now, self.permit, |(at, ..)| *at).map(|(at, asked, missing)| {
                PermitCut {
                    asked_cu: units(asked),
                    got_cu: units(asked) - units(missing),
                    age_s: age(now, at),
                }
            }),
            shrink: recent(now, self.shrink, |(at, ..)| *at).map(|(at, asked, smallest)| {
                ShrinkRefused {
                    asked_cu: units(asked),
                    smallest_cu: smallest.map(units),
                    age_s: age(now, at),
                }
            }),
        }
    }

    /// Values of feeds that are not silent.
    fn fresh_feeds(&self, now: Timestamp, around: &Surroundings<'_>) -> BTreeMap<String, Feed> {
        let names = around.spec.feeds.iter().map(|feed| &feed.name);
        names
            .filter_map(|name| {
                let (at, value) = *self.feeds.get(name)?;
                let age_s = age(now, at);
                let is_fresh = now.since(at) < around.silence();
                is_fresh.then(|| (name.clone(), Feed { value, age_s }))
            })
            .collect()
    }

    /// Feeds without a value for some periods, by name, with the time of their last value.
    fn silent_feeds(&self, now: Timestamp, around: &Surroundings<'_>) -> Vec<(String, Timestamp)> {
        let last = |name: &String| self.feeds.get(name).map_or(self.began, |(at, _)| *at);
        let names = around.spec.feeds.iter().map(|feed| &feed.name);
        let mut silent: Vec<(String, Timestamp)> = names
            .map(|name| (format!("{FEED_SILENT}{name}"), last(name)))
            .filter(|(_, at)| now.since(*at) >= around.silence())
            .collect();
        silent.sort();
        silent
    }

    fn failing(&self, now: Timestamp, around: &Surroundings<'_>) -> Vec<Failing> {
        // A replay that begins in the middle of a journal learns nothing older than an hour.
        let since = |at: Timestamp| age(now, at).min(REMEMBERED.as_secs_f64());
        let failing = |kind: &str, at: Timestamp| Failing {
            kind: kind.to_owned(),
            since_s: since(at),
        };
        let oom = self.oom.filter(|at| now.since(*at) < OOM_LASTS);
        let absent = self.monitor_absent.map(|at| failing("monitor_absent", at));
        let silent = self.silent_feeds(now, around).into_iter();
        silent
            .map(|(kind, at)| failing(&kind, at))
            .chain(absent)
            .chain(oom.map(|at| failing("oom", at)))
            .collect()
    }
}

fn recent<T>(now: Timestamp, kept: Option<T>, at: impl Fn(&T) -> Timestamp) -> Option<T> {
    kept.filter(|one| now.since(at(one)) < REMEMBERED)
}

fn age(now: Timestamp, at: Timestamp) -> f64 {
    now.since(at).as_secs_f64()
}

/// JSON has no spelling for a vote that is no number.
fn finite(vote: Option<f64>) -> Option<f64> {
    vote.filter(|vote| vote.is_finite())
}

/// Time on the clock of the past, seconds.
#[must_use]
pub fn seconds(at: Timestamp) -> f64 {
    at.0 as f64 / 1e6
}

/// Whether a policy is asked about this event soon, and not with the next one. A permit that was
/// cut is in [`refused_units`].
#[must_use]
pub fn is_news(event: &Event) -> bool {
    matches!(
        event,
        Event::SystemMetrics(_)
            | Event::LfcMetrics(_)
            | Event::VmUpdated(_)
            | Event::MonitorActive
            | Event::MonitorReset
            | Event::MonitorUpscaleRequested(_)
            | Event::MonitorDownscaleDone(_, Ok(DownscaleResponse::Denied(_)))
    )
}

/// Samples of an event, by series, in the single precision of the past. Empty for other events than
/// metrics.
#[must_use]
pub fn samples(event: &Event) -> BTreeMap<String, f64> {
    let named: Vec<(&str, Option<f64>)> = match event {
        Event::SystemMetrics(system) => vec![
            ("load1", Some(system.load1)),
            ("load5", Some(system.load5)),
            ("used", Some(system.memory_usage_bytes)),
            ("cached", Some(system.memory_cached_bytes)),
            ("estimate", system.signals.estimate_bytes),
            ("pressure", system.signals.pressure_percent),
        ],
        Event::LfcMetrics(lfc) => {
            vec![
                ("lfc_hits", Some(lfc.hits)),
                ("lfc_misses", Some(lfc.misses)),
            ]
        }
        _ => Vec::new(),
    };
    named
        .into_iter()
        .filter_map(|(name, value)| {
            #[expect(clippy::cast_possible_truncation, reason = "infinity is left out")]
            let single = value? as f32;
            Some((name.to_owned(), finite(Some(f64::from(single)))?))
        })
        .collect()
}

/// The `P` record's words of an answer.
#[must_use]
pub fn answered(record: Answered, answer: &Answer) -> Answered {
    Answered {
        cu: match answer.want {
            Want::Units(units) => Some(units),
            Want::Hold => None,
        },
        hold: answer.want == Want::Hold,
        fault: None,
        note: answer.note.as_ref().map(|note| note.as_str().to_owned()),
        r: Some(Reason::as_str(&answer.reason).to_owned()),
        votes: answer
            .votes
            .iter()
            .map(|vote| (vote.name.clone(), vote.value))
            .collect(),
        ..record
    }
}

/// Units by which the end of a permit request stays below the request. `None` for other events.
#[must_use]
pub fn refused_units(event: &Event, core: &Core) -> Option<Milli> {
    let Event::PermitDone(id, Ok(response)) = event else {
        return None;
    };
    if core.scheduler.ongoing != Some(*id) {
        return None;
    }
    let asked = core.last_request().unwrap_or_default();
    let unit = core.config.compute_unit;
    let missing = asked.saturating_sub(response.permit);
    Some(Milli::of(units_in(missing, unit)))
}

/// Whether a size of `units` is smaller than the one in use.
#[must_use]
pub fn is_shrink(core: &Core, units: u32) -> bool {
    let size = core.config.compute_unit.saturating_mul(units);
    core.using().has_field_above(size)
}

#[cfg(test)]
mod tests {
    use super::super::world::core;
    use super::*;

    #[test]
    fn cut_of_one_resource_shows_where_the_other_was_permitted_in_full() {
        let core = core();
        let unit = core.config.compute_unit;
        let asked = unit.saturating_mul(4);
        let permit = Resources {
            cpu: unit.saturating_mul(2).cpu,
            ..asked
        };
        let mut memory = Memory::new(Timestamp(0), &core);
        memory.permit = Some((Timestamp(0), asked, asked.saturating_sub(permit)));
        let refused = memory.refused(Timestamp(0), &|size| units_in(size, unit));
        let cut = refused.permit.expect("it is of now");
        assert_eq!((cut.asked_cu, cut.got_cu), (4.0, 2.0));
    }
}
