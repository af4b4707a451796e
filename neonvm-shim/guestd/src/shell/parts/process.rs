//! The process of a part: which program it runs, since when, and how it is ended.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use neonvm_parts::core::state::Running;
use neonvm_parts::core::trial::{Slot, source};
use protocol::parts::{PartName, PartSource};
use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest as _, Sha256};
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use super::{Parts, service};

/// Longest run of a program that prints its version.
const VERSION_LIMIT: Duration = Duration::from_secs(5);
/// How long a process may take to end before it is killed.
const END_LIMIT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(20);
/// Program of the scripts that start the parts.
const SHELL: &str = "/bin/sh";

/// A program file that was read: its identity, hash and version.
#[derive(Debug, Clone)]
pub(super) struct Identified {
    file: (u64, u64, u64, i64),
    sha256: String,
    version: String,
}

impl Parts {
    /// Process of a part, from the file that its script writes.
    pub(super) fn pid(&self, part: PartName) -> Option<u32> {
        if part == PartName::Guestd {
            return Some(std::process::id());
        }
        let path = self.settings.run.join(format!("{}.pid", part.as_str()));
        fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    fn of_process(&self, pid: u32, file: &str) -> PathBuf {
        self.settings.procfs.join(pid.to_string()).join(file)
    }

    /// Path of the program that a process runs.
    fn executable(&self, pid: u32) -> Option<PathBuf> {
        fs::read_link(self.of_process(pid, "exe")).ok()
    }

    /// Whether a part's process runs the part, and no longer the script that starts it.
    fn has_begun(&self, pid: u32) -> bool {
        let shell = Path::new(SHELL).canonicalize().ok();
        shell.is_none() || self.executable(pid) != shell
    }

    /// Whether the part's process runs the program of this slot.
    pub(super) fn runs(&self, part: PartName, slot: Slot) -> bool {
        let program = self.places(part).program(slot).canonicalize().ok();
        program.is_some() && self.pid(part).and_then(|pid| self.executable(pid)) == program
    }

    /// Origin of the part's program.
    pub(super) fn from(&self, part: PartName) -> PartSource {
        let slot = Slot::ALL.into_iter().find(|slot| self.runs(part, *slot));
        match source(slot) {
            PartSource::Image if !self.has_scripts() => PartSource::Package,
            from => from,
        }
    }

    /// Whether the guest can take a program back without this daemon.
    pub(super) fn has_scripts(&self) -> bool {
        self.settings.scripts.join("trial").is_file()
    }

    /// Facts about the part's process.
    pub(super) async fn running(&self, part: PartName) -> Running {
        let pid = self.pid(part).filter(|pid| self.has_begun(*pid));
        let program = pid.and_then(|pid| self.executable(pid));
        let starts = self.settings.run.join(format!("{}.starts", part.as_str()));
        let starts = fs::read_to_string(starts).ok();
        let mut running = Running {
            from: self.from(part),
            sha256: String::new(),
            version: String::new(),
            starts: starts
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(0),
            resident_bytes: 0,
        };
        let Some(pid) = pid else {
            return running;
        };
        let known = self.identify(part, pid, running.from).await;
        // Origin and hash are of one program.
        let is_same = self.pid(part) == Some(pid) && self.executable(pid) == program;
        if let Some(known) = known.filter(|_| is_same) {
            running.sha256 = known.sha256;
            running.version = known.version;
        }
        let status = fs::read_to_string(self.of_process(pid, "status")).unwrap_or_default();
        running.resident_bytes = resident(&status).unwrap_or(0);
        running
    }

    /// Hash and version of the program that a process runs. Each file is read once.
    async fn identify(&self, part: PartName, pid: u32, from: PartSource) -> Option<Identified> {
        let path = self.of_process(pid, "exe");
        let meta = fs::metadata(&path).ok()?;
        let file = (meta.dev(), meta.ino(), meta.size(), meta.mtime_nsec());
        let known = self.known(part);
        if let Some(known) = known.filter(|known| known.file == file) {
            return Some(known);
        }
        let hashed = path.clone();
        let sha256 = tokio::task::spawn_blocking(move || sha256(&hashed));
        // The sender of a brought program has named its version.
        let version = match (part, from) {
            (PartName::Guestd, _) => env!("CARGO_PKG_VERSION").to_owned(),
            (_, PartSource::A | PartSource::B) => String::new(),
            _ => version(&self.executable(pid)?).await.unwrap_or_default(),
        };
        let identified = Identified {
            file,
            sha256: sha256.await.ok()?.ok()?,
            version,
        };
        if let Ok(mut all) = self.identified.lock() {
            all.insert(part, identified.clone());
        }
        Some(identified)
    }

    fn known(&self, part: PartName) -> Option<Identified> {
        self.identified.lock().ok()?.get(&part).cloned()
    }

    /// Starts the script that takes the program on trial back at the trial's end. It lives on
    /// without this daemon.
    pub(super) fn watch(&self, part: PartName) -> io::Result<()> {
        let mut command = Command::new(self.settings.scripts.join("trial"));
        command.arg(service(part)).process_group(0);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = command.spawn()?;
        tokio::spawn(async move {
            if let Err(error) = child.wait().await {
                warn!(%error, "failed to wait for a trial's watcher");
            }
        });
        Ok(())
    }

    /// Ends the part's process if it runs the program of this slot.
    pub(super) async fn end(&self, part: PartName, slot: Slot) -> io::Result<()> {
        if !self.runs(part, slot) {
            return Ok(());
        }
        self.end_any(part).await
    }

    /// Ends the part's process, whatever it runs.
    pub(super) async fn end_any(&self, part: PartName) -> io::Result<()> {
        let Some(number) = self.pid(part) else {
            return Ok(());
        };
        let Some(pid) = i32::try_from(number).ok().and_then(Pid::from_raw) else {
            return Ok(());
        };
        let program = self.executable(number);
        let is_there = || program.is_some() && self.executable(number) == program;
        for signal in [Signal::TERM, Signal::KILL] {
            if !is_there() {
                return Ok(());
            }
            match kill_process(pid, signal) {
                Err(rustix::io::Errno::SRCH) => return Ok(()),
                sent => sent?,
            }
            let until = Instant::now() + END_LIMIT;
            while is_there() && Instant::now() < until {
                sleep(POLL).await;
            }
        }
        Ok(())
    }
}

/// SHA-256 of a file, lower-case hex.
fn sha256(path: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(hex(&hasher.finalize()))
}

/// Digits of a hash as requests and records write them.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Second word that the image's program prints for `--version`.
async fn version(program: &Path) -> Option<String> {
    let mut command = Command::new(program);
    command.arg("--version").env_clear().stdin(Stdio::null());
    let run = command.kill_on_drop(true).output();
    let output = timeout(VERSION_LIMIT, run).await.ok()?.ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let word = text.split_whitespace().nth(1)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-+".contains(c);
    (word.len() <= 64 && word.chars().all(plain)).then(|| word.to_owned())
}

/// `VmRSS` of `/proc/PID/status` in bytes.
fn resident(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}
