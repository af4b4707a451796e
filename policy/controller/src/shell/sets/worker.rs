//! A worker for the versions of one role. One question is open at a time.
//!
//! The worker is started for the first question and again after it ended. Versions and pasts are
//! sent to each new one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use policy_contract::Fault;
use policy_contract::frames::{self, FromWorker, MAX_LINE_BYTES, MAX_POLICIES, ToWorker};
use policy_contract::sets::SetAnswer;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::Loaded;
use crate::core::sets::{End, Question};

/// Longest time of an answer.
const CLOCK: Duration = Duration::from_millis(50);
/// Longest time in which a version is loaded or a past is filled, the worker's start included.
const LOADING: Duration = Duration::from_secs(5);

/// The worker of a role.
pub(super) struct Worker {
    program: Option<PathBuf>,
    running: Option<Running>,
}

struct Running {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    loaded: Loaded,
    pasts: BTreeSet<u32>,
}

/// Why there is no line.
enum NoLine {
    Late,
    Died,
}

impl Worker {
    pub(super) fn new(program: Option<PathBuf>) -> Self {
        Self {
            program,
            running: None,
        }
    }

    /// Asks a version. A worker that is late is killed.
    pub(super) async fn ask(&mut self, question: &Question) -> End {
        if self.running.is_none() {
            let Some(program) = &self.program else {
                return End::NotAsked("bellows-policy is missing".to_owned());
            };
            match start(program) {
                Ok(running) => self.running = Some(running),
                Err(error) => {
                    let program = program.display();
                    return End::NotAsked(format!("{program} could not be started: {error}"));
                }
            }
        }
        let Some(running) = &mut self.running else {
            return End::NotAsked("there is no worker".to_owned());
        };
        match running.ask(question).await {
            Ok(end) => end,
            Err(no_line) => {
                let (fault, text) = match no_line {
                    NoLine::Late => (
                        Fault::Late,
                        format!("no answer in {} ms", CLOCK.as_millis()),
                    ),
                    NoLine::Died => (Fault::WorkerDied, "the worker ended".to_owned()),
                };
                if let Some(mut running) = self.running.take() {
                    // It fails where the worker has ended.
                    let _ = running.child.kill().await;
                }
                End::Fault(fault, text)
            }
        }
    }
}

fn start(program: &Path) -> std::io::Result<Running> {
    let mut child = Command::new(program)
        .arg("worker")
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let pipe = std::io::ErrorKind::BrokenPipe;
    let stdin = child.stdin.take().ok_or(pipe)?;
    let stdout = child.stdout.take().ok_or(pipe)?;
    Ok(Running {
        child,
        stdin,
        stdout: BufReader::new(stdout),
        loaded: Loaded::new(),
        pasts: BTreeSet::new(),
    })
}

impl Running {
    async fn ask(&mut self, question: &Question) -> Result<End, NoLine> {
        let id = match self.load(question).await? {
            Ok(id) => id,
            Err(end) => return Ok(end),
        };
        self.fill(question).await?;
        let message = ToWorker::AskSets {
            n: question.n,
            vm: question.past,
            id,
            t: question.at,
            i: Box::new(question.input.clone()),
        };
        let Ok(line) = frames::encode(&message) else {
            let text = format!("the question is longer than {MAX_LINE_BYTES} bytes");
            return Ok(End::NotAsked(text));
        };
        Ok(match self.request(&line, CLOCK).await? {
            FromWorker::SaidSets { n, answer, .. } if n == question.n => {
                match SetAnswer::read(&answer, &question.input.facts()) {
                    Ok(answer) => End::Answer(answer),
                    Err(refusal) => End::Fault(Fault::Output, refusal.to_string()),
                }
            }
            FromWorker::Fault { n, kind, text } if n == question.n => End::Fault(kind, text),
            // A worker that says what nobody asked is of no use.
            _ => return Err(NoLine::Died),
        })
    }

    /// Number of the version, which is loaded if it is not.
    async fn load(&mut self, question: &Question) -> Result<Result<u32, End>, NoLine> {
        let known = self.loaded.get(&question.digest).copied();
        if let Some(id) = known.filter(|_| !question.is_fresh) {
            return Ok(Ok(id));
        }
        let next = u32::try_from(self.loaded.len()).unwrap_or(0) % MAX_POLICIES + 1;
        let id = known.unwrap_or(next);
        self.loaded.retain(|_, of| *of != id);
        let load = ToWorker::Load {
            id,
            digest: question.digest,
            scope: question.spec.scope,
            source: question.spec.source.clone(),
            params: question.spec.params.clone(),
        };
        let line = frames::encode(&load).map_err(|_| NoLine::Died)?;
        match self.request(&line, LOADING).await? {
            FromWorker::Loaded { id: of } if of == id => {
                self.loaded.insert(question.digest, id);
                Ok(Ok(id))
            }
            FromWorker::Bad { line, rule, .. } => {
                let text = format!("line {line}: {rule}");
                Ok(Err(End::Fault(Fault::Syntax, text)))
            }
            _ => Err(NoLine::Died),
        }
    }

    /// Sends the past, whole to a worker that does not have it.
    async fn fill(&mut self, question: &Question) -> Result<(), NoLine> {
        let vm = question.past;
        if self.pasts.insert(vm) {
            for column in question.history.columns() {
                let line = frames::encode(&ToWorker::fill(vm, column));
                let line = line.map_err(|_| NoLine::Died)?;
                match self.request(&line, LOADING).await? {
                    FromWorker::Filled { vm: of } if of == vm => {}
                    _ => return Err(NoLine::Died),
                }
            }
            return Ok(());
        }
        let feeds = question.input.feeds.iter();
        let s = feeds.map(|(name, sum)| (format!("feed:{name}"), sum.sum));
        let (t, s) = (question.at, s.collect());
        let line = frames::encode(&ToWorker::Sample { vm, t, s });
        self.send(&line.map_err(|_| NoLine::Died)?).await
    }

    async fn send(&mut self, line: &[u8]) -> Result<(), NoLine> {
        let sent = tokio::time::timeout(LOADING, self.stdin.write_all(line)).await;
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(NoLine::Died),
            Err(_) => Err(NoLine::Late),
        }
    }

    async fn request(&mut self, line: &[u8], clock: Duration) -> Result<FromWorker, NoLine> {
        self.send(line).await?;
        let mut response = Vec::new();
        let most = u64::try_from(MAX_LINE_BYTES).unwrap_or(u64::MAX) + 1;
        let mut limited = (&mut self.stdout).take(most);
        let read = limited.read_until(b'\n', &mut response);
        match tokio::time::timeout(clock, read).await {
            Err(_) => Err(NoLine::Late),
            Ok(Err(_) | Ok(0)) => Err(NoLine::Died),
            Ok(Ok(_)) => frames::decode(&response, MAX_LINE_BYTES).map_err(|_| NoLine::Died),
        }
    }
}
