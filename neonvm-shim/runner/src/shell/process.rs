//! QEMU as a process: started so that it outlives the runner, and recognised by id and start time.

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

/// Interval of checks on a process that the kernel cannot wait for.
const ALIVE_EVERY: Duration = Duration::from_millis(200);

/// A process that cannot be confused with a later one of the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Process id, which the kernel may give to another process later.
    pub pid: u32,
    /// Start time in clock ticks since the machine's boot (`/proc/PID/stat`, field 22).
    pub start_ticks: u64,
}

impl ProcessId {
    /// Process with this id; `None` if it is missing or a zombie.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        start_ticks(&stat).map(|start_ticks| Self { pid, start_ticks })
    }

    /// Whether the process still runs.
    #[must_use]
    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Waits until the process has ended. It need not be a child.
    pub async fn ended(self) {
        let opened = i32::try_from(self.pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK).ok());
        let watched = opened.map(|descriptor| register(descriptor, Interest::READABLE));
        // Checked after the open: the descriptor may belong to a successor.
        if !self.is_alive() {
            return;
        }
        if let Some(Ok(watched)) = watched
            && watched.readable().await.is_ok()
        {
            return;
        }
        // A kernel without pidfds.
        while self.is_alive() {
            tokio::time::sleep(ALIVE_EVERY).await;
        }
    }

    /// Sends SIGKILL if it is still the same process.
    pub fn kill(self) {
        if let (true, Ok(pid)) = (self.is_alive(), i32::try_from(self.pid)) {
            // An error means that it has ended meanwhile.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// Field 22 of `/proc/PID/stat`; `None` for a zombie. The name in field 2 may contain blanks and
/// brackets.
fn start_ticks(stat: &str) -> Option<u64> {
    let after_name = stat.rsplit_once(')')?.1;
    let mut fields = after_name.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// A process of one of these users with `text` on its command line.
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

/// Argument behind `flag` on the command line of a process.
#[must_use]
pub fn argument_of(process: ProcessId, flag: &str) -> Option<String> {
    let words = std::fs::read(format!("/proc/{}/cmdline", process.pid)).ok()?;
    // Checked after the read: the id may belong to another process by now.
    let mut words = words
        .strip_suffix(&[0])
        .filter(|_| process.is_alive())?
        .split(|byte| *byte == 0);
    words.find(|word| *word == flag.as_bytes())?;
    String::from_utf8(words.next()?.to_vec()).ok()
}

/// Id of the machine's boot. Process ids and start times are valid only within one.
#[must_use]
pub fn host_boot_id() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// Opens a file for appending, mode 0600.
///
/// # Errors
/// The file system's error.
pub fn append_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
}

/// First port that any user may bind; the kernel's default if it cannot be read.
#[must_use]
pub fn first_free_port() -> u16 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    text.ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(1024)
}

/// Parameters of [`start`]: program, environment, and descriptors of QEMU.
#[derive(Debug)]
pub struct Start<'a> {
    /// Path of the executable file.
    pub program: &'a Path,
    /// Command line without the program's name.
    pub args: &'a [String],
    /// Variables added to the environment.
    pub env: &'a [(String, String)],
    /// Sandbox to start in, if there is one.
    pub sandbox: Option<&'a Sandbox>,
    /// Working directory of the program.
    pub dir: &'a Path,
    /// File for standard output and error.
    pub log: &'a Path,
    /// Standard input; `None` for an empty one.
    pub input: Option<OwnedFd>,
    /// Open files, and the descriptor that each has in the program.
    pub files: Vec<(OwnedFd, RawFd)>,
    /// Whether the program serves ports below the unprivileged ones.
    pub low_ports: bool,
}

/// Starts QEMU in a process group of its own. Nothing ties it to the runner: no pipe, no kill on
/// drop, and no privilege but that for low ports, where it is needed.
///
/// # Errors
/// The program cannot be executed, or the log cannot be opened.
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
    let files = how
        .files
        .into_iter()
        .map(|(parent_fd, child_fd)| FdMapping {
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

/// Last bytes of a file as text; empty if it cannot be read.
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
    fn start_time_is_read_behind_any_process_name() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(start_ticks(&format!("12 (a b) c) {fields}")), Some(4711));
        assert_eq!(
            start_ticks(&format!("12 (x) {}", fields.replace('S', "Z"))),
            None
        );
        assert_eq!(start_ticks("garbage"), None);
    }

    #[test]
    fn argument_of_a_process_is_read() {
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

    /// A program with arguments and a log only. It runs in the log's directory.
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
    async fn process_inherits_open_files_with_their_numbers() {
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
    async fn process_is_distinguished_from_its_successor() {
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
