//! Listening to the kernel's signs of want: PSI triggers and the group's `memory.events`.
//!
//! A trigger is armed by writing it into a `memory.pressure` file (cgroup v2) or into
//! `/proc/pressure/memory`, and tells by priority readiness of that descriptor. These two kinds of
//! file are all that this program ever opens for writing, and only where they are the kernel's.
//! Windows below two seconds need CAP_SYS_RESOURCE; without it the longer ones of everybody are
//! used. Kernels before 6.5 let nobody without it arm `/proc/pressure/memory` at all, but whoever
//! owns a group's file may arm that; the root group's `memory.pressure` is the machine's. What
//! cannot be armed is said once and tried again, for a group may come later than the monitor.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use transport::sys::{self, Registered};

use super::config::Config;
use super::inbox::Inbox;
use super::memory::{self, is_the_kernels};
use crate::core::Event;
use crate::core::files::{self, OomCounts};
use crate::core::pressure::{Scope, Stall, Stalled};

/// How long until a source that could not be listened to, or went away, is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(10);
/// How often an ordinary file in the place of `memory.events` is read: nobody tells when it
/// changes.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Stall and window in microseconds, for those who may have short windows.
const SHORT: [(Stall, u32, u32); 2] = [
    (Stall::Some, 50_000, 500_000),
    (Stall::Full, 25_000, 500_000),
];
/// The same share of the shortest window that anybody may have.
const LONG: [(Stall, u32, u32); 2] = [
    (Stall::Some, 200_000, 2_000_000),
    (Stall::Full, 100_000, 2_000_000),
];

/// Starts listening to all there is, for as long as the tasks live.
pub fn listen(config: &Config, inbox: &mpsc::Sender<Inbox>, tasks: &mut JoinSet<()>) {
    if !config.rules.asks_early {
        return;
    }
    let of_machine = [
        config.proc_root.join("pressure/memory"),
        config.cgroup_root.join("memory.pressure"),
    ];
    let vmstat = config.proc_root.join("vmstat");
    let mut sources = vec![(Scope::Machine, of_machine.to_vec(), vmstat)];
    if let Some(group) = &config.cgroup {
        let pressure = vec![group.join("memory.pressure")];
        sources.push((Scope::Cgroup, pressure, group.join("memory.stat")));
        let events = Events {
            path: group.join("memory.events"),
            inbox: inbox.clone(),
        };
        tasks.spawn(events.listen());
    }
    for (scope, paths, refaults_in) in sources {
        for (short, long) in SHORT.into_iter().zip(LONG) {
            let trigger = Trigger {
                scope,
                paths: paths.clone(),
                refaults_in: refaults_in.clone(),
                proc_root: config.proc_root.clone(),
                choices: [short, long],
                inbox: inbox.clone(),
            };
            tasks.spawn(trigger.listen());
        }
    }
}

/// One trigger on the first file of several that takes it.
struct Trigger {
    scope: Scope,
    paths: Vec<PathBuf>,
    /// Where refaults of the same tasks are counted.
    refaults_in: PathBuf,
    proc_root: PathBuf,
    choices: [(Stall, u32, u32); 2],
    inbox: mpsc::Sender<Inbox>,
}

/// Why a trigger is not armed.
#[derive(Debug, thiserror::Error)]
enum ArmError {
    #[error("{0} is no file of the kernel's")]
    NotTheKernels(PathBuf),
    #[error("{path}: {source}")]
    Refused {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Trigger {
    async fn listen(self) {
        let mut is_told = false;
        loop {
            match self.arm() {
                Ok((stall, armed)) => {
                    let text = format!("{:?} {stall:?} stalls", self.scope).to_lowercase();
                    if tell(&self.inbox, Event::Listening(text)).await.is_err() {
                        return;
                    }
                    if self.relay(stall, armed).await.is_err() {
                        return;
                    }
                }
                Err(error) if !is_told => {
                    is_told = true;
                    tracing::info!(%error, scope = ?self.scope,
                        "no pressure signal from the kernel; memory is looked at by deadline all the same");
                }
                Err(error) => tracing::debug!(%error, "still no pressure signal"),
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }

    /// The error is that of the first file.
    fn arm(&self) -> Result<(Stall, AsyncFd<Registered<File>>), ArmError> {
        let mut first = None;
        for path in &self.paths {
            match self.arm_one(path) {
                Ok(armed) => return Ok(armed),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| ArmError::NotTheKernels(PathBuf::new())))
    }

    fn arm_one(&self, path: &Path) -> Result<(Stall, AsyncFd<Registered<File>>), ArmError> {
        let refused = |source| ArmError::Refused {
            path: path.to_owned(),
            source,
        };
        let mut last = io::ErrorKind::InvalidInput.into();
        for (stall, for_us, window_us) in self.choices {
            match arm(path, stall, for_us, window_us) {
                Ok(Some(file)) => {
                    let armed = sys::register(file, Interest::PRIORITY).map_err(refused)?;
                    return Ok((stall, armed));
                }
                Ok(None) => return Err(ArmError::NotTheKernels(path.to_owned())),
                Err(error) => last = error,
            }
        }
        Err(refused(last))
    }

    /// Tells of each stall, until the file is gone. The error is the end of the process.
    async fn relay(&self, stall: Stall, armed: AsyncFd<Registered<File>>) -> Result<(), Ended> {
        loop {
            let Ok(mut guard) = armed.ready(Interest::PRIORITY).await else {
                return Ok(());
            };
            if guard.ready().is_error() {
                return Ok(());
            }
            guard.clear_ready();
            let machine = memory::machine_memory(&self.proc_root).ok();
            let counts = memory::text(&self.refaults_in);
            let stalled = Stalled {
                scope: self.scope,
                stall,
                machine,
                refaults: counts.and_then(|text| files::refaults(text.as_bytes())),
            };
            tell(&self.inbox, Event::Stalled(stalled)).await?;
        }
    }
}

/// Arms one trigger; `None` if the file is not the kernel's, which is then left as it is.
fn arm(path: &Path, stall: Stall, for_us: u32, window_us: u32) -> io::Result<Option<File>> {
    if !is_the_kernels(&File::open(path)?) {
        return Ok(None);
    }
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let kind = match stall {
        Stall::Some => "some",
        Stall::Full => "full",
    };
    file.write_all(format!("{kind} {for_us} {window_us}\0").as_bytes())?;
    Ok(Some(file))
}

/// The out-of-memory counts of one group.
struct Events {
    path: PathBuf,
    inbox: mpsc::Sender<Inbox>,
}

impl Events {
    async fn listen(self) {
        loop {
            let pause = match File::open(&self.path) {
                Ok(file) if is_the_kernels(&file) => match self.relay(file).await {
                    Ok(()) => TRY_AGAIN,
                    Err(Ended) => return,
                },
                Ok(_) if self.tell_counts().await.is_ok() => LOOK_AGAIN,
                Ok(_) => return,
                Err(_) => TRY_AGAIN,
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn relay(&self, file: File) -> Result<(), Ended> {
        let Ok(events) = sys::register(file, Interest::PRIORITY) else {
            return Ok(());
        };
        let named = Event::Listening("memory.events".to_owned());
        tell(&self.inbox, named).await?;
        loop {
            // Reading is what makes the kernel tell of the next change.
            let mut buffer = [0; 1024];
            let Ok(read) = memory::read_open(events.get_ref().get(), &mut buffer) else {
                return Ok(());
            };
            if let Some(counts) = files::oom_counts(&buffer[..read]) {
                tell(&self.inbox, Event::OutOfMemory(counts)).await?;
            }
            let Ok(mut guard) = events.ready(Interest::PRIORITY).await else {
                return Ok(());
            };
            guard.clear_ready();
        }
    }

    async fn tell_counts(&self) -> Result<(), Ended> {
        let text = memory::text(&self.path);
        let counts: Option<OomCounts> = text.and_then(|text| files::oom_counts(text.as_bytes()));
        match counts {
            Some(counts) => tell(&self.inbox, Event::OutOfMemory(counts)).await,
            None => Ok(()),
        }
    }
}

/// The owner is gone: the process ends.
struct Ended;

async fn tell(inbox: &mpsc::Sender<Inbox>, event: Event) -> Result<(), Ended> {
    inbox.send(Inbox::Event(event)).await.map_err(|_| Ended)
}

#[cfg(test)]
mod tests {
    use test_records::{Missing, skip};

    use super::*;

    #[test]
    fn an_ordinary_file_is_left_as_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("memory.pressure");
        std::fs::write(&path, "some avg10=0.00\n").expect("written");
        let armed = arm(&path, Stall::Some, 50_000, 500_000).expect("readable");
        assert!(armed.is_none());
        let text = std::fs::read_to_string(&path).expect("there");
        assert_eq!(text, "some avg10=0.00\n");
    }

    #[tokio::test]
    async fn n30_a_trigger_is_armed_on_this_kernel() {
        let path = PathBuf::from("/proc/pressure/memory");
        let (inbox, _messages) = mpsc::channel(8);
        let trigger = Trigger {
            scope: Scope::Machine,
            paths: vec!["/nowhere/memory.pressure".into(), path.clone()],
            refaults_in: "/proc/vmstat".into(),
            proc_root: "/proc".into(),
            choices: [SHORT[0], LONG[0]],
            inbox,
        };
        match trigger.arm() {
            Ok((stall, _)) => assert_eq!(stall, Stall::Some),
            Err(_) if arm(&path, Stall::Some, 200_000, 2_000_000).is_err_and(|e| lacks_psi(&e)) => {
                let reason = "the kernel arms no trigger of /proc/pressure/memory";
                skip(
                    "n30_a_trigger_is_armed_on_this_kernel",
                    Missing::Psi,
                    reason,
                );
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// No such file, or switched off at boot, or not ours to arm.
    fn lacks_psi(error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::NotFound
            || error.kind() == io::ErrorKind::PermissionDenied
            || error.raw_os_error() == Some(nix::errno::Errno::EOPNOTSUPP as i32)
    }
}
