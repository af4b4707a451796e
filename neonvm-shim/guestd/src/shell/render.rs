//! Keeps the destinations of all units up to date: a task for each unit, and one that follows the
//! folder of units.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use protocol::core::Core as _;
use protocol::runner::{GuestState, ProgramFile, ProgramFileState};
use protocol::time::{Span, Timestamp};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::command::CommandError;
use self::destination::{Destination, OwedNote, Rights};
use self::inputs::{Files, Version};
use crate::core::render::machine::{Action, Event, Machine};
use crate::core::render::unit::{self, FILE, Unit};
use crate::core::render::{Outcome, Values, WatchedFile};

pub(in crate::shell) mod command;
pub(in crate::shell) mod destination;
mod inputs;
mod signal;

/// Interval of the looks at the folder of units and at watched files.
const LOOK: Duration = Duration::from_secs(1);
/// Most characters of a report's text.
const MAX_DETAIL: usize = 300;

/// Folders of the renderer.
#[derive(Debug, Clone)]
pub struct Folders {
    /// Folder of the units, `NAME.toml`.
    pub units: PathBuf,
    /// Folder of the notes of owed signals. It must outlive the guest's boot.
    pub notes: PathBuf,
}

/// Reports of all units, for the keeper.
pub type Reports = watch::Sender<Vec<ProgramFile>>;

/// A unit's task, and the version of the file that it has read.
struct Running {
    version: Version,
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl Running {
    /// Waits for the end of the action in progress: two tasks must not write one destination.
    async fn end(self) {
        self.stop.cancel();
        // A panic is a bug of the task. The next one removes what it left.
        let _ = self.task.await;
    }
}

/// Runs until cancelled. The folder of units need not exist.
pub async fn run(
    folders: Folders,
    state: watch::Receiver<GuestState>,
    reports: Reports,
    cancel: CancellationToken,
) {
    let reports = Arc::new(reports);
    let mut running: BTreeMap<String, Running> = BTreeMap::new();
    loop {
        let found = inputs::units(&folders.units).unwrap_or_default();
        let is_gone = |name: &String, unit: &mut Running| found.get(name) != Some(&unit.version);
        for (name, unit) in running.extract_if(.., is_gone).collect::<Vec<_>>() {
            unit.end().await;
            reports.send_modify(|all| all.retain(|report| report.name != name));
        }
        for (name, version) in found {
            if !running.contains_key(&name) && running.len() < inputs::MAX_UNITS {
                let stop = cancel.child_token();
                let worker = Worker::new(&folders, &name, reports.clone());
                let task = tokio::spawn(worker.run(folders.clone(), state.clone(), stop.clone()));
                running.insert(
                    name,
                    Running {
                        version,
                        task,
                        stop,
                    },
                );
            }
        }
        tokio::select! {
            () = cancel.cancelled() => break,
            () = tokio::time::sleep(LOOK) => {}
        }
    }
    for unit in running.into_values() {
        unit.end().await;
    }
}

/// Carries out the steps of one unit.
struct Worker {
    name: String,
    note: OwedNote,
    origin: Instant,
    reports: Arc<Reports>,
}

impl Worker {
    fn new(folders: &Folders, name: &str, reports: Arc<Reports>) -> Self {
        Self {
            name: name.to_owned(),
            note: OwedNote::new(&folders.notes, name),
            origin: Instant::now(),
            reports,
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp(Span::from_duration(self.origin.elapsed()).0)
    }

    async fn run(
        self,
        folders: Folders,
        mut state: watch::Receiver<GuestState>,
        stop: CancellationToken,
    ) {
        let unit = match inputs::unit(&folders.units, &self.name) {
            Ok(unit) => unit,
            Err(rule) => return self.report(ProgramFileState::Refused, &rule),
        };
        let mut machine = Machine::new(&unit, self.note.is_there());
        let mut files = Files::default();
        loop {
            let values = values(&state.borrow_and_update(), files.look(&unit.files));
            machine.handle(self.now(), Event::Values(values));
            while let Some(action) = machine.poll_action(self.now()) {
                let event = self.perform(&unit, action).await;
                machine.handle(self.now(), event);
                if stop.is_cancelled() {
                    return;
                }
            }
            self.show(&machine);
            let look = Instant::now() + LOOK;
            let due = machine
                .poll_deadline()
                .map(|at| self.origin + Span(at.0).to_duration());
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep_until(due.map_or(look, |due| due.min(look))) => {}
                changed = state.changed() => if changed.is_err() {
                    return;
                },
            }
        }
    }

    async fn perform(&self, unit: &Unit, action: Action) -> Event {
        let rights = match rights(unit) {
            Ok(rights) => rights,
            Err(error) if action == Action::Read => return Event::Present(Err(error)),
            Err(error) => return Event::Done(Err(error)),
        };
        let (path, note) = (unit.destination.clone(), self.note.clone());
        let open = move || Destination::open(&path, rights);
        Event::Done(match action {
            Action::Read => {
                let read = blocking(move || {
                    let place = open()?;
                    place.discard()?;
                    place.read()
                });
                return Event::Present(read.await);
            }
            Action::Write(content) => blocking(move || open()?.write(&content)).await,
            Action::Check => match blocking(move || Ok(open()?.temporary())).await {
                Ok(new) => match command::run(&check(unit, &new), rights).await {
                    Err(CommandError::Late(error)) => return Event::CheckLate(error),
                    done => done.map_err(|error| error.to_string()),
                },
                Err(error) => Err(error),
            },
            Action::Discard => blocking(move || open()?.discard()).await,
            Action::Note => blocking(move || note.make()).await,
            Action::Place => blocking(move || open()?.put()).await.inspect(|()| {
                let destination = unit.destination.display();
                info!(unit = self.name, %destination, "file replaced");
            }),
            Action::Signal => match &unit.signal {
                Some(signal) => signal::send(signal, rights).await,
                None => Ok(()),
            },
            Action::Forget => blocking(move || note.remove()).await,
        })
    }

    /// Publishes the machine's result.
    fn show(&self, machine: &Machine) {
        let outcome = machine.outcome();
        let state = match outcome {
            Outcome::Waiting => ProgramFileState::Waiting,
            Outcome::Refused(_) => ProgramFileState::Refused,
            Outcome::Template(_) => ProgramFileState::TemplateFailed,
            Outcome::Check(_) => ProgramFileState::CheckFailed,
            Outcome::Failed(_) => ProgramFileState::Failed,
            Outcome::Current => match machine.owed() {
                None => return self.report(ProgramFileState::Current, ""),
                Some(error) if machine.is_overdue() => {
                    return self.report(ProgramFileState::SignalOwed, error);
                }
                Some(error) => return self.report(ProgramFileState::Waiting, error),
            },
        };
        self.report(state, &outcome.to_string());
    }

    /// Publishes a result if it is new, and logs it.
    fn report(&self, state: ProgramFileState, detail: &str) {
        let shown = detail.chars().map(|c| if c.is_control() { ' ' } else { c });
        let (name, detail) = (self.name.clone(), shown.take(MAX_DETAIL).collect());
        let new = ProgramFile {
            name,
            state,
            detail,
        };
        self.reports.send_if_modified(|all| {
            if all.contains(&new) {
                return false;
            }
            if matches!(state, ProgramFileState::Current | ProgramFileState::Waiting) {
                info!(unit = new.name, ?state, new.detail, "file of a program");
            } else {
                warn!(unit = new.name, ?state, new.detail, "file does not follow");
            }
            all.retain(|old| old.name != new.name);
            all.push(new);
            all.sort_by(|a, b| a.name.cmp(&b.name));
            true
        });
    }
}

fn values(state: &GuestState, files: BTreeMap<String, WatchedFile>) -> Values {
    Values {
        cpus: state.cpus_online,
        memory: state.mem_total,
        files,
    }
}

fn rights(unit: &Unit) -> Result<Rights, String> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let (user, group) = unit::identity(&passwd, &unit.owner)
        .ok_or_else(|| format!("there is no user {}", unit.owner))?;
    let mode = unit.mode.0;
    Ok(Rights { user, group, mode })
}

/// The check's command for the new file.
fn check(unit: &Unit, new: &Path) -> Vec<String> {
    let path = new.to_string_lossy();
    let arguments = unit.check.iter().flatten();
    arguments
        .map(|argument| argument.replace(FILE, &path))
        .collect()
}

/// Disks may be slow, and other tasks must not wait for them.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let done = spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(error.to_string()))
}

#[cfg(test)]
mod tests;
