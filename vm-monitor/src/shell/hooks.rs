//! Running the hooks: every executable file of one folder, in the order of their names, one after
//! the other.
//!
//! A hook gets the event as its argument and the sizes in its environment, and nothing else of
//! ours: no input, a plain `PATH`, a time limit for all of them together. Before a shrink, any end
//! but status 0 is a veto, a hook that takes too long as well: nothing shrinks blind. The first
//! line it prints is the reason.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use protocol::units::Bytes;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::inbox::Inbox;
use crate::core::hooks::{HookEvent, HookSizes, HookVeto};
use crate::core::{Event, OperationId};

/// Time for all hooks of one event together. The agent waits 5 s for an answer, and the file cache
/// and the guest's own size may take 3 s of it.
pub const HOOKS_LIMIT: Duration = Duration::from_millis(1500);
/// Most hooks of a folder; further ones are not run, and that is a veto.
pub const HOOKS_AT_MOST: usize = 32;
/// What is read of a hook's output, bytes.
const OUTPUT_LIMIT: u64 = 4096;
/// Where a hook finds its programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Hooks to run, and the number to tell the outcome under.
pub type HookOrder = (OperationId, HookEvent, HookSizes);

/// A folder of hooks and the task that runs them.
#[derive(Debug)]
pub struct Hooks {
    folder: PathBuf,
    orders: mpsc::Sender<HookOrder>,
}

impl Hooks {
    /// Starts the task that runs the hooks of a folder.
    pub fn start(folder: PathBuf, inbox: mpsc::Sender<Inbox>, tasks: &mut JoinSet<()>) -> Self {
        let (orders, mut ordered) = mpsc::channel::<HookOrder>(1);
        let watched = folder.clone();
        tasks.spawn(async move {
            while let Some((operation, event, sizes)) = ordered.recv().await {
                let outcome = run_all(&watched, event, sizes, HOOKS_LIMIT).await;
                let event = Event::HooksDone { operation, outcome };
                if inbox.send(Inbox::Event(event)).await.is_err() {
                    return;
                }
            }
        });
        Self { folder, orders }
    }

    /// Runs all hooks of an event. Where there is no folder, as in most guests, the outcome is
    /// returned and spares a turn of the task. Otherwise it comes as an event.
    pub fn order(&self, order: HookOrder) -> Option<Result<(), HookVeto>> {
        let folder = std::fs::metadata(&self.folder);
        if folder.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Some(Ok(()));
        }
        let ended = self.orders.try_send(order).is_err();
        ended.then(|| Err(HookVeto::new("hooks", "the hooks' task has ended")))
    }
}

async fn run_all(
    folder: &Path,
    event: HookEvent,
    sizes: HookSizes,
    limit: Duration,
) -> Result<(), HookVeto> {
    let unreadable =
        |error: io::Error| HookVeto::new(&folder.to_string_lossy(), &error.to_string());
    let hooks = executables(folder).map_err(unreadable)?;
    if hooks.len() > HOOKS_AT_MOST {
        let detail = format!("{} hooks, the limit is {HOOKS_AT_MOST}", hooks.len());
        return Err(HookVeto::new(&folder.to_string_lossy(), &detail));
    }
    let deadline = Instant::now() + limit;
    for hook in hooks {
        let name = hook.file_name().unwrap_or_default().to_string_lossy();
        let veto = |detail: &str| HookVeto::new(&name, detail);
        let mut child = spawn(&hook, event, sizes).map_err(|error| veto(&error.to_string()))?;
        // A child that is dropped before its end is killed.
        match timeout_at(deadline, end_of(&mut child)).await {
            Err(_) => return Err(veto(&format!("not done within {} ms", limit.as_millis()))),
            Ok(Err(error)) => return Err(veto(&error.to_string())),
            Ok(Ok(None)) => {}
            Ok(Ok(Some(said))) => return Err(veto(&said)),
        }
    }
    Ok(())
}

/// The executable files of a folder by name; none if there is no folder.
fn executables(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let is_hook = |data: Metadata| data.is_file() && data.permissions().mode() & 0o111 != 0;
    let mut hooks = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if std::fs::metadata(&path).is_ok_and(is_hook) {
            hooks.push(path);
        }
    }
    hooks.sort();
    Ok(hooks)
}

fn spawn(hook: &Path, event: HookEvent, sizes: HookSizes) -> io::Result<Child> {
    let number = |bytes: Option<Bytes>| bytes.map(|bytes| bytes.0.to_string()).unwrap_or_default();
    Command::new(hook)
        .arg(event.label())
        .env_clear()
        .env("PATH", PATH)
        .env("BELLOWS_EVENT", event.label())
        .env("BELLOWS_CPUS", sizes.target.cpu.to_string())
        .env("BELLOWS_MEMORY_BYTES", sizes.target.mem.to_string())
        .env("BELLOWS_MEMORY_USABLE_BYTES", sizes.usable.0.to_string())
        .env("BELLOWS_MEMORY_WAS_BYTES", number(sizes.was_usable))
        .env("BELLOWS_MEMORY_USED_BYTES", number(sizes.used))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
}

/// How a hook ended: nothing to say for status 0, else its first line, or its status.
async fn end_of(child: &mut Child) -> io::Result<Option<String>> {
    let mut said = Vec::new();
    if let Some(output) = child.stdout.take() {
        // What is beyond the limit is not read; such a hook may then be ended by its own write.
        output.take(OUTPUT_LIMIT).read_to_end(&mut said).await?;
    }
    let status = child.wait().await?;
    if status.success() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&said);
    let first = text.lines().next().unwrap_or_default().trim();
    Ok(Some(if first.is_empty() {
        status.to_string()
    } else {
        first.to_owned()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::monitor::Allocation;

    /// Much more than any of these takes.
    const PATIENCE: Duration = Duration::from_secs(20);

    const SIZES: HookSizes = HookSizes {
        target: Allocation {
            cpu: 0.5,
            mem: 1 << 30,
        },
        usable: Bytes(924 << 20),
        was_usable: Some(Bytes(5 << 20)),
        used: None,
    };

    fn hooks(scripts: &[(&str, &str, u32)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, body, mode) in scripts {
            let path = folder.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("written");
            let mode = std::fs::Permissions::from_mode(*mode);
            std::fs::set_permissions(&path, mode).expect("set");
        }
        folder
    }

    async fn run(folder: &tempfile::TempDir, limit: Duration) -> Result<(), HookVeto> {
        run_all(folder.path(), HookEvent::BeforeShrink, SIZES, limit).await
    }

    #[tokio::test]
    async fn missing_folder_is_answered_at_once_and_used_once_it_is_there() {
        let parent = hooks(&[]);
        let folder = parent.path().join("hooks.d");
        let (inbox, mut messages) = mpsc::channel(1);
        let mut tasks = JoinSet::new();
        let started = Hooks::start(folder.clone(), inbox, &mut tasks);
        let order = (OperationId(7), HookEvent::BeforeShrink, SIZES);
        assert_eq!(started.order(order), Some(Ok(())));

        let full = hooks(&[("no", "echo busy; exit 1", 0o755)]);
        std::fs::rename(full.path(), &folder).expect("in its place");
        assert_eq!(started.order(order), None);
        let Some(Inbox::Event(Event::HooksDone { operation, outcome })) = messages.recv().await
        else {
            panic!("no outcome");
        };
        assert_eq!(operation, OperationId(7));
        assert_eq!(outcome, Err(HookVeto::new("no", "busy")));
    }

    #[tokio::test]
    async fn n28_hooks_run_in_order_with_the_sizes() {
        let folder = hooks(&[]);
        let log = folder.path().join("log");
        let line = |n: u32| {
            format!(
                "echo {n} $1 $(env | grep ^BELLOWS_ | sort | tr '\\n' ' ') >> {}",
                log.display()
            )
        };
        for (name, n) in [("20-second", 2), ("10-first", 1)] {
            let path = folder.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{}\n", line(n))).expect("written");
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(&path, mode).expect("set");
        }
        run(&folder, PATIENCE).await.expect("passes");
        let text = std::fs::read_to_string(&log).expect("written by the hooks");
        let environment = "before-shrink BELLOWS_CPUS=0.5 BELLOWS_EVENT=before-shrink BELLOWS_MEMORY_BYTES=1073741824 \
                           BELLOWS_MEMORY_USABLE_BYTES=968884224 BELLOWS_MEMORY_USED_BYTES= BELLOWS_MEMORY_WAS_BYTES=5242880";
        assert_eq!(text, format!("1 {environment}\n2 {environment}\n"));
    }

    #[tokio::test]
    async fn n27_any_end_but_zero_is_a_veto_with_its_first_line() {
        let folder = hooks(&[
            ("a", "exit 0", 0o755),
            ("b", "echo 'vacuum runs'; echo more; exit 3", 0o755),
        ]);
        let veto = run(&folder, PATIENCE).await.expect_err("vetoed");
        assert_eq!(veto, HookVeto::new("b", "vacuum runs"));
        let folder = hooks(&[("quiet", "kill -9 $$", 0o755)]);
        let veto = run(&folder, PATIENCE).await.expect_err("vetoed");
        assert!(veto.detail.contains('9'), "{veto}");
        let folder = hooks(&[("broken", "exit 0", 0o755)]);
        std::fs::write(folder.path().join("broken"), "\u{1}\u{2}").expect("written");
        assert!(run(&folder, PATIENCE).await.is_err());
    }

    #[tokio::test]
    async fn a_hook_that_takes_too_long_is_a_veto_and_is_ended() {
        let folder = hooks(&[("slow", "exec sleep 3600", 0o755)]);
        let veto = run(&folder, Duration::from_millis(50))
            .await
            .expect_err("vetoed");
        assert_eq!(veto, HookVeto::new("slow", "not done within 50 ms"));
    }

    #[tokio::test]
    async fn what_is_no_program_is_no_hook() {
        let folder = hooks(&[("README", "exit 1", 0o644)]);
        std::fs::create_dir(folder.path().join("folder")).expect("made");
        run(&folder, PATIENCE).await.expect("no hooks");
        let gone = folder.path().join("nowhere");
        let outcome = run_all(&gone, HookEvent::AfterGrow, SIZES, PATIENCE).await;
        outcome.expect("no folder, no hooks");
    }
}
