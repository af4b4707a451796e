//! QEMU as a process: started so that it outlives us, recognised again by id and start time.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tokio::process::{Child, Command};

use super::confined;

/// A process that is not mistaken for another one that got its number later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// The number.
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

    /// Sends SIGKILL if it is still the same process.
    pub fn kill(self) {
        if let (true, Ok(pid)) = (self.is_alive(), i32::try_from(self.pid)) {
            // It may have ended in between: then all is well.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// Field 22 of `/proc/PID/stat`; `None` for a zombie. The name in field 2 may hold blanks and brackets.
fn start_ticks(stat: &str) -> Option<u64> {
    let after_name = stat.rsplit_once(')')?.1;
    let mut fields = after_name.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
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

/// Starts QEMU in a process group of its own, with its messages going to `log`. Nothing ties it to us: no pipe, no
/// kill on drop, no privilege but that to serve on low ports, where it is needed.
///
/// # Errors
/// When the program cannot be executed or the log not opened.
pub fn start(
    program: &Path,
    args: &[String],
    dir: &Path,
    log: &Path,
    low_ports: bool,
) -> io::Result<Child> {
    let (out, err) = (append_file(log)?, append_file(log)?);
    let mut command = Command::new(program);
    command
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::from(out))
        .stderr(Stdio::from(err))
        .process_group(0)
        .kill_on_drop(false);
    confined::spawn(&mut command, low_ports)
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

    #[tokio::test]
    async fn a_process_is_told_from_its_successor() {
        let temp = tempfile::tempdir().unwrap();
        let log = temp.path().join("log");
        let args = ["60".to_owned()];
        let mut child = start(Path::new("sleep"), &args, temp.path(), &log, false).unwrap();
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
