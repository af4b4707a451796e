//! pgbench for the whole run: its connections, and what became of them.

use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use bellows_tests::guest::Guest;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// Connections. A broken one ends its client, and the others work on.
const CLIENTS: u64 = 4;

/// What pgbench printed so far.
#[derive(Default)]
struct Printed {
    failed: u64,
    aborted: u64,
    other: Vec<String>,
}

/// A running pgbench. Killed when dropped.
pub(super) struct Load {
    child: Child,
    printed: Arc<Mutex<Printed>>,
}

impl Load {
    pub(super) fn start(guest: &Guest) -> Result<Self> {
        let (ip, clients) = (guest.ip.to_string(), CLIENTS.to_string());
        let mut child = Command::new("pgbench")
            .args(["-h", &ip, "-p", "5432", "-U", "postgres", "-n", "-P", "1"])
            .args(["-c", &clients, "-j", "1", "-R", "20", "-T", "1000000"])
            .arg("bench")
            .env("PGPASSWORD", guest.password()?)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("failed to start pgbench")?;
        let stderr = child.stderr.take().context("stderr of pgbench")?;
        let printed = Arc::new(Mutex::new(Printed::default()));
        let to = Arc::clone(&printed);
        tokio::spawn(async move {
            let mut lines = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                to.lock().unwrap_or_else(PoisonError::into_inner).take(line);
            }
        });
        Ok(Self { child, printed })
    }

    /// Transactions that failed, and connections that broke.
    pub(super) fn failures(&mut self) -> Result<(u64, u64)> {
        let ended = self.child.try_wait()?;
        let printed = self.printed.lock().unwrap_or_else(PoisonError::into_inner);
        for line in &printed.other {
            eprintln!("    pgbench: {line}");
        }
        let broken = ended.map_or(printed.aborted, |_| CLIENTS);
        Ok((printed.failed, broken))
    }
}

impl Printed {
    fn take(&mut self, line: String) {
        if line.starts_with("progress: ") {
            let failed = line
                .split(", ")
                .find_map(|part| part.strip_suffix(" failed"));
            self.failed += failed
                .and_then(|count| count.parse::<u64>().ok())
                .unwrap_or(0);
            return;
        }
        self.aborted += u64::from(line.contains(" aborted"));
        self.other.push(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_transactions_and_broken_connections_are_counted() {
        let mut printed = Printed::default();
        for line in [
            "progress: 1.0 s, 20.0 tps, lat 4.763 ms stddev 1.204, 2 failed",
            "progress: 2.0 s, 20.0 tps, lat 4.763 ms stddev 1.204, 1 failed, lag 0.1 ms",
            "pgbench: error: client 3 aborted in command 4 (SQL) of script 0; perhaps the backend died",
        ] {
            printed.take(line.to_owned());
        }
        let counts = (printed.failed, printed.aborted, printed.other.len());
        assert_eq!(counts, (3, 1, 1));
    }
}
