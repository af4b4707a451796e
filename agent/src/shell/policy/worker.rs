//! The supervisor of `bellows-policy worker`. It starts the program, passes messages to it, and
//! ends it when an answer is late.
//!
//! The question that is open when the worker ends is the culprit's. A policy that ended two workers
//! within ten minutes is not asked any more. Every other open question ends as lost.
//!
//! A question that may be asked again ([`rechecks`]) is the last one that the worker gets until it
//! has ended, so that both answers rest on the same past.

mod process;
mod program;
mod queue;
mod rechecks;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt as _;
use policy_contract::frames::{self, FromWorker, MAX_LINE_BYTES, ToWorker};
use policy_contract::{Digest, Fault, Role};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::process::{Worker, end};
pub(super) use self::program::find as find_program;
use self::queue::{Ended, Queue};
use super::{End, PolicyRuntime, Question, Request, WorkerLink};
use crate::shell::journal::JournalHandle;

/// First wait before a restart; it doubles up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// A worker that ran as long starts the waits from the beginning.
const GOOD_RUN: Duration = Duration::from_secs(60);
/// Time within which a second end sets a policy aside.
const CULPRIT_WITHIN: Duration = Duration::from_secs(600);
/// Unsent bytes beyond which no more messages are taken.
const MAX_UNSENT: usize = 4 << 20;

pub(super) struct Supervisor {
    runtime: PolicyRuntime,
    role: Role,
    requests: mpsc::Receiver<Request>,
    journal: Option<JournalHandle>,
    /// The program; `None` = found beside this one or on the PATH.
    program: Option<PathBuf>,
    last_generation: u64,
    /// Times at which policies ended a worker.
    ends: Vec<(Digest, Instant)>,
}

impl Supervisor {
    pub(super) fn new(
        runtime: PolicyRuntime,
        role: Role,
        requests: mpsc::Receiver<Request>,
        journal: Option<JournalHandle>,
        program: Option<PathBuf>,
    ) -> Self {
        Self {
            runtime,
            role,
            requests,
            journal,
            program,
            last_generation: 0,
            ends: Vec::new(),
        }
    }

    fn link(&self) -> &WorkerLink {
        self.runtime.link(self.role)
    }

    /// Runs until cancelled. No worker starts before the first VM has a policy.
    pub(super) async fn run(mut self, cancel: CancellationToken) {
        loop {
            let request = tokio::select! {
                request = self.requests.recv() => request,
                () = cancel.cancelled() => return,
            };
            match request {
                None => return,
                Some(Request::Wanted) => break,
                Some(_) => {}
            }
        }
        let mut wait = FIRST_WAIT;
        loop {
            let began = Instant::now();
            tokio::select! {
                () = self.run_worker() => {}
                () = cancel.cancelled() => return,
            }
            self.link().generation.store(0, Ordering::Release);
            if began.elapsed() >= GOOD_RUN {
                wait = FIRST_WAIT;
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = cancel.cancelled() => return,
            }
            wait = (wait * 2).min(LONGEST_WAIT);
            self.runtime.0.metrics.worker_restarts.inc();
            self.link().state().restarts += 1;
        }
    }

    /// Starts a worker and serves it until it ends.
    async fn run_worker(&mut self) {
        let started = match self.start().await {
            Ok(started) => started,
            Err(problem) => {
                let before = self.link().state().problem.replace(problem.clone());
                if before.as_ref() != Some(&problem) {
                    tracing::error!(problem, "no policy is asked; sizing goes on");
                }
                return;
            }
        };
        self.link().state().problem = None;
        self.last_generation += 1;
        let generation = self.last_generation;
        self.link().generation.store(generation, Ordering::Release);
        let mut worker = Worker::new(started);
        let end = self.serve(&mut worker, generation).await;
        self.link().generation.store(0, Ordering::Release);
        let _ = worker.child.start_kill();
        tracing::warn!(reason = end.text(), "the worker for policies ended");
        self.settle(worker.queue, &end);
        let _ = worker.child.wait().await;
    }

    async fn start(&mut self) -> Result<Child, String> {
        let program = self.program.clone().map_or_else(program::find, Ok)?;
        let shown = program.display();
        // The program may have been replaced since the last start.
        let engine = program::version(&program).await?;
        let before = self.link().state().engine.replace(engine.clone());
        if before.as_ref() != Some(&engine)
            && let Some(journal) = &self.journal
        {
            journal.record_engine(&engine);
        }
        Command::new(&program)
            .arg("worker")
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("{shown} could not be started: {error}"))
    }

    /// Passes messages in both directions until the worker must end.
    async fn serve(&mut self, worker: &mut Worker, generation: u64) -> WorkerEnd {
        loop {
            let deadline = worker.queue.deadline();
            let is_full = worker.unsent.len() > MAX_UNSENT;
            if is_full && deadline.is_none() {
                return WorkerEnd::Late;
            }
            let can_take = !is_full && !worker.queue.holds_past();
            tokio::select! {
                line = worker.lines.next() => match line {
                    Some(Ok(line)) => {
                        if let Err(end) = self.take_line(worker, &line) {
                            return end;
                        }
                    }
                    Some(Err(_)) => return WorkerEnd::Malformed,
                    None => return WorkerEnd::Died,
                },
                written = worker.stdin.write(&worker.unsent), if !worker.unsent.is_empty() => {
                    match written {
                        Ok(0) | Err(_) => return WorkerEnd::Died,
                        Ok(count) => drop(worker.unsent.drain(..count)),
                    }
                }
                () = until(deadline) => return WorkerEnd::Late,
                request = self.requests.recv(), if can_take => match request {
                    None => std::future::pending().await,
                    Some(request) => self.take_request(worker, generation, request),
                },
            }
        }
    }

    fn take_request(&self, worker: &mut Worker, generation: u64, request: Request) {
        match request {
            Request::Forget { generation: of, vm } if of == generation => {
                worker.send(&ToWorker::Forget { vm });
            }
            Request::Fill {
                generation: of,
                vm,
                past,
            } if of == generation => {
                for column in past.columns() {
                    if worker.send(&ToWorker::fill(vm, column)) {
                        worker.queue.fills(vm, Instant::now());
                    }
                }
            }
            Request::Sample {
                generation: of,
                vm,
                at,
                samples,
            } if of == generation => {
                worker.send(&ToWorker::Sample {
                    vm,
                    t: at,
                    s: samples,
                });
            }
            Request::Ask(question) if question.generation == generation => {
                self.ask(worker, *question);
            }
            Request::Ask(question) => end(&question, End::Lost),
            Request::Wanted
            | Request::Forget { .. }
            | Request::Fill { .. }
            | Request::Sample { .. } => {}
        }
    }

    fn ask(&self, worker: &mut Worker, question: Question) {
        let policy = &question.policy;
        if let Some((fault, text)) = self.link().set_aside(&policy.digest) {
            end(&question, End::Aside(fault, text));
            return;
        }
        let (_, is_new) = worker.queue.id_of(policy.digest);
        if is_new {
            worker.load(policy);
        }
        worker.ask(question);
    }

    fn take_line(&self, worker: &mut Worker, line: &str) -> Result<(), WorkerEnd> {
        let message: FromWorker =
            frames::decode(line.as_bytes(), MAX_LINE_BYTES).map_err(|_| WorkerEnd::Malformed)?;
        let ended = worker
            .queue
            .ended(&message, Instant::now())
            .ok_or(WorkerEnd::Malformed)?;
        match (ended, message) {
            (Ended::Load(digest), FromWorker::Bad { line, rule, .. }) => {
                let text = format!("line {line}: {rule}");
                let mut state = self.link().state();
                state.set_aside.insert(digest, (Fault::Syntax, text));
            }
            (Ended::Ask(question), FromWorker::Fault { kind, text, .. }) => {
                // A policy that is refused may have been asked already.
                let known = self.link().set_aside(&question.policy.digest);
                let (fault, text) = known.unwrap_or((kind, text));
                worker.conclude(question, End::Fault(fault, text));
            }
            (Ended::Ask(question), message) => {
                let said = match message.answer() {
                    Some(Ok(answer)) => End::Answer(Box::new(answer)),
                    Some(Err(refusal)) => End::Fault(Fault::Output, refusal.to_string()),
                    None => return Err(WorkerEnd::Malformed),
                };
                worker.conclude(question, said);
            }
            (Ended::Load(_) | Ended::Fill, _) => {}
        }
        Ok(())
    }

    /// Ends what was open when the worker ended.
    fn settle(&mut self, queue: Queue, reason: &WorkerEnd) {
        let fault = reason.fault();
        let mut open = queue.into_open().into_iter();
        if let Some(first) = open.next() {
            match first {
                Ended::Load(digest) => self.blame(digest, fault, reason.text()),
                Ended::Fill => {}
                Ended::Ask(question) => {
                    self.blame(question.policy.digest, fault, reason.text());
                    end(&question, End::Fault(fault, reason.text().to_owned()));
                }
            }
        }
        for other in open {
            if let Ended::Ask(question) = other {
                end(&question, End::Lost);
            }
        }
    }

    fn blame(&mut self, digest: Digest, fault: Fault, text: &str) {
        self.ends.retain(|(_, at)| at.elapsed() < CULPRIT_WITHIN);
        let is_second = self.ends.iter().any(|(other, _)| *other == digest);
        self.ends.push((digest, Instant::now()));
        if is_second {
            let text = format!("it ended two workers within ten minutes, the last one: {text}");
            let digest_text = digest.short();
            tracing::error!(digest = digest_text, text, "policy is not asked any more");
            let fault = if fault == Fault::Late {
                Fault::WorkerDied
            } else {
                fault
            };
            self.link().state().set_aside.insert(digest, (fault, text));
        }
    }
}

/// Why a worker ended.
enum WorkerEnd {
    Late,
    Died,
    Malformed,
}

impl WorkerEnd {
    fn fault(&self) -> Fault {
        match self {
            Self::Late => Fault::Late,
            Self::Died | Self::Malformed => Fault::WorkerDied,
        }
    }

    fn text(&self) -> &'static str {
        match self {
            Self::Late => "no answer within 50 ms",
            Self::Died => "the program ended",
            Self::Malformed => "the program sent a malformed line",
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
