//! Asks the fixtures of policies in jailed workers: twice, in two processes, and once more with the
//! answer as `old`. Then the policy runs in this process, to see which of its lines have run.

mod compare;
mod reply;
mod update;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use policy_contract::frames::FromWorker;
use policy_contract::{Fault, Spec};
use policy_engine::Engine;
use reply::WorkerResponse;
use serde::Serialize;

use crate::check;
use crate::client::{Client, NoLine};
use crate::fixtures::{Expected, Fixture, Fixtures};
use crate::made_up::Question;
use crate::scope::{AnyAnswer, AnyInput};

/// Something that a fixture shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// File at fault.
    pub file: PathBuf,
    /// Line of the file, from 1; 0 if there is none.
    pub line: u32,
    /// Name of the fixture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fixture: Option<String>,
    /// What is wrong.
    pub rule: String,
    /// What to write instead.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub instead: String,
}

/// Result of one policy.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tested {
    /// Source of the policy.
    pub file: PathBuf,
    /// First digits of the digest, with the settings of its fixtures.
    pub digest: String,
    /// Number of its fixtures.
    pub fixtures: usize,
    /// Number of answers that were written to its fixtures.
    pub updated: usize,
    /// Number of lines that hold a statement.
    pub lines: usize,
    /// Those of them that did not run.
    pub lines_not_run: Vec<u32>,
    /// What was found, in the order of the fixtures.
    pub findings: Vec<Finding>,
}

/// Result of all policies.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Whether nothing was found.
    pub ok: bool,
    /// The policies, by name.
    pub policies: Vec<Tested>,
}

/// What happens to answers that differ from those written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Differing {
    /// They are findings.
    Found,
    /// They are written to the fixtures.
    Written,
}

/// Tests a policy, or all of a folder. `program` is this program, for the workers.
///
/// # Errors
/// There is no policy, a file cannot be read or written, or a worker cannot be used.
pub fn test(path: &Path, program: &Path, differing: Differing) -> Result<Report> {
    let policies = sources(path)?;
    if policies.is_empty() {
        bail!("{} has no policy: a file that ends in .lua", path.display());
    }
    let tested = policies.iter().map(|file| one(file, program, differing));
    let policies = tested.collect::<Result<Vec<_>>>()?;
    Ok(Report {
        ok: policies.iter().all(|tested| tested.findings.is_empty()),
        policies,
    })
}

fn sources(path: &Path) -> Result<Vec<PathBuf>> {
    let failed = || format!("failed to read {}", path.display());
    if !path.metadata().with_context(failed)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).with_context(failed)?;
    let paths = entries.map(|entry| Ok(entry?.path()));
    let mut paths = paths
        .collect::<std::io::Result<Vec<_>>>()
        .with_context(failed)?;
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "lua"));
    paths.sort();
    Ok(paths)
}

fn one(file: &Path, program: &Path, differing: Differing) -> Result<Tested> {
    let read = |file: &Path| {
        fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))
    };
    let source = read(file)?;
    let beside = file.with_extension("toml");
    let mut tested = Tested {
        file: file.to_owned(),
        ..Tested::default()
    };
    if !beside.exists() {
        let rule = format!("has no fixtures: {} is missing", beside.display());
        let instead = "[[fixture]] with name, input, past and answer (docs/policies.md)";
        tested.find(file, 0, rule, instead);
        return Ok(tested);
    }
    let text = read(&beside)?;
    let fixtures = match Fixtures::read(&text) {
        Ok(fixtures) => fixtures,
        Err(error) => {
            tested.find(&beside, error.line, error.rule, "");
            return Ok(tested);
        }
    };
    let spec = fixtures.settings.spec(source);
    tested.digest = spec.digest().short();
    tested.fixtures = fixtures.all.len();
    match Engine::load_counting(&spec) {
        Ok(engine) => {
            let mut suite = Suite::start(&spec, program, &beside)?;
            for fixture in &fixtures.all {
                suite.ask(fixture, &engine)?;
            }
            suite.finish(&engine, (&text, differing), &mut tested)?;
        }
        Err(error) => tested.find(file, error.line, error.rule, ""),
    }
    Ok(tested)
}

impl Tested {
    /// Adds what no fixture shows.
    fn find(&mut self, file: &Path, line: u32, rule: String, instead: &str) {
        self.findings.push(Finding {
            file: file.to_owned(),
            line,
            fixture: None,
            rule,
            instead: instead.to_owned(),
        });
    }
}

/// Two workers with one policy, and what they showed.
struct Suite<'a> {
    spec: &'a Spec,
    program: &'a Path,
    file: &'a Path,
    workers: [Client; 2],
    asked: u64,
    findings: Vec<Finding>,
    /// Answers that differ from those written, with their place.
    differences: Vec<(std::ops::Range<usize>, AnyAnswer, Finding)>,
}

impl<'a> Suite<'a> {
    fn start(spec: &'a Spec, program: &'a Path, file: &'a Path) -> Result<Self> {
        Ok(Self {
            spec,
            program,
            file,
            workers: [check::second(spec, program)?, check::second(spec, program)?],
            asked: 0,
            findings: Vec::new(),
            differences: Vec::new(),
        })
    }

    fn ask(&mut self, fixture: &Fixture, engine: &Engine) -> Result<()> {
        let question = &fixture.question;
        let first = self.reply(0, question)?;
        let second = self.reply(1, question)?;
        let ends_the_worker =
            |reply: &WorkerResponse| matches!(reply, Err((Fault::Late | Fault::WorkerDied, _)));
        if !ends_the_worker(&first) {
            // Only for its lines: the answer is that of the workers.
            let _ = question.input.ask(engine, &question.past(), question.now);
        }
        if first != second {
            let rule = format!(
                "nondeterministic: {}, and in a second process {}",
                compare::shown(&first),
                compare::shown(&second)
            );
            let instead = "keys of text or numbers: the order of other keys is by chance";
            self.find(fixture, rule, instead);
            return Ok(());
        }
        if let Ok((answer, _)) = &first {
            let mut again = question.clone();
            again.input = question.input.after(answer);
            let then = self.reply(0, &again)?;
            if !then.as_ref().is_ok_and(|(then, _)| then == answer) {
                let rule = format!(
                    "not_fixpoint: {}, and with that as i.old {}",
                    compare::shown(&first),
                    compare::shown(&then)
                );
                self.find(fixture, rule, question.input.instead_of_old());
                return Ok(());
            }
        }
        self.compare(fixture, &first);
        Ok(())
    }

    /// Asks one of the workers. One that has ended is started again for the next question.
    fn reply(&mut self, worker: usize, question: &Question<AnyInput>) -> Result<WorkerResponse> {
        self.asked += 1;
        let said = check::ask(&mut self.workers[worker], self.asked, question);
        let fault = match said {
            Ok(FromWorker::Fault { kind, text, .. }) => return Ok(Err((kind, text))),
            Ok(message) => {
                let Some(answer) = question.input.read_line(&message) else {
                    bail!("a worker answers a question by {message:?}");
                };
                return Ok(answer.map_err(|refusal| (Fault::Output, refusal.to_string())));
            }
            Err(NoLine::Late(_)) => Fault::Late,
            Err(NoLine::Died(_)) => Fault::WorkerDied,
            Err(error) => return Err(error.into()),
        };
        self.workers[worker] = check::second(self.spec, self.program)?;
        Ok(Err((fault, "no answer".to_owned())))
    }

    fn compare(&mut self, fixture: &Fixture, reply: &WorkerResponse) {
        let Some((rule, instead)) = compare::difference(&fixture.expected, reply) else {
            return;
        };
        let is_by_answer = matches!(fixture.expected, Expected::Answer(_) | Expected::Nothing);
        match reply {
            Ok((answer, _)) if is_by_answer => {
                let finding = self.finding(fixture, rule, &instead);
                let place = fixture.place.clone();
                self.differences.push((place, answer.clone(), finding));
            }
            _ => self.find(fixture, rule, &instead),
        }
    }

    fn finding(&self, fixture: &Fixture, rule: String, instead: &str) -> Finding {
        Finding {
            file: self.file.to_owned(),
            line: fixture.line,
            fixture: Some(fixture.name.clone()),
            rule,
            instead: instead.to_owned(),
        }
    }

    fn find(&mut self, fixture: &Fixture, rule: String, instead: &str) {
        let finding = self.finding(fixture, rule, instead);
        self.findings.push(finding);
    }

    /// Writes answers or finds them different, and counts lines.
    fn finish(
        self,
        engine: &Engine,
        (text, differing): (&str, Differing),
        tested: &mut Tested,
    ) -> Result<()> {
        tested.findings.extend(self.findings);
        match differing {
            Differing::Found => {
                let differences = self.differences.into_iter();
                tested
                    .findings
                    .extend(differences.map(|(.., finding)| finding));
            }
            Differing::Written if !self.differences.is_empty() => {
                let answers = self.differences.iter();
                let answers = answers.map(|(place, answer, _)| (place.clone(), answer));
                let updated = update::written(text, answers.collect());
                fs::write(self.file, updated)
                    .with_context(|| format!("failed to write {}", self.file.display()))?;
                tested.updated = self.differences.len();
            }
            Differing::Written => {}
        }
        tested.findings.sort_by_key(|finding| finding.line);
        let lines = engine.lines();
        tested.lines = lines.len();
        let not_run = lines.into_iter().filter(|(_, has_run)| !has_run);
        tested.lines_not_run = not_run.map(|(line, _)| line).collect();
        Ok(())
    }
}
