//! The policy of a VM and what it answered, from the journal.

use std::collections::{BTreeMap, BTreeSet};

use protocol::journal::{Answered, Bound};
use protocol::policy::Role;

use crate::commands::journal::{calendar, micros};
use crate::decision::{PolicyAnswer, PolicyView};

/// First digits of a digest that an answer is recorded with.
const DIGITS: usize = 8;

/// Records about the policies of a VM, oldest first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Policies(Vec<At>);

#[derive(Debug, Clone)]
struct At {
    /// Number of the writer's run.
    run: u64,
    /// Zero of the writer's clock, microseconds since 1970.
    wall: u64,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    Bound(Box<Bound>),
    Answered(Box<Answered>),
}

impl At {
    /// Time of the record, or of the question that was answered, microseconds since 1970.
    fn unix_us(&self) -> i64 {
        let at = match &self.what {
            What::Bound(bound) => bound.t,
            What::Answered(answered) => answered.asked_at(),
        };
        micros(self.wall, at)
    }
}

impl Policies {
    pub(super) fn bound(&mut self, run: u64, wall: u64, bound: Box<Bound>) {
        let what = What::Bound(bound);
        self.0.push(At { run, wall, what });
    }

    pub(super) fn answered(&mut self, run: u64, wall: u64, answered: Box<Answered>) {
        let what = What::Answered(answered);
        self.0.push(At { run, wall, what });
    }

    /// Names of the policies that the VM has had.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        let name = |at: &At| match &at.what {
            What::Bound(bound) => bound.name.clone(),
            What::Answered(_) => None,
        };
        self.0.iter().filter_map(name).collect()
    }

    /// The policy at a time, with the last answer of each version. `None`: the VM had none.
    ///
    /// A restart of the agent ends the answers that it had.
    pub(crate) fn at(&self, unix_us: i64) -> Option<PolicyView> {
        let mut now: Option<(u64, &Bound)> = None;
        let mut answers: BTreeMap<Role, (u64, &Answered)> = BTreeMap::new();
        for at in self.0.iter().filter(|at| at.unix_us() <= unix_us) {
            match &at.what {
                What::Bound(bound) => {
                    let is_same_run = now.is_some_and(|(run, _)| run == at.run);
                    answers.retain(|role, (_, answered)| {
                        is_same_run && digest_of(bound, *role) == Some(&answered.dg)
                    });
                    now = Some((at.run, bound));
                }
                What::Answered(answered) => {
                    answers.insert(answered.role, (at.wall, answered));
                }
            }
        }
        let (_, bound) = now?;
        let view = |role| view(bound, role, answers.get(&role).copied());
        let (live, shadow) = (view(Role::Live), view(Role::Shadow));
        match (live, shadow) {
            (Some(live), shadow) => Some(PolicyView {
                shadow: shadow.map(Box::new),
                ..live
            }),
            (None, shadow) => shadow,
        }
    }
}

fn digest_of(bound: &Bound, role: Role) -> Option<&str> {
    let version = bound.roles.get(&role)?;
    version.digest.get(..DIGITS)
}

fn view(bound: &Bound, role: Role, answer: Option<(u64, &Answered)>) -> Option<PolicyView> {
    Some(PolicyView {
        digest: Some(digest_of(bound, role)?.to_owned()),
        name: bound.name.clone(),
        role,
        unknown: None,
        set_aside: false,
        canary: false,
        answer: answer.map(|(wall, answered)| said(wall, answered)),
        shadow: None,
    })
}

fn said(wall: u64, answered: &Answered) -> PolicyAnswer {
    let votes = answered.votes.iter();
    PolicyAnswer {
        cu: answered.cu,
        hold: answered.hold,
        fault: answered.fault.map(|fault| fault.word().to_owned()),
        reason: answered.r.clone(),
        votes: votes
            .map(|(name, vote)| (name.clone(), vote.units()))
            .collect(),
        note: answered.note.clone(),
        since: calendar(wall, answered.t),
    }
}

#[cfg(test)]
mod tests {
    use protocol::journal::BoundVersion;
    use serde_json::json;

    use super::*;

    const WALL: u64 = 1_795_000_000_000_000;
    const NEW: &str = "77ab90c4";
    const OLD: &str = "5be1a7c0";

    fn bound(t: u64, roles: &[(Role, &str)]) -> Box<Bound> {
        let roles = roles.iter().map(|(role, digest)| {
            let digest = digest.repeat(8);
            (*role, BoundVersion { digest, since: 0 })
        });
        let bound =
            json!({"name": "db", "roles": roles.collect::<BTreeMap<_, _>>(), "t": t, "vm": 1});
        Box::new(serde_json::from_value(bound).expect("a record"))
    }

    fn answered(asked: u64, role: Role, digest: &str, units: u32) -> Box<Answered> {
        let answered = json!({
            "as": role, "cu": units, "dg": digest, "in": "00000000", "r": "cpu", "s": 0,
            "t": asked + 500, "took": 500, "vm": 1, "vms": 1,
        });
        Box::new(serde_json::from_value(answered).expect("a record"))
    }

    fn said_at(policies: &Policies, at: u64) -> String {
        let view = policies.at(micros(WALL, at));
        view.map_or_else(|| "none".to_owned(), |view| view.sentences())
    }

    #[test]
    fn answer_holds_from_its_question_until_its_version_or_its_agent_goes() {
        let mut policies = Policies::default();
        policies.bound(1, WALL, bound(1_000, &[(Role::Shadow, NEW)]));
        policies.answered(1, WALL, answered(2_000_000, Role::Shadow, NEW, 4));
        let both = [(Role::Live, OLD), (Role::Shadow, NEW)];
        policies.bound(1, WALL, bound(3_000_000, &both));
        policies.answered(1, WALL, answered(4_000_000, Role::Live, OLD, 5));
        policies.bound(1, WALL, bound(5_000_000, &[(Role::Live, NEW)]));
        policies.answered(1, WALL, answered(6_000_000, Role::Live, NEW, 6));
        policies.bound(2, WALL, bound(7_000_000, &[(Role::Live, NEW)]));
        let times = [0, 1900, 2000, 4000, 5000, 6000, 7000];
        let said = times.map(|ms| format!("{ms} ms: {}", said_at(&policies, ms * 1000)));
        insta::assert_snapshot!(said.join("\n"), @"
        0 ms: none
        1900 ms: Policy db decides nothing: its candidate 77ab90c4 has not answered yet.
        2000 ms: Policy db decides nothing: its candidate 77ab90c4 would ask for 4 units since 11:06:42Z because of cpu.
        4000 ms: Policy db (5be1a7c0) asks for 5 units since 11:06:44Z because of cpu. Its candidate 77ab90c4 would ask for 4 (cpu).
        5000 ms: Policy db (77ab90c4) has not answered yet.
        6000 ms: Policy db (77ab90c4) asks for 6 units since 11:06:46Z because of cpu.
        7000 ms: Policy db (77ab90c4) has not answered yet.
        ");
        assert_eq!(policies.names(), BTreeSet::from(["db".to_owned()]));
    }

    #[test]
    fn vm_without_a_version_has_no_policy() {
        let mut policies = Policies::default();
        policies.bound(1, WALL, bound(1_000, &[(Role::Shadow, NEW)]));
        policies.bound(1, WALL, bound(2_000, &[]));
        insta::assert_snapshot!(said_at(&policies, 2_000), @"none");
    }
}
