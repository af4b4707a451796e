//! QEMU as a process: started so that it outlives us, recognised again by id and start time.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use command_fds::{CommandFdExt as _, FdMapping};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::process::{Child, Command};
use transport::sys::register;

use super::confined;
use super::inherit;
use super::sandbox::Sandbox;

/// How often a process is looked at that cannot be waited for.
const ALIVE_EVERY: Duration = Duration::from_millis(200);

/// A process that is not mistaken for another one that got its number later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Process id, which the kernel may give to another process later.
    pub pid: u32,
    /// Start time in clock ticks since the machine's boot (`/proc/PID/stat`, field 22).
    pub start_ticks: u64,
}

impl ProcessId {
    /// The process with this number now; `None` if there is none or it is a zombie.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        start_ticks(&stat).map(|start_ticks| Self { pid, start_ticks })
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Waits until it has ended. Any process may be waited for, not only a child.
    pub async fn ended(self) {
        let opened = i32::try_from(self.pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let opened = opened.and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK).ok());
        let watched = opened.map(|descriptor| register(descriptor, Interest::READABLE));
        // Only now: the descriptor may be of a successor.
        if !self.is_alive() {
            return;
        }
        if let Some(Ok(watched)) = watched
            && watched.readable().await.is_ok()
        {
            return;
        }
        // A kernel without such descriptors.
        while self.is_alive() {
            tokio::time::sleep(ALIVE_EVERY).await;
        }
    }

    /// Sends SIGKILL if it is still the same process.
    pub fn kill(self) {
        if let (true, Ok(pid)) = (self.is_alive(), i32::try_from(self.pid)) {
            // It may have ended in between: then all is well.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// Field 22 of `/proc/PID/stat`; `None` for a zombie. The name in field 2 may hold blanks and
/// brackets.
fn start_ticks(stat: &str) -> Option<u64> {
    let after_name = stat.rsplit_once(')')?.1;
    let mut fields = after_name.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// A process of one of these users with a text on its command line.
#[must_use]
pub fn with_argument(text: &str, users: &[u32]) -> Option<ProcessId> {
    let has = |pid: &u32| {
        let owner = std::fs::metadata(format!("/proc/{pid}")).map(|process| process.uid());
        if !owner.is_ok_and(|owner| users.contains(&owner)) {
            return false;
        }
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(text)
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(has).find_map(ProcessId::of)
}

/// What follows a flag on the command line of a process.
#[must_use]
pub fn argument_of(process: ProcessId, flag: &str) -> Option<String> {
    let words = std::fs::read(format!("/proc/{}/cmdline", process.pid)).ok()?;
    // Read before it is looked at again: the number may be another process's by now.
    let words = words.strip_suffix(&[0]).filter(|_| process.is_alive())?;
    let mut words = words.split(|byte| *byte == 0);
    words.find(|word| *word == flag.as_bytes())?;
    String::from_utf8(words.next()?.to_vec()).ok()
}

/// The id of the machine's boot: process ids and start times mean something only within one.
#[must_use]
pub fn host_boot_id() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// Opens a file for appending, mode 0600.
///
/// # Errors
/// As the file system says.
pub fn append_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
}

/// The first port that anybody may serve on; by the kernel's own choice where it does not say.
#[must_use]
pub fn first_free_port() -> u16 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    text.ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(1024)
}

/// How QEMU is started.
#[derive(Debug)]
pub struct Start<'a> {
    /// File of the program.
    pub program: &'a Path,
    /// Its command line without its name.
    pub args: &'a [String],
    /// Variables added to its environment.
    pub env: &'a [(String, String)],
    /// What it is shut into.
    pub sandbox: Option<&'a Sandbox>,
    /// Its working directory.
    pub dir: &'a Path,
    /// Where its messages go.
    pub log: &'a Path,
    /// Its standard input; `None` for an empty one.
    pub input: Option<OwnedFd>,
    /// Open files, and the number that each has in it.
    pub files: Vec<(OwnedFd, RawFd)>,
    /// Whether it serves on ports below those that anybody may serve on.
    pub low_ports: bool,
}

/// Starts QEMU in a process group of its own. Nothing ties it to us: no pipe, no kill on drop, no
/// privilege but that to serve on low ports, where it is needed.
///
/// # Errors
/// When the program cannot be executed or the log not opened.
pub fn start(how: Start<'_>) -> io::Result<Child> {
    let (out, err) = (append_file(how.log)?, append_file(how.log)?);
    let mut command = Command::new(how.program);
    inherit::only_for_guest(&mut command);
    command
        .args(how.args)
        .envs(how.env.iter().map(|(name, value)| (name, value)))
        .current_dir(how.dir)
        .stdin(how.input.map_or_else(Stdio::null, Stdio::from))
        .stdout(Stdio::from(out))
        .stderr(Stdio::from(err))
        .process_group(0)
        .kill_on_drop(false);
    let files = how.files.into_iter();
    let files = files.map(|(parent_fd, child_fd)| FdMapping {
        parent_fd,
        child_fd,
    });
    let files: Vec<FdMapping> = files.collect();
    if !files.is_empty() {
        command.fd_mappings(files).map_err(io::Error::other)?;
    }
    match how.sandbox {
        Some(sandbox) => confined::spawn_in(&mut command, sandbox),
        None => confined::spawn(&mut command, confined::low_ports(how.low_ports)),
    }
}

/// The last bytes of a file as text; empty if it cannot be read.
#[must_use]
pub fn file_tail(path: &PathBuf, max: u64) -> String {
    use std::io::{Read, Seek, SeekFrom};
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(max)))?;
        let mut bytes = Vec::new();
        file.take(max).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_past_any_name() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(start_ticks(&format!("12 (a b) c) {fields}")), Some(4711));
        assert_eq!(
            start_ticks(&format!("12 (x) {}", fields.replace('S', "Z"))),
            None
        );
        assert_eq!(start_ticks("garbage"), None);
    }

    #[test]
    fn an_argument_is_read_off_a_process() {
        let us = ProcessId::of(std::process::id()).expect("it runs");
        let program = std::env::args().next().expect("a program");
        let mut words = std::env::args().skip(1);
        assert_eq!(argument_of(us, &program), words.next());
        assert_eq!(argument_of(us, "--no-such-flag"), None);
        let other = ProcessId {
            start_ticks: us.start_ticks + 1,
            ..us
        };
        assert_eq!(argument_of(other, &program), None);
    }

    /// A program with arguments and a log, and nothing else. It runs where its log is.
    fn plainly<'a>(program: &'a str, args: &'a [String], log: &'a Path) -> Start<'a> {
        Start {
            program: Path::new(program),
            args,
            env: &[],
            sandbox: None,
            dir: log.parent().unwrap(),
            log,
            input: None,
            files: Vec::new(),
            low_ports: false,
        }
    }

    #[tokio::test]
    async fn process_has_the_open_files_that_it_is_given_by_their_numbers() {
        use std::io::Read as _;

        let temp = tempfile::tempdir().unwrap();
        let log = temp.path().join("log");
        let (mut read, write) = std::io::pipe().unwrap();
        let args = ["-c", "echo here >&40"].map(str::to_owned);
        let how = Start {
            files: vec![(write.into(), 40)],
            ..plainly("bash", &args, &log)
        };
        let mut child = start(how).unwrap();
        assert!(child.wait().await.unwrap().success());
        let mut said = String::new();
        read.read_to_string(&mut said).unwrap();
        assert_eq!(said, "here\n", "and nobody else has it open");
    }

    #[tokio::test]
    async fn a_process_is_told_from_its_successor() {
        let temp = tempfile::tempdir().unwrap();
        let log = temp.path().join("log");
        let args = ["60".to_owned()];
        let mut child = start(plainly("sleep", &args, &log)).unwrap();
        let id = ProcessId::of(child.id().unwrap()).expect("it runs");
        assert!(id.is_alive());
        assert!(
            !ProcessId {
                start_ticks: id.start_ticks + 1,
                ..id
            }
            .is_alive()
        );
        id.kill();
        child.wait().await.unwrap();
        assert!(!id.is_alive());
    }
}
