//! The end of a round: lines of the journal, changes of sets, wishes, hours and reports.

use std::collections::BTreeMap;

use policy_contract::Role;
use policy_contract::sets::SetAnswer;
use protocol::policy::{VmSet, WISH_OF_DENIED_GROWTH};
use protocol::time::{Span, Timestamp};

use super::super::changes::{counts, operations};
use super::super::events::{Action, Question, SetPatch};
use super::super::hours::{Moment, Round};
use super::super::pace::Pace;
use super::super::records::Ended;
use super::super::wishes;
use super::super::world::World;
use super::{Phase, SetsCore};

/// Time after which numbers of answers are written, though nothing else has changed.
const REPORT_EVERY: Span = Span::from_secs(60);

impl SetsCore {
    /// Carries the answers of a round out, once each question has ended.
    pub(super) fn conclude(&mut self, now: Timestamp) {
        let is_over = matches!(&self.phase, Phase::Asking { open, .. } if open.is_empty());
        if !is_over {
            return;
        }
        let Phase::Asking { world, ends, .. } = std::mem::replace(&mut self.phase, Phase::Idle)
        else {
            return;
        };
        for ended in &ends {
            self.carry_out(now, &world, ended);
        }
        self.wish(now, &world);
        self.add_to_hours(now, &world);
        self.report(now, &world);
    }

    /// Changes the sets by a live answer, and records each answer.
    fn carry_out(&mut self, now: Timestamp, world: &World, ended: &Ended) {
        let question = &ended.question;
        let (mut wanted, mut given) = (BTreeMap::new(), BTreeMap::new());
        let mut patches = Vec::new();
        if let Ok(answer) = &ended.said {
            wanted = counts(world, question, answer);
            if question.role == Role::Live {
                (given, patches) = self.change_sets(now, world, (question, answer), &wanted);
            }
        }
        // The line goes first, so that it stands before those of the change.
        let line = self.records.line(now, ended, &wanted, &given);
        let line = line.map(|line| Action::Record(Box::new(line)));
        self.queue.extend(line);
        self.queue
            .extend(patches.into_iter().map(Action::ChangeSet));
    }

    /// Counts that the sets get, and the changes for them.
    fn change_sets(
        &mut self,
        now: Timestamp,
        world: &World,
        (question, answer): (&Question, &SetAnswer),
        wanted: &BTreeMap<String, u32>,
    ) -> (BTreeMap<String, u32>, Vec<SetPatch>) {
        let policy = world
            .policies
            .iter()
            .find(|one| one.name == question.policy);
        let limit = policy.and_then(|policy| policy.limits.members_per_answer);
        let mut budget = limit.unwrap_or(u32::MAX);
        let namespace = &question.input.namespace;
        let is_of_it = |set: &&VmSet| {
            set.metadata.namespace == *namespace
                && question.input.sets.contains_key(&set.metadata.name)
        };
        let (mut given, mut patches) = (BTreeMap::new(), Vec::new());
        for set in world.sets.iter().filter(is_of_it) {
            let name = &set.metadata.name;
            let has = set.spec.replicas;
            let count = wanted.get(name).map_or(has, |wants| {
                let id = (namespace.clone(), name.clone());
                let pace = self.paces.entry(id);
                let pace = pace.or_insert_with(|| Pace::new(now, set.spec.rates));
                pace.step(now, set.spec.rates, (has, *wants), &mut budget)
            });
            given.insert(name.clone(), count);
            let operations = operations(set, count, answer);
            patches.extend(operations.map(|operations| SetPatch {
                namespace: namespace.clone(),
                name: name.clone(),
                policy: question.policy.clone(),
                operations,
            }));
        }
        (given, patches)
    }

    /// Adds the round of each version to its hours, a candidate's beside the live version's.
    fn add_to_hours(&mut self, now: Timestamp, world: &World) {
        let live: BTreeMap<String, Round> = self
            .versions
            .iter()
            .filter(|(_, answered)| answered.role == Role::Live)
            .filter_map(|((policy, _), answered)| Some((policy.clone(), answered.round()?.clone())))
            .collect();
        let at = Moment {
            now,
            wall: world.wall,
        };
        for ((policy, _), answered) in &mut self.versions {
            let live = live.get(policy).filter(|_| answered.role == Role::Shadow);
            answered.conclude(at, live);
        }
    }

    /// The wish of a policy is the largest of its live version's last answers.
    fn wish(&mut self, now: Timestamp, world: &World) {
        let mut wanted: BTreeMap<String, (u32, String)> = BTreeMap::new();
        for policy in &world.policies {
            let live = policy.live.as_ref().map(|version| version.digest);
            for ((name, digest, _), kept) in &self.kept {
                if *name != policy.name || Some(*digest) != live || name == WISH_OF_DENIED_GROWTH {
                    continue;
                }
                let answer = kept.last.as_ref().map(|(answer, _)| answer);
                if let Some(nodes) = answer.and_then(|answer| answer.nodes.as_ref()) {
                    let wish = (nodes.want, nodes.why.clone());
                    let known = wanted.entry(name.clone()).or_insert_with(|| wish.clone());
                    if known.0 < wish.0 {
                        *known = wish;
                    }
                }
            }
        }
        wishes::add_denied(&mut wanted, self.denied.look(now, world));
        let changes = wishes::changes(&wanted, world, world.wall);
        if !changes.is_empty() {
            self.queue.push_back(Action::ChangeWishes(changes));
        }
    }

    fn report(&mut self, now: Timestamp, world: &World) {
        for policy in &world.policies {
            let mut reports = BTreeMap::new();
            for ((name, _), answered) in &self.versions {
                if *name == policy.name {
                    reports.insert(answered.role.as_str(), answered.report.clone());
                }
            }
            let is_due = self.reported.get(&policy.name).is_none_or(|(at, before)| {
                let is_same = before.keys().eq(reports.keys())
                    && before
                        .values()
                        .zip(reports.values())
                        .all(|(one, other)| one.says_the_same(other));
                !is_same || *before != reports && now.since(*at) >= REPORT_EVERY
            });
            if is_due {
                let name = policy.name.clone();
                self.reported.insert(name.clone(), (now, reports.clone()));
                let policy = name;
                self.queue.push_back(Action::Report { policy, reports });
            }
        }
    }
}
