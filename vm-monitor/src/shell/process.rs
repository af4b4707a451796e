//! This process: its program, its age and its memory.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use protocol::parts::{BUILD_INFO, FROM_PACKAGE};
use protocol::release::RELEASE;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use super::memory;
use crate::core::process_files;

/// Bytes that are read at once while a file is hashed.
const CHUNK_BYTES: usize = 64 << 10;

/// Facts about this process. Clones share them.
#[derive(Debug, Clone)]
pub struct ThisProcess {
    /// Digest of the running program. `None` until it is known, empty if the file cannot be read.
    sha256: watch::Receiver<Option<String>>,
    execs: u64,
    is_from_package: bool,
}

impl ThisProcess {
    /// A process whose program's digest is not read. `is_from_package`: a package manager of this
    /// machine brings the program, and the page says so.
    #[must_use]
    pub fn without_digest(execs: u64, is_from_package: bool) -> Self {
        let (_, sha256) = watch::channel(Some(String::new()));
        Self {
            sha256,
            execs,
            is_from_package,
        }
    }

    /// Hashes the running program on a thread of its own, which delays no agent.
    #[must_use]
    pub fn with_digest(&self) -> Self {
        let (publish, sha256) = watch::channel(None);
        let hashing = move || {
            let digest = File::open("/proc/self/exe").and_then(digest);
            let digest = digest.unwrap_or_else(|error| {
                tracing::warn!(%error, "failed to read /proc/self/exe");
                String::new()
            });
            publish.send_replace(Some(digest));
        };
        let thread = std::thread::Builder::new().name("digest".to_owned());
        match thread.spawn(hashing) {
            Ok(_detached) => Self {
                sha256,
                ..self.clone()
            },
            Err(_) => self.clone(),
        }
    }

    /// Times that this process has executed another program.
    #[must_use]
    pub const fn execs(&self) -> u64 {
        self.execs
    }

    /// SHA-256 of the running program, lower-case hex, once it is known. Empty if its file cannot
    /// be read.
    pub async fn sha256(&self) -> String {
        let mut sha256 = self.sha256.clone();
        let known = sha256.wait_for(Option::is_some).await;
        known
            .map(|sha256| sha256.clone().unwrap_or_default())
            .unwrap_or_default()
    }

    /// Appends this process's metrics to a page. A figure that cannot be had is omitted.
    pub fn append_metrics(&self, page: &mut String) {
        let mut gauge = |name: &str, help: &str, labels: &str, value: &str| {
            // Writing to a string does not fail.
            let _ = writeln!(
                page,
                "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{labels} {value}"
            );
        };
        if let Some(sha256) = self.sha256.borrow().as_deref() {
            let from = match self.is_from_package {
                true => format!(",{FROM_PACKAGE}"),
                false => String::new(),
            };
            let labels = format!("{{version=\"{RELEASE}\",sha256=\"{sha256}\"{from}}}");
            let help = "Release and digest of the running program.";
            gauge(BUILD_INFO, help, &labels, "1");
        }
        let name = "vm_monitor_execs";
        let help = "Times that the process has executed another program.";
        gauge(name, help, "", &self.execs.to_string());
        if let Some(started_ms) = started_unix_ms() {
            let seconds = format!("{}.{:03}", started_ms / 1000, started_ms % 1000);
            let help = "Start of the process, seconds since the epoch.";
            gauge("process_start_time_seconds", help, "", &seconds);
        }
        if let Some(resident) = resident_bytes() {
            let help = "Resident memory.";
            gauge(
                "process_resident_memory_bytes",
                help,
                "",
                &resident.to_string(),
            );
        }
    }
}

/// Resident memory of this process, bytes.
pub(super) fn resident_bytes() -> Option<u64> {
    let status = memory::text(Path::new("/proc/self/status"))?;
    process_files::resident_bytes(&status)
}

fn started_unix_ms() -> Option<u64> {
    let process = memory::text(Path::new("/proc/self/stat"))?;
    let machine = memory::text(Path::new("/proc/stat"))?;
    process_files::started_unix_ms(&process, &machine)
}

/// SHA-256 of all that is read, lower-case hex.
pub(super) fn digest(mut from: impl Read) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let count = from.read(&mut chunk)?;
        if count == 0 {
            break;
        }
        hasher.update(&chunk[..count]);
    }
    let mut text = String::with_capacity(64);
    for byte in hasher.finalize() {
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}
