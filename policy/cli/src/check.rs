//! Whether a policy keeps the rules of the contract: it compiles, it names nothing that is absent,
//! and on made-up questions it stays in its budget, gives the same bytes in a second process, and
//! gives the same answer when that answer is its `old`.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use policy_contract::frames::{FromWorker, ToWorker};
use policy_contract::{Fault, Scope, Spec};
use policy_engine::{Engine, Failed, lint, series_named};
use protocol::policy::Series;
use serde::Serialize;

use crate::client::{Client, NoLine};
use crate::made_up::{Question, Subject, question};
use crate::made_up_sets::question_about_sets;
use crate::scope::AnyInput;

/// Questions of a check where nothing else is said.
pub const QUESTIONS: u64 = 200;
/// Longest time of a process that is not asked for its time, only for its bytes.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of the policy in the second process.
const ID: u32 = 1;

/// Something that a policy breaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Line of the source, from 1; 0 if there is none.
    pub line: u32,
    /// What is broken.
    pub rule: String,
    /// What to write instead.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub instead: String,
    /// Number of the made-up question at which it broke.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub question: Option<u64>,
}

/// Result of a check.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Whether nothing was found.
    pub ok: bool,
    /// Whether it compiles, and its first run gives a function.
    pub loads: bool,
    /// First digits of the digest.
    pub digest: String,
    /// Questions that were asked.
    pub questions: u64,
    /// Most steps of a call.
    pub steps_max: u64,
    /// Median time of a call, microseconds.
    pub time_p50_us: u64,
    /// What was found, in the order of the source and then of the questions.
    pub findings: Vec<Finding>,
}

/// What the answers of a check had in common.
#[derive(Debug, Default)]
struct Tally {
    steps_max: u64,
    times: Vec<Duration>,
}

/// Checks a policy. `sets` are the names of the sets that a policy of sets is asked about, or none
/// for some of any name. `program` is this program, for the second process.
///
/// # Errors
/// The second process cannot be used.
pub fn check(spec: &Spec, sets: &[String], questions: u64, program: &Path) -> Result<Report> {
    let subject = subject(spec, sets);
    let mut findings: Vec<Finding> = lint(&spec.source).into_iter().map(Finding::from).collect();
    findings.extend(unknown_series(spec));
    let mut tally = Tally::default();
    let mut asked = 0;
    let loaded = Engine::load(spec);
    let loads = loaded.is_ok();
    match loaded {
        Ok(engine) => {
            let mut second = second(spec, program)?;
            for number in 0..questions {
                asked += 1;
                let asking = Asking {
                    number,
                    question: made_up(spec.scope, &subject, number),
                    engine: &engine,
                };
                if let Err(finding) = asking.check(&mut second, &mut tally)? {
                    findings.push(finding);
                    break;
                }
            }
        }
        // The lint has it where it is the reason.
        Err(error) if findings.iter().any(|finding| finding.line == error.line) => {}
        Err(error) => findings.push(Finding {
            line: error.line,
            rule: error.rule,
            instead: String::new(),
            question: None,
        }),
    }
    tally.times.sort_unstable();
    let median = tally.times.get(tally.times.len() / 2).copied();
    Ok(Report {
        ok: findings.is_empty(),
        loads,
        digest: spec.digest().short(),
        questions: asked,
        steps_max: tally.steps_max,
        time_p50_us: u64::try_from(median.unwrap_or_default().as_micros()).unwrap_or(u64::MAX),
        findings,
    })
}

/// Series that the source reads and the version does not have: they would be nil for ever.
fn unknown_series(spec: &Spec) -> impl Iterator<Item = Finding> {
    let known = spec.all_series();
    let is_about_sets = spec.scope == Scope::Set;
    let named = series_named(&spec.source).into_iter();
    named
        .filter(move |(_, name)| !known.iter().any(|series| series.as_str() == *name))
        .map(move |(line, name)| Finding {
            line,
            rule: format!("`{name}` is no series of the policy, so it is always nil"),
            instead: match (Series::of(name), name.strip_prefix(Series::FEED)) {
                (Some(_), Some(feed)) => format!("--feed {feed} here, and the feed in the object"),
                (Some(_), None) if is_about_sets => "feed:NAME, a sum over the members".to_owned(),
                (Some(_), None) => format!("--series {name}, here and at apply"),
                (None, _) if is_about_sets => "feed:NAME, a sum over the members".to_owned(),
                (None, _) => {
                    let known = Series::ALWAYS.iter().chain(&Series::NAMED);
                    let known: Vec<&str> = known.copied().collect();
                    format!("one of {}, or feed:NAME", known.join(", "))
                }
            },
            question: None,
        })
}

fn made_up(scope: Scope, subject: &Subject, number: u64) -> Question<AnyInput> {
    match scope {
        Scope::Vm => question(subject, number).into(),
        Scope::Set => question_about_sets(subject, number),
    }
}

fn subject(spec: &Spec, sets: &[String]) -> Subject {
    Subject {
        params: spec.params.clone(),
        series: spec.series.clone(),
        feeds: spec.feeds.iter().map(|feed| feed.name.clone()).collect(),
        sets: sets.to_vec(),
    }
}

/// A second process with the policy.
pub(crate) fn second(spec: &Spec, program: &Path) -> Result<Client> {
    let mut client =
        Client::start(program).with_context(|| format!("failed to start {}", program.display()))?;
    let load = ToWorker::Load {
        id: ID,
        digest: spec.digest(),
        scope: spec.scope,
        source: spec.source.clone(),
        params: spec.params.clone(),
    };
    match client.request(&load, PATIENCE)? {
        FromWorker::Loaded { .. } => Ok(client),
        other => bail!("the second process refuses what the first has loaded: {other:?}"),
    }
}

/// Asks a process that [`second`] made, with the past of the question.
pub(crate) fn ask(
    process: &mut Client,
    number: u64,
    question: &Question<AnyInput>,
) -> Result<FromWorker, NoLine> {
    let vm = ID;
    process.send(&ToWorker::Forget { vm })?;
    for (t, s) in &question.samples {
        let (t, s) = (*t, s.clone());
        process.send(&ToWorker::Sample { vm, t, s })?;
    }
    let ask = question.input.line(number, ID, question.now);
    process.request(&ask, PATIENCE)
}

/// One question, and the engine that is asked it.
struct Asking<'a> {
    number: u64,
    question: Question<AnyInput>,
    engine: &'a Engine,
}

impl Asking<'_> {
    fn check(self, second: &mut Client, tally: &mut Tally) -> Result<Result<(), Finding>> {
        let past = self.question.past();
        let (input, now) = (&self.question.input, self.question.now);
        let begun = Instant::now();
        let asked = input.ask(self.engine, &past, now);
        tally.times.push(begun.elapsed());
        let line = ask(second, self.number, &self.question)?;
        let reply = match asked {
            Ok(reply) => reply,
            Err(failed) => return Ok(Err(self.failed(&failed))),
        };
        tally.steps_max = tally.steps_max.max(reply.steps);
        if line != reply.answer.line(self.number, reply.steps) {
            let rule = format!("another answer in a second process: {line:?}");
            let instead = "keys of text or numbers: the order of other keys is by chance";
            return Ok(Err(self.broken(Fault::Nondeterministic, &rule, instead)));
        }
        let again = input.after(&reply.answer);
        let answer = match again.ask(self.engine, &past, now) {
            Ok(reply) => reply.answer,
            Err(failed) => return Ok(Err(self.failed(&failed))),
        };
        if answer != reply.answer {
            let (first, then) = (reply.answer.to_value(), answer.to_value());
            let rule = format!("answers {first}, and with that as i.old {then}");
            let instead = again.instead_of_old();
            return Ok(Err(self.broken(Fault::NotFixpoint, &rule, instead)));
        }
        Ok(Ok(()))
    }

    fn failed(&self, failed: &Failed) -> Finding {
        let instead = match failed.fault {
            Fault::Steps => "a shorter loop, or a function of i.h",
            Fault::Memory => "fewer and shorter texts and tables",
            Fault::Syntax => "a test for nil first: what is absent is nil",
            _ => "",
        };
        self.broken(failed.fault, &failed.text, instead)
    }

    fn broken(&self, fault: Fault, text: &str, instead: &str) -> Finding {
        let placed = text.strip_prefix("line ").and_then(|rest| {
            let (line, text) = rest.split_once(": ")?;
            Some((line.parse().ok()?, text))
        });
        let (line, text) = placed.unwrap_or((0, text));
        Finding {
            line,
            rule: format!("{}: {text}", fault.word()),
            instead: instead.to_owned(),
            question: Some(self.number),
        }
    }
}

impl From<policy_engine::Finding> for Finding {
    fn from(finding: policy_engine::Finding) -> Self {
        Self {
            line: finding.line,
            rule: finding.rule,
            instead: finding.instead.to_owned(),
            question: None,
        }
    }
}
