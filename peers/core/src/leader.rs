//! The leader of a part: which machine it is, and when it may plan.

use std::collections::{BTreeMap, BTreeSet};

use protocol::core::Core;
use protocol::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};

use crate::claim::{Claim, MachineId};
use crate::divide::{Counts, Inventory, divide};
use crate::expected::Expected;
use crate::settings::{HoldReason, Quorum, Settings};

/// A leader plans at this pace.
const PLAN_EVERY: Span = Span::from_secs(10);
/// Longest wait for the machines that a new leader has asked. It plans without the silent ones.
const GATHER_WAIT: Span = Span::from_secs(5);
/// What ran on a machine that is silent counts for this time.
const UNKNOWN_STAYS: Span = Span::from_secs(60);
/// Each machine before this one in the order has this time to claim first.
const TURN: Span = Span::from_secs(5);

/// What a machine publishes about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peer {
    /// The machine with the smallest priority claims first, then that with the smallest name.
    pub priority: u32,
    /// Its claim, while it has one.
    pub claim: Option<Claim>,
    /// What runs there, as of its last publication.
    pub inventory: Inventory,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// All other machines that are alive.
    Members(BTreeMap<MachineId, Peer>),
    /// What runs here.
    Here(Inventory),
    /// Members that each set should have over all machines.
    Wanted(Counts),
    /// A machine's response to [`Action::Gather`].
    Gathered {
        /// The machine that responded.
        from: MachineId,
        /// What runs there.
        inventory: Inventory,
    },
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Publish this claim, or that there is none.
    Publish(Option<Claim>),
    /// Ask this machine for its [`Inventory`].
    Gather(MachineId),
    /// Publish this plan.
    Plan(Plan),
}

/// Counts for each machine that has reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The claim under which the plan was made.
    pub claim: Claim,
    /// Members of each set on each machine. A machine without an entry changes nothing.
    pub counts: BTreeMap<MachineId, Counts>,
}

/// What this machine is in its part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// It leads, and waits for the machines that it asked what runs.
    Gathers,
    /// It leads and plans.
    Leads,
    /// Another machine leads.
    Follows(MachineId),
    /// No machine has claimed.
    Waits,
    /// It hears too few machines to plan.
    Holds(HoldReason),
}

/// A term of this machine as the leader.
#[derive(Debug)]
struct Term {
    claim: Claim,
    /// End of the wait for machines that were asked.
    gather_until: Timestamp,
    /// Machines that have not responded.
    silent: BTreeSet<MachineId>,
    /// Counts as this leader gathered and changed them.
    counts: BTreeMap<MachineId, Counts>,
    next_plan: Timestamp,
}

impl Term {
    fn has_gathered(&self, now: Timestamp) -> bool {
        self.silent.is_empty() || now >= self.gather_until
    }
}

/// The core of one part on one machine.
#[derive(Debug)]
pub struct Leader {
    id: MachineId,
    priority: u32,
    settings: Settings,
    expected: Expected,
    /// Largest number of machines in seven days.
    seen: usize,
    alive: BTreeMap<MachineId, Peer>,
    /// Machines that were alive: when they were last, and what ran there.
    lost: BTreeMap<MachineId, (Timestamp, Inventory)>,
    here: Inventory,
    wanted: Counts,
    /// Greatest epoch that any claim had.
    epoch: u64,
    term: Option<Term>,
    /// Since when no valid claim is heard.
    vacant_since: Option<Timestamp>,
    actions: std::collections::VecDeque<Action>,
}

impl Leader {
    /// A machine that has heard no other. `known` is the number of machines of an earlier run.
    #[must_use]
    pub fn new(
        now: Timestamp,
        id: MachineId,
        priority: u32,
        settings: Settings,
        known: usize,
    ) -> Self {
        Self {
            id,
            priority,
            settings,
            expected: Expected::new(now, known),
            seen: known.max(1),
            alive: BTreeMap::new(),
            lost: BTreeMap::new(),
            here: Inventory::default(),
            wanted: Counts::new(),
            epoch: 0,
            term: None,
            vacant_since: None,
            actions: std::collections::VecDeque::new(),
        }
    }

    /// Number of machines that there should be.
    #[must_use]
    pub fn expected(&self) -> usize {
        self.settings.expected.unwrap_or(self.seen)
    }

    /// What this machine is.
    #[must_use]
    pub fn role(&self, now: Timestamp) -> Role {
        if let Quorum::Hold(reason) = self.quorum() {
            return Role::Holds(reason);
        }
        match (&self.term, self.greatest_claim()) {
            (Some(term), _) if term.has_gathered(now) => Role::Leads,
            (Some(_), _) => Role::Gathers,
            (None, Some(claim)) => Role::Follows(claim.holder),
            (None, None) => Role::Waits,
        }
    }

    /// The claim whose plans this machine carries out: the greatest that it hears, its own among
    /// them. `None` while it holds.
    #[must_use]
    pub fn in_force(&self) -> Option<Claim> {
        if matches!(self.quorum(), Quorum::Hold(_)) {
            return None;
        }
        let own = self.term.as_ref().map(|term| term.claim.clone());
        self.greatest_claim().max(own)
    }

    fn quorum(&self) -> Quorum {
        self.settings.quorum(self.alive.len() + 1, self.expected())
    }

    /// The greatest claim of a living machine. A majority ignores the claims of a minority.
    fn greatest_claim(&self) -> Option<Claim> {
        let majority = self.quorum() == Quorum::Majority;
        let claims = self.alive.iter().filter_map(|(id, peer)| {
            let claim = peer.claim.as_ref()?;
            (claim.holder == *id && (claim.majority || !majority)).then_some(claim)
        });
        claims.max().cloned()
    }

    fn members(&mut self, now: Timestamp, members: BTreeMap<MachineId, Peer>) {
        let mut members = members;
        members.remove(&self.id);
        for peer in members.values() {
            let epoch = peer.claim.as_ref().map_or(0, |claim| claim.epoch);
            self.epoch = self.epoch.max(epoch);
        }
        let gone: Vec<_> = self
            .alive
            .keys()
            .filter(|id| !members.contains_key(*id))
            .cloned()
            .collect();
        for id in gone {
            let mut inventory = self.alive.remove(&id).unwrap_or_default().inventory;
            // The leader's last plan may be newer than what the machine published.
            if let Some(term) = &mut self.term {
                inventory.counts = term.counts.remove(&id).unwrap_or(inventory.counts);
                term.silent.remove(&id);
            }
            self.lost.insert(id, (now, inventory));
        }
        for id in members.keys() {
            self.lost.remove(id);
            if let Some(term) = &mut self.term
                && !self.alive.contains_key(id)
            {
                term.silent.insert(id.clone());
                term.gather_until = now + GATHER_WAIT;
                self.actions.push_back(Action::Gather(id.clone()));
            }
        }
        self.alive = members;
    }

    /// Brings claim and term in line with what is heard.
    fn settle(&mut self, now: Timestamp) {
        self.seen = self.expected.see(now, self.alive.len() + 1);
        let quorum = self.quorum();
        if matches!(quorum, Quorum::Hold(_)) {
            self.vacant_since = None;
            return self.resign();
        }
        let majority = quorum == Quorum::Majority;
        let greatest = self.greatest_claim();
        if let Some(term) = &mut self.term {
            if term.claim.majority != majority {
                term.claim.majority = majority;
                let changed = Action::Publish(Some(term.claim.clone()));
                self.actions.push_back(changed);
            }
            if greatest.is_some_and(|other| other > term.claim) {
                self.resign();
            }
        } else if greatest.is_some() {
            self.vacant_since = None;
        } else {
            let since = *self.vacant_since.get_or_insert(now);
            if now >= since + self.turn() {
                self.claim(now, majority);
            }
        }
    }

    /// Time that machines before this one in the order have to claim.
    fn turn(&self) -> Span {
        let before = self
            .alive
            .iter()
            .filter(|(id, peer)| (peer.priority, *id) < (self.priority, &self.id));
        Span(TURN.0 * before.count() as u64)
    }

    fn resign(&mut self) {
        if self.term.take().is_some() {
            self.actions.clear();
            self.actions.push_back(Action::Publish(None));
        }
    }

    fn claim(&mut self, now: Timestamp, majority: bool) {
        self.epoch = self.epoch.saturating_add(1);
        self.vacant_since = None;
        let claim = Claim {
            majority,
            epoch: self.epoch,
            holder: self.id.clone(),
        };
        self.actions.push_back(Action::Publish(Some(claim.clone())));
        let gather = self.alive.keys().cloned().map(Action::Gather);
        self.actions.extend(gather);
        self.term = Some(Term {
            claim,
            gather_until: now + GATHER_WAIT,
            silent: self.alive.keys().cloned().collect(),
            counts: BTreeMap::new(),
            next_plan: now,
        });
    }

    fn gathered(&mut self, from: &MachineId, inventory: Inventory) {
        if let Some(term) = &mut self.term
            && self.alive.contains_key(from)
        {
            term.silent.remove(from);
            term.counts.insert(from.clone(), inventory.counts);
        }
    }

    /// The next plan, if one is due.
    fn plan(&mut self, now: Timestamp) -> Option<Plan> {
        let known = self.known();
        let reserved = self.reserved(now);
        let term = self.term.as_mut()?;
        if now < term.next_plan || !term.has_gathered(now) {
            return None;
        }
        term.next_plan = now + PLAN_EVERY;
        // A silent machine is asked again: its members stay, and it gets none.
        let silent = term.silent.iter().cloned().map(Action::Gather);
        self.actions.extend(silent);
        let counts = divide(&self.wanted, &known, &reserved);
        for (id, planned) in &counts {
            term.counts
                .entry(id.clone())
                .or_default()
                .extend(planned.clone());
        }
        Some(Plan {
            claim: term.claim.clone(),
            counts,
        })
    }

    /// This machine, and those that reported in this term. The leader's own plans are newer than
    /// what machines publish.
    fn known(&self) -> BTreeMap<MachineId, Inventory> {
        let Some(term) = &self.term else {
            return BTreeMap::new();
        };
        let reported = self
            .alive
            .iter()
            .filter(|(id, _)| !term.silent.contains(*id));
        let all = reported.map(|(id, peer)| (id, &peer.inventory));
        let all = all.chain([(&self.id, &self.here)]);
        let known = all.map(|(id, published)| {
            let mut inventory = published.clone();
            let planned = term.counts.get(id);
            for (set, count) in &mut inventory.counts {
                let newer = planned.and_then(|counts| counts.get(set)).copied();
                let newer = newer.unwrap_or(*count);
                // Units of members that are planned and not running are no longer free.
                let owed = newer.saturating_sub(*count);
                inventory.units_free = inventory.units_free.saturating_sub(owed);
                *count = newer;
            }
            (id.clone(), inventory)
        });
        known.collect()
    }

    /// Members on machines that are silent, or were lost a short time ago.
    fn reserved(&self, now: Timestamp) -> Counts {
        let silent = self.term.iter().flat_map(|term| &term.silent);
        let silent = silent
            .filter_map(|id| self.alive.get(id))
            .map(|peer| &peer.inventory);
        let lost = self
            .lost
            .values()
            .filter(|(since, _)| now < *since + UNKNOWN_STAYS);
        let all = silent.chain(lost.map(|(_, inventory)| inventory));
        let mut sum = Counts::new();
        for (set, count) in all.flat_map(|inventory| &inventory.counts) {
            let total = sum.entry(set.clone()).or_default();
            *total = total.saturating_add(*count);
        }
        sum
    }
}

impl Core for Leader {
    type Time = Timestamp;
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Timestamp, event: Event) {
        match event {
            Event::Members(members) => self.members(now, members),
            Event::Here(inventory) => self.here = inventory,
            Event::Wanted(wanted) => {
                if self.wanted != wanted
                    && let Some(term) = &mut self.term
                {
                    term.next_plan = now;
                }
                self.wanted = wanted;
            }
            Event::Gathered { from, inventory } => self.gathered(&from, inventory),
        }
        self.settle(now);
    }

    fn poll_action(&mut self, now: Timestamp) -> Option<Action> {
        if self.actions.is_empty() {
            self.settle(now);
        }
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        self.plan(now).map(Action::Plan)
    }

    fn poll_deadline(&self) -> Option<Timestamp> {
        match (&self.term, self.vacant_since) {
            (Some(term), _) if term.silent.is_empty() => Some(term.next_plan),
            (Some(term), _) => Some(term.next_plan.max(term.gather_until)),
            (None, Some(since)) => Some(since + self.turn()),
            (None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests;
