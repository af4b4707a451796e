//! The decision journal: one file writer for the node, one [`JournalWriter`] per VM's driver.
//! [`crate::core::journal`] makes the records. This module passes them to [`daemon_kit::journal`]
//! and never waits.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use daemon_kit::StageLog;
use daemon_kit::clock::Clock;
use daemon_kit::journal::{AppendedLine, Identity, Journal, Limits, Retention};
use daemon_kit::state_folder;
use protocol::journal::{Answered, Bound, NodeState, Outcome, Record, RequestEnd, RequestKind};
use protocol::time::{Span, Timestamp};
use protocol::trace::Stage;
use protocol::units::Resources;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::config::Config;
use super::input::Took;
use super::schedulers::SchedulerPod;
use crate::core::journal::{Output, Recorder, settings};
use crate::core::{Core, Event};

/// Longest wait for another agent that writes the same folder: a pod's usual time to end. Only a
/// pod deleted by force ends beside its successor.
pub(super) const LOCK_PATIENCE: Duration = Duration::from_secs(30);

/// Name of the agent's folder in a journal.
pub(super) const PART: &str = "agent";
/// Longest time between two checkpoints of a VM.
const CHECKPOINT_EVERY: Span = Span::from_secs(600);

/// The node's journal. Clones write to the same one.
#[derive(Debug, Clone)]
pub(super) struct JournalHandle {
    journal: Journal,
    clock: Clock,
    next_vm: Arc<AtomicU32>,
}

/// Opens the journal below `folder`, after waiting for another process that writes it. If that
/// fails, it logs an error, and the agent runs without one.
pub(super) async fn open(
    (folder, retention): (&Path, Retention),
    config: &Config,
    node: &str,
    clock: Clock,
) -> Option<JournalHandle> {
    let folder = folder.join(PART);
    // An error comes again from the journal itself.
    drop(state_folder::lock_within(&folder, LOCK_PATIENCE).await);
    let limits = Limits {
        retention,
        ..Limits::default()
    };
    let identity = Identity {
        part: PART.into(),
        node: node.to_owned(),
        build: env!("CARGO_PKG_VERSION").into(),
        compute_unit: config.scaling.compute_unit,
        run: u64::try_from(clock.wall().0).unwrap_or(0),
    };
    let preamble = vec![Record::Node(NodeState {
        core: Some(settings(&config.core(Span(0)))),
        engine: None,
        scheduler: None,
        t: clock.now().0,
    })];
    match Journal::open(&folder, identity, limits, clock, preamble) {
        Ok(journal) => Some(JournalHandle {
            journal,
            clock,
            next_vm: Arc::new(AtomicU32::new(1)),
        }),
        Err(error) => {
            let error = daemon_kit::chain(&error);
            tracing::error!(error, "no decision journal is written; sizing goes on");
            None
        }
    }
}

impl JournalHandle {
    /// Records the address of the scheduler at each change, until cancelled.
    pub(super) fn record_schedulers(
        self,
        mut schedulers: watch::Receiver<Option<SchedulerPod>>,
        cancel: CancellationToken,
    ) {
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = cancel.cancelled() => return,
                    changed = schedulers.changed() => if changed.is_err() { return },
                }
                let now = schedulers.borrow_and_update().clone();
                let record = Record::Node(NodeState {
                    core: None,
                    engine: None,
                    scheduler: Some(now.map_or_else(String::new, |pod| pod.ip)),
                    t: self.clock.now().0,
                });
                // The journal marks a lost record. No VM's records depend on it.
                let _ = self.journal.append(&record, false);
            }
        });
    }

    /// Records the program that answers for policies.
    pub(super) fn record_engine(&self, engine: &str) {
        let record = Record::Node(NodeState {
            core: None,
            engine: Some(engine.to_owned()),
            scheduler: None,
            t: self.clock.now().0,
        });
        let _ = self.journal.append(&record, false);
    }

    pub(super) async fn close(self) {
        self.journal.close().await;
    }
}

/// Writes the steps of one VM. Without a journal it only makes their times unique.
#[derive(Debug)]
pub(super) struct JournalWriter {
    open: Option<(JournalHandle, Recorder)>,
    epoch: u64,
    checkpoint_at: Timestamp,
    last: Timestamp,
    is_begun: bool,
    is_fed: bool,
    took: Option<Span>,
    ticket: Option<AppendedLine>,
    records: Vec<Record>,
}

impl JournalWriter {
    pub(super) fn new(journal: Option<JournalHandle>, unit: Resources) -> Self {
        let open = journal.map(|handle| {
            let vm = handle.next_vm.fetch_add(1, Ordering::Relaxed);
            (handle, Recorder::new(vm, unit))
        });
        Self {
            open,
            epoch: 0,
            checkpoint_at: Timestamp::default(),
            last: Timestamp::default(),
            is_begun: false,
            is_fed: false,
            took: None,
            ticket: None,
            records: Vec::new(),
        }
    }

    /// Begins a step. Returns its time, which is later than that of every earlier step.
    pub(super) fn begin(&mut self, now: Timestamp) -> Timestamp {
        self.last = now.max(self.last + Span(1));
        (self.is_begun, self.is_fed, self.took) = (true, false, None);
        self.last
    }

    /// Sets the duration of the request that the next event ends.
    pub(super) fn took(&mut self, took: Took) {
        self.took = Some(took.span);
    }

    /// Records the next event of the core, and a checkpoint before it when one is due.
    pub(super) fn event(&mut self, now: Timestamp, event: &Event, core: &Core) {
        self.is_fed = true;
        let Some((handle, recorder)) = &mut self.open else {
            return;
        };
        let epoch = handle.journal.epoch();
        if epoch != self.epoch || now.since(self.checkpoint_at) >= CHECKPOINT_EVERY {
            (self.epoch, self.checkpoint_at) = (epoch, now);
            recorder.checkpoint(now, core, &mut self.records);
        }
        recorder.event(now, event, core, self.took.take(), &mut self.records);
    }

    /// Returns the time of the core's computation. Without a begun step it begins one, and without
    /// an event it records a tick.
    pub(super) fn step(&mut self, now: Timestamp, core: &Core) -> Timestamp {
        if !std::mem::take(&mut self.is_begun) {
            self.begin(now);
            self.is_begun = false;
        }
        if !self.is_fed {
            self.event(self.last, &Event::Tick, core);
        }
        self.last
    }

    /// Records the output of the step.
    pub(super) fn output(&mut self, now: Timestamp, output: &Output) {
        if let Some((_, recorder)) = &mut self.open {
            let is_urgent = recorder.output(now, output, &mut self.records);
            self.write(is_urgent);
        }
    }

    /// Ticket of the record that a patch must wait for.
    pub(super) fn ticket(&mut self) -> Option<AppendedLine> {
        self.ticket.take()
    }

    /// Records that the guest has reached a size, `after` the decision for it.
    pub(super) fn verified(&mut self, core: &Core, after: Span, stages: &StageLog) {
        let Some((_, recorder)) = &self.open else {
            return;
        };
        let vm = core.vm();
        let rev = vm
            .current_revision
            .map_or(0, |reached| reached.revision.value);
        let name = format!("{}/{}", vm.namespace, vm.name);
        let known = stages.snapshot();
        let mine = known
            .iter()
            .filter(|stage| stage.trace.revision == rev && stage.trace.vm == name);
        let mut ms: BTreeMap<String, u64> = mine
            .filter_map(|stage| {
                Some((
                    stage_name(stage.stage)?.to_owned(),
                    stage.duration_us / 1_000,
                ))
            })
            .collect();
        ms.insert("total".into(), after.as_millis());
        self.records.push(Record::Outcome(Box::new(Outcome {
            again: None,
            end: RequestEnd::Done,
            got: None,
            id: 0,
            least: None,
            migrate: false,
            ms,
            rev,
            t: self.last.0,
            version: None,
            vm: recorder.vm(),
            what: RequestKind::Verified,
        })));
        self.write(false);
    }

    /// A time for a record that belongs to no step. It is later than that of every earlier step.
    pub(super) fn between_steps(&mut self, now: Timestamp) -> Timestamp {
        self.last = now.max(self.last + Span(1));
        self.last
    }

    /// Records the policies of the VM, unless the journal holds the same.
    pub(super) fn bound(&mut self, now: Timestamp, bound: &Bound) {
        if let Some((_, recorder)) = &mut self.open {
            recorder.bound(now, bound, &mut self.records);
            self.write(false);
        }
    }

    /// Records values of feeds.
    pub(super) fn fed(&mut self, now: Timestamp, values: Vec<Option<f64>>) {
        if let Some((_, recorder)) = &mut self.open {
            recorder.fed(now, values, &mut self.records);
            self.write(false);
        }
    }

    /// Records the answer of a policy.
    pub(super) fn answered(&mut self, answered: Answered) {
        if let Some((_, recorder)) = &mut self.open {
            recorder.answered(answered, &mut self.records);
            self.write(false);
        }
    }

    /// Writes the remaining records at the end of the VM's task.
    pub(super) fn end(&mut self) {
        if let Some((handle, recorder)) = &mut self.open {
            recorder.flush(&mut self.records);
            let (journal, vm) = (handle.journal.clone(), recorder.vm());
            self.write(false);
            journal.forget(vm);
        }
    }

    fn write(&mut self, is_urgent: bool) {
        let Some((handle, recorder)) = &mut self.open else {
            return;
        };
        self.ticket = None;
        for record in self.records.drain(..) {
            match handle.journal.append(&record, is_urgent) {
                Some(ticket) => self.ticket = Some(ticket),
                None => {
                    // Later records depend on the lost one, so the next step begins with a
                    // checkpoint.
                    recorder.reset();
                    (self.epoch, self.ticket) = (0, None);
                    break;
                }
            }
        }
        self.records.clear();
    }
}

/// Name of a stage of another component. The agent's own stages have outcomes of their own.
fn stage_name(stage: Stage) -> Option<&'static str> {
    match stage {
        Stage::Decision | Stage::Permit | Stage::Patch | Stage::MonitorApproval => None,
        Stage::Controller => Some("controller"),
        Stage::Qmp => Some("qmp"),
        Stage::GuestVisible => Some("guest"),
        Stage::Status => Some("status"),
    }
}
