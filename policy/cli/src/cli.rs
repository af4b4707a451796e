//! The commands.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::LazyLock;

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};
use policy_cli::scope::AnyInput;
use policy_cli::suite::{self, Differing};
use policy_cli::{check, jail, worker};
use policy_contract::{FeedSource, History, Input, Scope, Series, SetInput, Spec, frames};
use policy_engine::Engine;
use serde_json::json;

use crate::terminal::{Format, ScopeArg, complain, exit, parameter, say, series, this_program};
use crate::text;
use crate::whatif::{JudgeArgs, ReplayArgs};

/// Release, contract and interpreter. An agent asks no program of another contract, and its journal
/// keeps the line.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let (release, engine) = (protocol::release::RELEASE, policy_engine::version());
    format!("{release} ({}, {engine})", frames::contract_word())
});

/// Asks and checks scaling policies.
#[derive(Parser)]
#[command(name = "bellows-policy", version = VERSION.as_str())]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Answer questions of an agent, as JSON lines
    Worker,
    /// Compile a policy and ask it made-up questions
    Check {
        #[command(flatten)]
        policy: PolicyArgs,
        /// A set that a policy of scope set reads as i.sets.NAME [default: web, api and batch]
        #[arg(long = "set", value_name = "NAME")]
        sets: Vec<String>,
        /// Made-up questions; 0 only compiles it
        #[arg(long, default_value_t = check::QUESTIONS, value_name = "N")]
        questions: u64,
        /// Format of the result
        #[arg(short, long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
    /// Ask policies the questions beside them and compare the answers
    ///
    /// Each question is asked in two confined processes, and once more with the answer as i.old.
    Test {
        /// A policy, or a directory of policies; fixtures of NAME.lua are in NAME.toml
        #[arg(value_name = "DIR", default_value = ".")]
        path: PathBuf,
        /// Write the given answers to the fixtures
        #[arg(long)]
        update: bool,
        /// Format of the result
        #[arg(short, long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
    /// Ask a policy once
    Run {
        #[command(flatten)]
        policy: PolicyArgs,
        /// The question, JSON
        #[arg(long, value_name = "FILE")]
        input: PathBuf,
        /// The past, JSON: {"now": 3600, "series": {"load1": [[3595, 0.7], …]}}
        #[arg(long, value_name = "FILE")]
        past: Option<PathBuf>,
    },
    /// Run a journal again with a policy in a model
    ///
    /// The first line is the model's error. Ends with 1 if it is too large to judge by.
    Replay(Box<ReplayArgs>),
    /// Print what the gate decides by, as JSON: the figures of a replay
    Judge(Box<JudgeArgs>),
    /// Print type declarations in Luau for editors
    Stubs,
}

#[derive(Args)]
struct PolicyArgs {
    /// Source of the policy
    file: PathBuf,
    /// Number that the policy reads as i.params.NAME
    #[arg(long = "params", value_name = "NAME=NUMBER", value_parser = parameter)]
    params: Vec<(String, f64)>,
    /// Series that the policy reads beyond load1, load5, used and cached
    #[arg(long, value_name = "NAME", value_parser = series)]
    series: Vec<Series>,
    /// Figure of the guest that the policy reads as i.feeds.NAME
    #[arg(long = "feed", value_name = "NAME")]
    feeds: Vec<String>,
    /// What the policy decides about
    #[arg(long, value_enum, default_value_t = ScopeArg::Vm)]
    scope: ScopeArg,
}

/// Past of a question in a file.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Past {
    now: f64,
    series: std::collections::BTreeMap<String, Vec<(f64, f32)>>,
}

impl Cli {
    pub(crate) fn run(self) -> ExitCode {
        let result = match &self.command {
            Command::Worker => return work(),
            Command::Check {
                policy,
                sets,
                questions,
                output,
            } => policy.check(sets, *questions, *output),
            Command::Test {
                path,
                update,
                output,
            } => test(path, *update, *output),
            Command::Run {
                policy,
                input,
                past,
            } => policy.run(input, past.as_deref()),
            Command::Replay(args) => args.run(),
            Command::Judge(args) => args.run(),
            Command::Stubs => say(&policy_contract::stubs()).map(|()| ExitCode::SUCCESS),
        };
        result.unwrap_or_else(|error| {
            complain(&format!("error: {error:#}"));
            ExitCode::from(exit::USAGE)
        })
    }
}

/// Runs the worker. Never returns by way of the runtime, whose last calls are forbidden.
fn work() -> ExitCode {
    if let Err(error) = jail::enter() {
        complain(&format!("error: the worker cannot be confined: {error}"));
        return ExitCode::from(exit::UNAVAILABLE);
    }
    let code = match worker::serve(io::stdin().lock(), io::stdout().lock()) {
        Ok(()) => 0,
        Err(error) => {
            complain(&format!("error: {error}"));
            exit::INTERNAL
        }
    };
    signal_hook::low_level::exit(code.into())
}

fn test(path: &Path, update: bool, format: Format) -> Result<ExitCode> {
    let differing = if update {
        Differing::Written
    } else {
        Differing::Found
    };
    let report = suite::test(path, &this_program()?, differing)?;
    if format == Format::Json {
        say(&format!("{}\n", serde_json::to_string(&report)?))?;
    } else {
        report
            .policies
            .iter()
            .try_for_each(|one| say(&text::tested(one)))?;
    }
    let code = if report.ok { 0 } else { exit::FINDING };
    Ok(ExitCode::from(code))
}

impl PolicyArgs {
    fn spec(&self) -> Result<Spec> {
        let source = fs::read_to_string(&self.file)
            .with_context(|| format!("failed to read {}", self.file.display()))?;
        let mut spec = Spec::of_source(source);
        spec.scope = self.scope.into();
        spec.params = self.params.iter().cloned().collect();
        spec.series.clone_from(&self.series);
        let feeds = self.feeds.iter().map(|name| FeedSource {
            name: name.clone(),
            port: 1,
            metric: name.clone(),
        });
        spec.feeds = feeds.collect();
        Ok(spec)
    }

    fn check(&self, sets: &[String], questions: u64, format: Format) -> Result<ExitCode> {
        let spec = self.spec()?;
        let report = check::check(&spec, sets, questions, &this_program()?)?;
        if format == Format::Json {
            let mut value = serde_json::to_value(&report)?;
            value["file"] = self.file.display().to_string().into();
            say(&format!("{value}\n"))?;
        } else {
            say(&text::checked(&self.file, &report))?;
        }
        let code = if report.ok { 0 } else { exit::FINDING };
        Ok(ExitCode::from(code))
    }

    fn run(&self, input: &Path, past: Option<&Path>) -> Result<ExitCode> {
        let spec = self.spec()?;
        let question = match spec.scope {
            Scope::Vm => {
                let mut question: Input = read(input)?;
                if question.params.is_empty() {
                    question.params.clone_from(&spec.params);
                }
                AnyInput::Vm(Box::new(question))
            }
            Scope::Set => {
                let mut question: SetInput = read(input)?;
                if question.params.is_empty() {
                    question.params.clone_from(&spec.params);
                }
                AnyInput::Set(Box::new(question))
            }
        };
        let past: Option<Past> = past.map(read).transpose()?;
        let (past, now) = past.map_or_else(|| (History::new(&[]), 0.0), Past::history);
        let engine = match Engine::load(&spec) {
            Ok(engine) => engine,
            Err(error) => return self.refused(error.line, &error.rule),
        };
        match question.ask(&engine, &past, now) {
            Ok(reply) => {
                let answer = json!({"answer": reply.answer.to_value(), "steps": reply.steps});
                say(&format!("{answer}\n"))?;
                Ok(ExitCode::SUCCESS)
            }
            Err(failed) => {
                complain(&format!("{}: {failed}", self.file.display()));
                Ok(ExitCode::from(exit::FINDING))
            }
        }
    }

    fn refused(&self, line: u32, rule: &str) -> Result<ExitCode> {
        complain(&format!("{}:{line}: {rule}", self.file.display()));
        Ok(ExitCode::from(exit::FINDING))
    }
}

impl Past {
    fn history(self) -> (History, f64) {
        let series = self.series.keys().filter_map(|name| Series::of(name));
        let mut past = History::new(&series.collect::<Vec<_>>());
        for (name, samples) in &self.series {
            for (at, value) in samples {
                past.record(name, *at, *value);
            }
        }
        (past, self.now)
    }
}

fn read<T: serde::de::DeserializeOwned>(file: &Path) -> Result<T> {
    let text = fs::read(file).with_context(|| format!("failed to read {}", file.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("malformed {}", file.display()))
}
