//! Hostile scripts against the real worker. Each ends as its line in `hostile/` says, and the
//! worker, or the one after it, still answers another policy.
//!
//! `cargo xtask escape` runs all of them and prints the table; a plain test run takes a sample.

#[path = "escape/generated.rs"]
mod generated;
#[path = "escape/script.rs"]
mod script;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use policy_cli::client::{CLOCK, Client, NoLine};
use policy_contract::frames::{FromWorker, ToWorker};
use policy_contract::{Digest, Input, Scope};

use script::Script;

/// Longest time of a script that is stopped by counting, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(20);
/// One script of so many is in the sample.
const SAMPLE: usize = 5;

const HOSTILE: u32 = 1;
const HONEST: u32 = 2;
const HONEST_SOURCE: &str = "return function(i) return {cu = i.builtin.cu, reason = 'builtin'} end";

/// How a script ended.
struct Ended {
    word: &'static str,
    text: String,
    took: Duration,
}

#[test]
fn v03_hostile_scripts_end_as_expected() {
    let all = std::env::var_os("BELLOWS_ESCAPE_ALL").is_some();
    let scripts: Vec<Script> = script::all()
        .into_iter()
        .enumerate()
        .filter(|(at, _)| all || at % SAMPLE == 0)
        .map(|(_, script)| script)
        .collect();
    let mut runner = Runner::start();
    let mut survivors = Vec::new();
    for script in &scripts {
        let ended = runner.run(script);
        let row = format!(
            "{:10} {:36} {:24} {:12} {:>8.1} ms  {}",
            script.theme,
            script.name,
            script.ends.join(" or "),
            ended.word,
            ended.took.as_secs_f64() * 1000.0,
            ended.text
        );
        println!("{row}");
        if !script.ends.iter().any(|end| end == ended.word) || !runner.answers() {
            survivors.push(row);
        }
    }
    let (count, left) = (scripts.len(), survivors.len());
    println!(
        "{count} scripts, {left} survivors, {} workers",
        runner.workers
    );
    assert!(survivors.is_empty(), "{}", survivors.join("\n"));
}

#[test]
fn v03_there_are_150_scripts() {
    let scripts = script::all();
    assert!(scripts.len() >= 150, "{}", scripts.len());
    let names: BTreeMap<_, _> = scripts
        .iter()
        .map(|script| ((&script.theme, &script.name), ()))
        .collect();
    assert_eq!(names.len(), scripts.len());
}

/// The parent of the workers.
struct Runner {
    client: Client,
    workers: u32,
    asked: u64,
}

impl Runner {
    fn start() -> Self {
        Self {
            client: start(),
            workers: 1,
            asked: 0,
        }
    }

    fn run(&mut self, script: &Script) -> Ended {
        let begun = Instant::now();
        let (word, text) = match self.load(script) {
            Ok(FromWorker::Loaded { .. }) => self.asked_twice(script),
            Ok(FromWorker::Bad { line, rule, .. }) => ("bad", format!("line {line}: {rule}")),
            Ok(other) => ("said", format!("{other:?}")),
            Err(none) => self.restart(&none),
        };
        Ended {
            word,
            text: text.chars().take(100).collect(),
            took: begun.elapsed(),
        }
    }

    fn load(&mut self, script: &Script) -> Result<FromWorker, NoLine> {
        self.client
            .request(&load(HOSTILE, &script.source), PATIENCE)
    }

    /// Asks twice where the script answers: nothing may be kept between the calls.
    fn asked_twice(&mut self, script: &Script) -> (&'static str, String) {
        let clock = if script.ends.iter().any(|end| end == "late") {
            CLOCK
        } else {
            PATIENCE
        };
        let first = match self.ask(HOSTILE, clock) {
            Ok(FromWorker::Fault { kind, text, .. }) => return (kind.word(), text),
            Ok(line) => line.answer(),
            Err(none) => return self.restart(&none),
        };
        match self.ask(HOSTILE, clock) {
            Ok(line) if line.answer() == first => ("answers", format!("{first:?}")),
            Ok(line) => ("remembers", format!("{first:?}, {line:?}")),
            Err(none) => self.restart(&none),
        }
    }

    fn ask(&mut self, id: u32, clock: Duration) -> Result<FromWorker, NoLine> {
        self.asked += 1;
        let mut input = Input::sample();
        input.builtin.cu = 3;
        let ask = ToWorker::Ask {
            n: self.asked,
            vm: 1,
            id,
            t: 0.0,
            i: Box::new(input),
        };
        self.client.request(&ask, clock)
    }

    fn restart(&mut self, none: &NoLine) -> (&'static str, String) {
        self.client = start();
        self.workers += 1;
        let word = match none {
            NoLine::Late(_) => "late",
            NoLine::Died(_) => "worker_died",
            NoLine::Io(_) | NoLine::Frame(_) => "broken",
        };
        (word, none.to_string())
    }

    /// Whether another policy of the same worker is answered.
    fn answers(&mut self) -> bool {
        let answer = self.ask(HONEST, PATIENCE).map(|line| line.answer());
        matches!(answer, Ok(Some(Ok(answer))) if answer.to_value()["cu"] == 3)
    }
}

/// A worker with an honest policy.
fn start() -> Client {
    let program = Path::new(env!("CARGO_BIN_EXE_bellows-policy"));
    let mut client = Client::start(program).expect("a worker");
    let loaded = client.request(&load(HONEST, HONEST_SOURCE), PATIENCE);
    assert!(
        matches!(loaded, Ok(FromWorker::Loaded { id: HONEST })),
        "{loaded:?}"
    );
    client
}

fn load(id: u32, source: &str) -> ToWorker {
    ToWorker::Load {
        id,
        digest: Digest([0; 32]),
        scope: Scope::Vm,
        source: source.to_owned(),
        params: BTreeMap::new(),
    }
}
