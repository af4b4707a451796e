//! A question about the newest recorded state of a VM, for a policy that it need not have.

use std::collections::BTreeMap;

use policy_contract::{Input, Spec};
use protocol::journal::Milli;
use protocol::time::{Span, Timestamp};

use super::policies::{PAST, feeds_of};
use super::{Item, Live, Replay, STEP_RANK};
use crate::core::feeds;
use crate::core::questions::{Surroundings, seconds};

/// A question about the newest recorded state of a VM.
#[derive(Debug, Clone, PartialEq)]
pub struct Latest {
    /// The question as it was built again.
    pub input: Input,
    /// Time of the question, seconds on the writer's clock.
    pub now: f64,
    /// Samples of the last hour by series, oldest first.
    pub past: BTreeMap<String, Vec<(f64, f64)>>,
}

impl Replay {
    /// The question to a policy about the newest state of a VM (`namespace/name`) among the records
    /// taken. `wall` is the calendar time of the clock's zero. `None` without such a VM, or
    /// without fresh metrics.
    #[must_use]
    pub fn latest(mut self, name: &str, spec: &Spec, wall: u64) -> Option<Latest> {
        let is_of_vm = |item: &Item| matches!(item, Item::Checkpoint(k) if k.name == name);
        let vms = std::mem::take(&mut self.vms);
        let found = vms
            .into_iter()
            .rfind(|(_, items)| items.iter().any(|(_, item)| is_of_vm(item)));
        let (_, mut items) = found?;
        items.sort_by_key(|(at, item)| (*at, item.rank()));
        let mut live: Option<Live> = None;
        let mut past: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for (at, item) in items {
            let now = Timestamp(at);
            let is_step = item.rank() == STEP_RANK;
            match (&mut live, &item) {
                (Some(live), Item::Bound(bound)) => live.policies.bound = Some((**bound).clone()),
                (Some(live), Item::Fed(values)) => {
                    for (series, value) in live.fed(now, spec, values) {
                        past.entry(series).or_default().push((seconds(now), value));
                    }
                }
                _ => {}
            }
            if item.rank() > STEP_RANK && !matches!(item, Item::Checkpoint(_)) {
                continue;
            }
            self.step(&mut live, now, item);
            let samples = live.as_ref().map(|live| &live.policies.samples);
            for (series, value) in samples.into_iter().flatten().filter(|_| is_step) {
                let of_series = past.entry(series.clone()).or_default();
                of_series.push((seconds(now), *value));
            }
        }
        let live = live?;
        let every = live.policies.bound.as_ref().map_or(0, |bound| bound.every);
        let around = Surroundings {
            spec,
            labels: &BTreeMap::new(),
            wall,
            feed_every: Span(every),
            vms: 1,
            starved: Milli(0),
        };
        let input = live
            .policies
            .memory
            .question(live.at, &live.core, &around)?;
        let now = seconds(live.at);
        let oldest = now - PAST.as_secs_f64();
        past.retain(|series, samples| {
            samples.retain(|(at, _)| *at > oldest);
            spec.has_series(series)
        });
        Some(Latest { input, now, past })
    }
}

impl Live {
    /// Takes values of feeds that the policy names too. Returns them by series.
    fn fed(
        &mut self,
        now: Timestamp,
        spec: &Spec,
        values: &[Option<f64>],
    ) -> BTreeMap<String, f64> {
        let policies = &mut self.policies;
        let sources = feeds_of(policies.bound.as_ref());
        let own = feeds::values_of(spec, sources, values);
        for (name, value) in &own {
            policies.memory.fed(now, name, *value);
        }
        feeds::samples_of(&own)
    }
}
