//! Asks a worker the questions of a model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use policy_contract::frames::{FromWorker, ToWorker};
use policy_contract::{Answer, Fault, Input, Spec};
use policy_whatif::Adviser;

use crate::client::{Client, NoLine};

/// Longest time to load a policy.
const LOADING: Duration = Duration::from_secs(10);
/// Longest time of an answer. Longer than that of an agent, because a busy machine must not look
/// like a fault of the policy.
const CLOCK: Duration = Duration::from_secs(1);
/// Number of the policy in the worker.
const ID: u32 = 1;

/// Why a policy does not load.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {rule}")]
pub struct Refused {
    /// Line of the source, from 1; 0 if there is none.
    pub line: u32,
    /// What is broken.
    pub rule: String,
}

/// A confined worker with one policy.
#[derive(Debug)]
pub struct WorkerAdviser {
    program: PathBuf,
    spec: Spec,
    /// `None` after a worker that could not be started again.
    client: Option<Client>,
    last_question: u64,
}

impl WorkerAdviser {
    /// Starts `program worker` and loads the policy.
    ///
    /// # Errors
    /// [`Refused`] if the policy does not load, else the worker cannot be used.
    pub fn start(program: &Path, spec: &Spec) -> Result<Self> {
        Ok(Self {
            client: Some(loaded(program, spec)?),
            program: program.to_owned(),
            spec: spec.clone(),
            last_question: 0,
        })
    }

    fn send(&mut self, message: &ToWorker) {
        // The next question finds a worker that has ended.
        if let Some(client) = &mut self.client {
            let _ = client.send(message);
        }
    }

    /// Starts another worker. The past that the last one had is lost.
    fn restart(&mut self) {
        self.client = None;
        self.client = loaded(&self.program, &self.spec).ok();
    }
}

fn loaded(program: &Path, spec: &Spec) -> Result<Client> {
    let mut client =
        Client::start(program).with_context(|| format!("failed to start {}", program.display()))?;
    let load = ToWorker::Load {
        id: ID,
        digest: spec.digest(),
        scope: spec.scope,
        source: spec.source.clone(),
        params: spec.params.clone(),
    };
    match client.request(&load, LOADING)? {
        FromWorker::Loaded { .. } => Ok(client),
        FromWorker::Bad { line, rule, .. } => Err(Refused { line, rule }.into()),
        other => bail!("the worker answers a policy with {other:?}"),
    }
}

impl Adviser for WorkerAdviser {
    fn forget(&mut self, vm: u32) {
        self.send(&ToWorker::Forget { vm });
    }

    fn sample(&mut self, vm: u32, at: f64, samples: BTreeMap<String, f64>) {
        self.send(&ToWorker::Sample {
            vm,
            t: at,
            s: samples,
        });
    }

    fn ask(&mut self, vm: u32, at: f64, input: &Input) -> Result<Answer, Fault> {
        self.last_question += 1;
        let question = ToWorker::Ask {
            n: self.last_question,
            vm,
            id: ID,
            t: at,
            i: Box::new(input.clone()),
        };
        let client = self.client.as_mut().ok_or(Fault::WorkerDied)?;
        match client.request(&question, CLOCK) {
            Ok(FromWorker::Fault { kind, .. }) => Err(kind),
            Ok(said) => {
                let answer = said.answer().and_then(|answer| answer.ok());
                answer.ok_or(Fault::Output)
            }
            Err(NoLine::Late(_)) => {
                self.restart();
                Err(Fault::Late)
            }
            Err(_) => {
                self.restart();
                Err(Fault::WorkerDied)
            }
        }
    }
}
