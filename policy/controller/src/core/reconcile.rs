//! One look at a policy: from its object and what agents report to its next status. A change of
//! the status is one write, so nobody ever sees half of one.
//!
//! # Invariants
//! * What decides changes by a promotion, a demotion or a version that is put back, and each is
//!   whole: `v05_every_look_leaves_a_whole_status`.
//! * A second look changes no version: `v05_second_look_changes_no_version`.
//! * While a journal or an agent is missing nothing is promoted:
//!   `v07_nothing_is_promoted_without_journal_or_agent`.

use std::collections::{BTreeMap, BTreeSet};

use policy_contract::Spec;
use policy_contract::tally::VersionReport;
use protocol::policy::{
    PolicyVersion, ScalingPolicySpec, ScalingPolicyStatus, Scope, Stage as Tried,
};
use protocol::time::WallTime;
use serde::Deserialize as _;
use serde_json::Value;

use super::evidence::Kept;
use super::gate::{self, Case, Damage, Rules, Ruling, Stage, Standing, rule};
use super::tally::{Alarms, Evidence};
use super::words;

const LOADED: &str = "Loaded";
/// Condition of a candidate whose next stage may begin.
pub const PROMOTABLE: &str = "Promotable";
/// Its reason when a person may begin the stage.
pub const READY: &str = "Ready";
const JOURNAL_MISSING: &str = "JournalMissing";
const EVENT_DEMOTED: &str = "PolicyDemoted";

/// What the agent of a node reports of all policies. `None`: it did not answer.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeReport {
    /// Name of the node.
    pub node: String,
    /// Each version, or none without an answer.
    pub versions: Option<Vec<VersionReport>>,
}

/// Something to tell people, once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// One word in camel case.
    pub reason: &'static str,
    /// One sentence for people.
    pub message: String,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// The next status, if it is another one.
    pub status: Option<ScalingPolicyStatus>,
    /// To tell after the status is written.
    pub notices: Vec<Notice>,
}

/// The part of an object that its answers depend on.
///
/// # Errors
/// A text for people, if it breaks a rule.
pub fn spec_of(object: &Value) -> Result<Spec, String> {
    let spec = ScalingPolicySpec::of_object(object)?;
    spec.check().map_err(|refusal| refusal.to_string())?;
    Ok(spec.into())
}

/// Looks at a policy.
///
/// # Errors
/// A text for people, if the object has no status that can be read. Nothing is changed then.
pub fn look(object: &Value, nodes: &[NodeReport], now: WallTime) -> Result<Outcome, String> {
    let before = ScalingPolicyStatus::of_object(object)?;
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let mut look = Look {
        scope: scope_of(object),
        rules: Rules::deserialize(&object["spec"]["gate"]).unwrap_or_default(),
        at_once: object["spec"]["limits"]["vmsShrunkAtOncePercent"]
            .as_u64()
            .and_then(|percent| u32::try_from(percent).ok()),
        name,
        nodes,
        now,
        status: before.clone(),
        notices: Vec::new(),
    };
    match spec_of(object) {
        Ok(spec) => look.all(&spec.digest().to_string()),
        Err(problem) => look.set(LOADED, false, ("Invalid", &problem)),
    }
    look.status.observed_generation = object["metadata"]["generation"].as_i64();
    let is_other = look.status != before;
    Ok(Outcome {
        status: is_other.then_some(look.status),
        notices: look.notices,
    })
}

/// What a policy decides about.
#[must_use]
pub fn scope_of(object: &Value) -> Scope {
    Scope::deserialize(&object["spec"]["scope"]).unwrap_or_default()
}

struct Look<'a> {
    name: &'a str,
    scope: Scope,
    rules: Rules,
    at_once: Option<u32>,
    nodes: &'a [NodeReport],
    now: WallTime,
    status: ScalingPolicyStatus,
    notices: Vec<Notice>,
}

impl Look<'_> {
    fn all(&mut self, newest: &str) {
        if !self.status.is_paused() {
            self.judge_live();
        }
        self.follow(newest);
        self.say_loaded();
        let problem = self.journal_problem();
        match &problem {
            Some(problem) => self.set(JOURNAL_MISSING, true, ("NotJudged", problem)),
            None => self.set(JOURNAL_MISSING, false, ("Kept", "every hour can be judged")),
        }
        if self.status.candidate.is_none() {
            let cause = ("NoCandidate", "the newest version decides");
            self.set(PROMOTABLE, false, cause);
        } else if self.status.is_paused() {
            self.set(PROMOTABLE, false, ("Paused", "the policy is paused"));
        } else {
            self.judge_candidate(problem.as_deref());
        }
    }

    fn set(&mut self, name: &str, is_true: bool, cause: (&str, &str)) {
        self.status.set_condition(name, is_true, cause, self.now);
    }

    /// Reports of a version of this policy, with their nodes.
    fn reports<'a>(
        &'a self,
        digest: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a VersionReport)> {
        self.nodes.iter().flat_map(move |node| {
            let all = node.versions.iter().flatten();
            let own = all.filter(move |one| one.policy == self.name && one.digest == digest);
            own.map(|report| (&*node.node, report))
        })
    }

    fn alarms(&self, digest: &str) -> Alarms {
        Alarms::of(self.reports(digest).map(|(_, report)| &report.alarms))
    }

    /// Number of agents that did not answer. None of them is asked about sets.
    fn missing(&self) -> usize {
        if self.scope == Scope::Set {
            return 0;
        }
        let missing = self.nodes.iter().filter(|node| node.versions.is_none());
        missing.count()
    }

    /// Takes the live version back, if it does harm.
    fn judge_live(&mut self) {
        let Some(live) = self.status.live.clone() else {
            return;
        };
        let standing = Standing {
            stage: Stage::Live,
            since: live.since.unwrap_or_default(),
            changed_at: None,
            demoted_at: None,
        };
        let ruling = rule(
            self.now,
            &Case {
                scope: self.scope,
                rules: &self.rules,
                vms_shrunk_at_once_percent: self.at_once,
                standing: &standing,
                evidence: &Evidence::default(),
                alarms: &self.alarms(&live.digest),
            },
        );
        if let Ruling::Demote(damages) = ruling {
            let (reason, message) = self.demotion(&live.digest, &damages);
            self.status.demote_because(&reason, &message, self.now);
        }
    }

    /// Cause and text of a demotion. People are told once.
    fn demotion(&mut self, digest: &str, damages: &[Damage]) -> (String, String) {
        let short = words::short(digest);
        let message = format!("{short} is taken back: {}", words::damages(damages));
        self.notices.push(Notice {
            reason: EVENT_DEMOTED,
            message: format!("Policy {}: {message}", self.name),
        });
        (words::cause(damages), message)
    }

    /// Gives the newest version its place.
    fn follow(&mut self, newest: &str) {
        let is = |version: &Option<PolicyVersion>| {
            version.as_ref().is_some_and(|one| one.digest == newest)
        };
        if is(&self.status.live) {
            (self.status.candidate, self.status.evidence) = (None, None);
            return;
        }
        if is(&self.status.candidate) {
            return;
        }
        let past = self.status.past(newest);
        let was_live = past.is_some_and(|past| !past.demoted) || is(&self.status.previous);
        let has_fault = self.alarms(newest).faults_in_a_row > 0;
        if was_live && !has_fault && !self.status.is_paused() {
            self.status.promote(newest, self.now);
        } else {
            self.status.try_in_shadow(newest, self.now);
        }
    }

    /// Says whether agents ask the versions that they should.
    fn say_loaded(&mut self) {
        let live = self.status.live.iter();
        let versions = live.chain(&self.status.candidate);
        let digests: Vec<String> = versions.map(|one| one.digest.clone()).collect();
        let mut followed = 0;
        let mut problem = None;
        let mut cut: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for (node, report) in digests.iter().flat_map(|digest| self.reports(digest)) {
            followed += 1;
            if let Some(text) = &report.problem {
                let short = words::short(&report.digest);
                let place = match self.scope {
                    Scope::Vm => format!(" on node {node}"),
                    Scope::Set => String::new(),
                };
                problem = problem.or_else(|| Some(format!("{short}{place}: {text}")));
            }
            if !report.cut_limits.is_empty() {
                let limits = report.cut_limits.join("; ");
                cut.entry(limits).or_default().insert(node);
            }
        }
        match problem {
            Some(problem) => self.set(LOADED, false, ("NotAsked", &problem)),
            // Without an answer nothing is known.
            None if followed == 0 => {}
            None if cut.is_empty() => {
                let text = words::followed(self.scope);
                self.set(LOADED, true, ("Followed", text));
            }
            None => {
                let limits = words::cut_limits(&cut);
                self.set(LOADED, true, ("LimitsCut", &limits));
            }
        }
    }

    /// Why hours of the candidate cannot be judged.
    fn journal_problem(&self) -> Option<String> {
        let candidate = self.status.candidate.as_ref()?;
        self.reports(&candidate.digest).find_map(|(node, report)| {
            let is_asked = !report.running.vms.is_empty();
            if is_asked && !report.has_journal {
                return Some(format!("node {node}: the agent keeps no journal"));
            }
            let problem = report.hours.last()?.problem.as_ref()?;
            Some(format!("node {node}: {problem}"))
        })
    }

    fn judge_candidate(&mut self, journal: Option<&str>) {
        let Some(candidate) = self.status.candidate.clone() else {
            return;
        };
        let digest = &candidate.digest;
        let since = candidate.since.unwrap_or_default();
        let mut kept = Kept::of(self.status.evidence.as_ref(), since);
        let reports: Vec<&VersionReport> = self.reports(digest).map(|(_, one)| one).collect();
        kept.add_hours(&reports, self.missing() > 0, self.now);
        let evidence = kept.with_running(&reports);
        let alarms = self.alarms(digest);
        self.status.evidence = Some(kept.limited(self.rules.vms));
        let standing = self.standing(digest, since);
        let ruling = rule(
            self.now,
            &Case {
                scope: self.scope,
                rules: &self.rules,
                vms_shrunk_at_once_percent: self.at_once,
                standing: &standing,
                evidence: &evidence,
                alarms: &alarms,
            },
        );
        let missing = self.missing();
        let held = match journal {
            Some(problem) => Some((JOURNAL_MISSING, problem.to_owned())),
            None if missing > 0 => {
                Some(("AgentMissing", format!("{missing} agents do not answer")))
            }
            None => None,
        };
        self.carry_out(digest, ruling, held, &evidence);
    }

    fn standing(&self, digest: &str, since: WallTime) -> Standing {
        let status = &self.status;
        // A canary of sets has no meaning, so its version is in shadow.
        let is_canary = self.scope == Scope::Vm && status.canary() == Some(digest);
        let changes = [
            status.live.as_ref().and_then(|live| live.since),
            is_canary.then_some(since),
            status.history.first().map(|past| past.until),
        ];
        let demoted = status.past(digest).filter(|past| past.demoted);
        Standing {
            stage: if is_canary {
                Stage::Canary
            } else {
                Stage::Shadow
            },
            since,
            changed_at: changes.into_iter().flatten().max(),
            demoted_at: demoted.map(|past| past.until),
        }
    }

    fn carry_out(
        &mut self,
        digest: &str,
        ruling: Ruling,
        held: Option<(&str, String)>,
        evidence: &Evidence,
    ) {
        let short = words::short(digest);
        match (ruling, held) {
            (Ruling::Demote(damages), _) => {
                let (reason, message) = self.demotion(digest, &damages);
                self.status.end_canary(&reason, &message, self.now);
                self.set(PROMOTABLE, false, (&reason, &message));
            }
            (Ruling::Stay(shorts), _) => {
                let missing = words::shorts(&shorts);
                let message = format!("{short}: {missing}{}", words::not_judged(self.scope));
                self.set(PROMOTABLE, false, (&words::reason(&shorts), &message));
            }
            (_, Some((reason, problem))) => {
                self.set(PROMOTABLE, false, (reason, &format!("{short}: {problem}")));
            }
            (Ruling::Promote(next), None) => {
                match next {
                    Stage::Live => {
                        self.status.promote(digest, self.now);
                    }
                    Stage::Canary | Stage::Shadow => self.status.begin_canary(digest, self.now),
                }
                let message = format!("{short}: {} began", words::stage(next));
                self.set(PROMOTABLE, false, ("Began", &message));
            }
            (Ruling::Promotable(next), None) => {
                let seen = words::evidence(self.scope, evidence);
                let message = format!("{short}: {} may begin; {seen}", words::stage(next));
                self.set(PROMOTABLE, true, (READY, &message));
            }
        }
    }
}

/// The next stage of a candidate, by the stage in its status.
#[must_use]
pub fn next_stage(scope: Scope, stage: Option<Tried>) -> Stage {
    let stage = match stage {
        Some(Tried::Canary) => Stage::Canary,
        Some(Tried::Shadow) | None => Stage::Shadow,
    };
    gate::next_stage(scope, stage).unwrap_or(Stage::Live)
}
