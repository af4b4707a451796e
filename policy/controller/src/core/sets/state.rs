//! The rounds: read, read pages, ask, conclude.

mod conclude;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use policy_contract::sets::SetAnswer;
use policy_contract::tally::VersionReport;
use policy_contract::{
    ASK_SETS_EVERY, Digest, Fault, History, Recheck, Role, Seconds, SetInput, SetOld,
};
use protocol::core::Core;
use protocol::policy::VmSet;
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;

use super::answered::{Answered, SetReport};
use super::changes::counts;
use super::events::{Action, End, Event, Pages, Question, Values};
use super::pace::Pace;
use super::question::Source;
use super::records::{Ended, Records};
use super::wishes::Denied;
use super::world::{SetPolicy, Version, World};

/// A version about the sets of a namespace: policy, digest, namespace.
type Key = (String, Digest, String);

/// What is kept of a version about the sets of a namespace.
#[derive(Debug)]
struct Kept {
    past: u32,
    history: History,
    last: Option<(SetAnswer, Timestamp)>,
}

/// A question without an end.
#[derive(Debug)]
struct Open {
    question: Question,
    /// The first answer, if this is the second question.
    first: Option<(Recheck, SetAnswer)>,
    /// When it was asked.
    asked_at: Option<Timestamp>,
}

impl Open {
    fn new(question: Question, first: Option<(Recheck, SetAnswer)>) -> Self {
        Self {
            question,
            first,
            asked_at: None,
        }
    }
}

#[derive(Debug)]
enum Phase {
    Idle,
    Reading,
    Feeding(Box<World>),
    Asking {
        world: Box<World>,
        open: BTreeMap<u64, Open>,
        /// Questions that have ended.
        ends: Vec<Ended>,
    },
}

/// The core of policies of sets.
#[derive(Debug)]
pub struct SetsCore {
    unit: Resources,
    feed_ports: Vec<u16>,
    due: Timestamp,
    phase: Phase,
    queue: VecDeque<Action>,
    kept: BTreeMap<Key, Kept>,
    versions: BTreeMap<(String, Digest), Answered>,
    paces: BTreeMap<(String, String), Pace>,
    denied: Denied,
    records: Records,
    /// Reports as they were written last, by policy.
    reported: BTreeMap<String, (Timestamp, BTreeMap<&'static str, SetReport>)>,
    last_question: u64,
    last_past: u32,
}

impl SetsCore {
    /// A core that reads at once. `unit` is the compute unit, `feed_ports` the ports that the
    /// administrator lets feeds be read from.
    #[must_use]
    pub fn new(now: Timestamp, unit: Resources, feed_ports: Vec<u16>) -> Self {
        Self {
            unit,
            feed_ports,
            due: now,
            phase: Phase::Idle,
            queue: VecDeque::new(),
            kept: BTreeMap::new(),
            versions: BTreeMap::new(),
            paces: BTreeMap::new(),
            denied: Denied::default(),
            records: Records::default(),
            reported: BTreeMap::new(),
            last_question: 0,
            last_past: 0,
        }
    }

    /// What the gate decides by, of each version that is asked.
    #[must_use]
    pub fn version_reports(&self) -> Vec<VersionReport> {
        let versions = self.versions.iter();
        versions
            .map(|((policy, _), answered)| answered.version_report(policy))
            .collect()
    }

    fn source<'a>(&'a self, world: &'a World, fed: &'a Values) -> Source<'a> {
        Source {
            world,
            fed,
            unit: self.unit,
            feed_ports: &self.feed_ports,
        }
    }

    fn read(&mut self, now: Timestamp, world: Box<World>) {
        let none = Values::new();
        let mut pages = Pages::new();
        for policy in &world.policies {
            for (_, version) in versions_of(policy) {
                let sets: Vec<&VmSet> = world.sets_of(policy).collect();
                let source = self.source(&world, &none);
                source.pages(&version.spec, &sets, &mut pages);
            }
        }
        self.phase = Phase::Feeding(world);
        if pages.is_empty() {
            self.fed(now, &none);
        } else {
            self.queue.push_back(Action::ReadPages(pages));
        }
    }

    fn fed(&mut self, now: Timestamp, fed: &Values) {
        let Phase::Feeding(world) = std::mem::replace(&mut self.phase, Phase::Idle) else {
            return;
        };
        let mut questions = Vec::new();
        // Without a node nothing is known of the capacity.
        if !world.nodes.is_empty() {
            for policy in &world.policies {
                for (role, version) in versions_of(policy) {
                    questions.extend(self.questions(now, &world, fed, (policy, role, version)));
                }
            }
        }
        self.forget(&world);
        let mut open = BTreeMap::new();
        for question in questions {
            self.queue
                .push_back(Action::Ask(Box::new(question.clone())));
            open.insert(question.n, Open::new(question, None));
        }
        let ends = Vec::new();
        self.phase = Phase::Asking { world, open, ends };
        self.conclude(now);
    }

    /// Questions to a version, one for each namespace that has sets with its policy.
    fn questions(
        &mut self,
        now: Timestamp,
        world: &World,
        fed: &Values,
        (policy, role, version): (&SetPolicy, Role, &Version),
    ) -> Vec<Question> {
        let mut spaces: BTreeMap<&str, Vec<&VmSet>> = BTreeMap::new();
        for set in world.sets_of(policy) {
            spaces.entry(&set.metadata.namespace).or_default().push(set);
        }
        let mut questions = Vec::new();
        for (namespace, sets) in spaces {
            let key = (policy.name.clone(), version.digest, namespace.to_owned());
            let old = self.kept.get(&key).and_then(|kept| kept.last.as_ref());
            let old = old.map(|(answer, at)| SetOld::of(answer, now.since(*at).as_secs_f64()));
            let source = self.source(world, fed);
            let input = source.question(&version.spec, namespace, &sets, old);
            let (past, history) = self.sampled(now, key, version, &input);
            self.last_question += 1;
            questions.push(Question {
                n: self.last_question,
                role,
                policy: policy.name.clone(),
                digest: version.digest,
                spec: version.spec.clone(),
                is_fresh: false,
                past,
                history,
                at: seconds(now),
                input,
            });
        }
        let answered = self.versions.entry((policy.name.clone(), version.digest));
        let answered = answered.or_insert_with(|| Answered::new(&version.digest));
        answered.begin(role);
        answered.hours.roll(world.wall);
        questions
    }

    /// The past of a version about a namespace, with the sums of this question.
    fn sampled(
        &mut self,
        now: Timestamp,
        key: Key,
        version: &Version,
        input: &SetInput,
    ) -> (u32, History) {
        let last_past = &mut self.last_past;
        let kept = self.kept.entry(key).or_insert_with(|| {
            *last_past += 1;
            Kept {
                past: *last_past,
                history: History::new(&version.spec.all_series()),
                last: None,
            }
        });
        for (name, sum) in &input.feeds {
            let series = format!("feed:{name}");
            kept.history.record(&series, seconds(now), single(sum.sum));
        }
        (kept.past, kept.history.clone())
    }

    /// Forgets versions that are not asked, and sets that are gone.
    fn forget(&mut self, world: &World) {
        let asked: BTreeSet<(&str, Digest)> = world
            .policies
            .iter()
            .flat_map(|policy| {
                let versions = versions_of(policy);
                versions.map(|(_, version)| (policy.name.as_str(), version.digest))
            })
            .collect();
        let is_asked = |policy: &str, digest: &Digest| asked.contains(&(policy, *digest));
        self.kept
            .retain(|(policy, digest, _), _| is_asked(policy, digest));
        self.versions
            .retain(|(policy, digest), _| is_asked(policy, digest));
        let versions = &self.versions;
        self.records.retain(|policy, digits| {
            let mut all = versions.keys();
            all.any(|(name, digest)| name == policy && digest.short() == digits)
        });
        let names: BTreeSet<(&str, &str)> = world
            .sets
            .iter()
            .map(|set| (set.metadata.namespace.as_str(), set.metadata.name.as_str()))
            .collect();
        self.paces
            .retain(|(namespace, name), _| names.contains(&(namespace, name)));
        let policies: BTreeSet<&str> = world.policies.iter().map(|one| &*one.name).collect();
        self.reported
            .retain(|policy, _| policies.contains(&**policy));
    }

    fn ended(&mut self, now: Timestamp, n: u64, end: End) {
        let Phase::Asking { open, .. } = &mut self.phase else {
            return;
        };
        let Some(Open {
            question,
            first,
            asked_at,
        }) = open.remove(&n)
        else {
            return;
        };
        let took = asked_at.map_or(Span(0), |at| now.since(at));
        let said = match (end, first) {
            (End::Answer(answer), None) => match Recheck::of(question.input.checksum()) {
                None => Ok(answer),
                Some(check) => return self.ask_again(question, check, answer),
            },
            (End::Answer(second), Some((_, answer))) if second == answer => Ok(answer),
            (End::Answer(second), Some((check, answer))) => {
                let (first, second) = (answer.to_value(), second.to_value());
                let text = format!("answers {first}, and asked again {second}");
                Err((check.fault(), text))
            }
            (End::Fault(fault, text), _) => Err((fault, text)),
            (End::NotAsked(problem), _) => {
                let version = (question.policy, question.digest);
                if let Some(answered) = self.versions.get_mut(&version) {
                    answered.not_asked(problem);
                }
                return self.conclude(now);
            }
        };
        self.said(now, &question, &said);
        if let Phase::Asking { ends, .. } = &mut self.phase {
            ends.push(Ended {
                question,
                took,
                said,
            });
        }
        self.conclude(now);
    }

    /// Asks the same question again. The first answer counts if the second one is the same.
    fn ask_again(&mut self, mut question: Question, check: Recheck, answer: SetAnswer) {
        match check {
            Recheck::Twice => question.is_fresh = true,
            Recheck::Fixpoint => question.input = question.input.after(&answer),
        }
        self.last_question += 1;
        question.n = self.last_question;
        self.queue
            .push_back(Action::Ask(Box::new(question.clone())));
        if let Phase::Asking { open, .. } = &mut self.phase {
            let first = Some((check, answer));
            open.insert(question.n, Open::new(question, first));
        }
    }

    /// Counts the end of a question, and keeps a valid answer for the next one.
    fn said(
        &mut self,
        now: Timestamp,
        question: &Question,
        said: &Result<SetAnswer, (Fault, String)>,
    ) {
        let Phase::Asking { world, .. } = &self.phase else {
            return;
        };
        let version = (question.policy.clone(), question.digest);
        let Some(answered) = self.versions.get_mut(&version) else {
            return;
        };
        match said {
            Err((fault, text)) => answered.fault(now, *fault, text),
            Ok(answer) => {
                let counts = counts(world, question, answer);
                answered.answer(now, &question.input, answer, &counts);
                let (policy, digest) = version;
                let key = (policy, digest, question.input.namespace.clone());
                if let Some(kept) = self.kept.get_mut(&key) {
                    kept.last = Some((answer.clone(), now));
                }
            }
        }
    }
}

impl Core for SetsCore {
    type Time = Timestamp;
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Timestamp, event: Event) {
        match event {
            Event::Read(world) if matches!(self.phase, Phase::Reading) => self.read(now, world),
            Event::NotRead => self.phase = Phase::Idle,
            Event::Fed(values) => self.fed(now, &values),
            Event::Ended { n, end } => self.ended(now, n, end),
            Event::Read(_) => {}
        }
    }

    fn poll_action(&mut self, now: Timestamp) -> Option<Action> {
        if let Some(action) = self.queue.pop_front() {
            if let (Action::Ask(question), Phase::Asking { open, .. }) = (&action, &mut self.phase)
                && let Some(asked) = open.get_mut(&question.n)
            {
                asked.asked_at = Some(now);
            }
            return Some(action);
        }
        if !matches!(self.phase, Phase::Idle) || now < self.due {
            return None;
        }
        // A round that takes too long costs the next one, and moves none.
        let late = now.since(self.due).0 / ASK_SETS_EVERY.0;
        self.due = self.due + Span((late + 1) * ASK_SETS_EVERY.0);
        self.phase = Phase::Reading;
        Some(Action::Read)
    }

    fn poll_deadline(&self) -> Option<Timestamp> {
        matches!(self.phase, Phase::Idle).then_some(self.due)
    }
}

/// The versions of a policy that are asked.
fn versions_of(policy: &SetPolicy) -> impl Iterator<Item = (Role, &Version)> {
    let live = policy.live.iter().map(|version| (Role::Live, version));
    let candidate = policy.candidate.iter();
    live.chain(candidate.map(|version| (Role::Shadow, version)))
}

fn seconds(now: Timestamp) -> Seconds {
    Span(now.0).as_secs_f64()
}

/// The past keeps single precision.
#[expect(
    clippy::cast_possible_truncation,
    reason = "what is too large becomes infinite, which the past ignores"
)]
fn single(value: f64) -> f32 {
    value as f32
}
