//! The load: pgbench that rises and falls, and a burst of memory inside the database.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::report::Progress;
use crate::interrupt;

/// Progress lines so far, shared with the reader thread.
pub(crate) type Lines = Arc<Mutex<Vec<Progress>>>;

/// Memory of the burst in one backend, in pieces of 32 MiB, so that it climbs instead of jumping.
const BURST_SQL: &str = "DO $$
DECLARE pieces text[];
BEGIN
  FOR i IN 1..44 LOOP
    pieces[i] := repeat(md5(i::text), 1048576);
    PERFORM pg_sleep(0.35);
  END LOOP;
  PERFORM pg_sleep(12);
END $$";

/// Connection to the guest's database.
pub(crate) struct Database {
    pub(crate) address: String,
    pub(crate) password: String,
}

impl Database {
    /// A client's program that connects to it.
    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .args(["-h", &self.address, "-p", "5432", "-U", "postgres"])
            .env("PGPASSWORD", &self.password);
        command
    }
}

/// Waits until the database answers a query.
pub(crate) fn wait_for_database(database: &Database, patience: Duration) -> Result<()> {
    let began = Instant::now();
    loop {
        interrupt::check()?;
        let answered = database
            .client("psql")
            .args(["-d", "bench", "-Atqc", "select 1"])
            .env("PGCONNECT_TIMEOUT", "2")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .context("could not start psql")?
            .success();
        if answered {
            return Ok(());
        }
        anyhow::ensure!(
            began.elapsed() < patience,
            "the database at {}:5432 did not answer in {patience:?}",
            database.address
        );
        std::thread::park_timeout(Duration::from_millis(200));
    }
}

/// How a pgbench loads its database.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) clients: u32,
    pub(crate) seconds: u64,
    /// Transactions begun per second. `None` is as fast as the database answers.
    pub(crate) rate: Option<u32>,
}

/// A running pgbench.
pub(crate) struct Pgbench {
    child: Child,
    reader: Option<JoinHandle<()>>,
}

impl Pgbench {
    /// Starts the load; progress is appended to `lines` with times since `origin`.
    pub(crate) fn start(
        database: &Database,
        plan: Plan,
        origin: Instant,
        lines: &Lines,
    ) -> Result<Self> {
        let offset = origin.elapsed().as_secs_f64();
        let clients = plan.clients;
        let mut command = database.client("pgbench");
        command.args(["-n", "-P", "1", "-j", "1"]);
        command.args(["-c", &clients.to_string(), "-T", &plan.seconds.to_string()]);
        if let Some(rate) = plan.rate {
            command.args(["-R", &rate.to_string()]);
        }
        let mut child = command
            .arg("bench")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("could not start pgbench")?;
        let stderr = child.stderr.take().context("pgbench has no stderr")?;
        let lines = Arc::clone(lines);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if let Some(mut progress) = parse_progress(&line) {
                    progress.t += offset;
                    progress.clients = clients;
                    lines
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .push(progress);
                }
            }
        });
        Ok(Self {
            child,
            reader: Some(reader),
        })
    }

    /// Whether it has ended. Its failure is an error.
    pub(crate) fn ended(&mut self) -> Result<bool> {
        let Some(status) = self.child.try_wait()? else {
            return Ok(false);
        };
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        anyhow::ensure!(
            status.success(),
            "pgbench ended with {status}: the database was not alive throughout"
        );
        Ok(true)
    }
}

impl Drop for Pgbench {
    fn drop(&mut self) {
        // After its end both calls do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the memory burst; the caller keeps the child.
pub(crate) fn start_burst(database: &Database) -> Result<Child> {
    database
        .client("psql")
        .args(["-d", "bench", "-qc", BURST_SQL])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .context("could not start psql for the memory burst")
}

/// `progress: 3.0 s, 209.9 tps, lat 4.763 ms stddev 1.2, 0 failed`.
fn parse_progress(line: &str) -> Option<Progress> {
    let rest = line.strip_prefix("progress: ")?;
    let mut progress = Progress::default();
    for part in rest.split(", ") {
        let mut words = part.split_whitespace();
        match (words.next()?, words.next()?) {
            ("lat", value) => progress.latency_ms = value.parse().unwrap_or(0.0),
            (value, "s") => progress.t = value.parse().ok()?,
            (value, "tps") => progress.tps = value.parse().ok()?,
            (value, "failed") => progress.failed = value.parse().unwrap_or(0),
            _ => {}
        }
    }
    Some(progress)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_lines_are_read() {
        let line = "progress: 3.0 s, 209.9 tps, lat 4.763 ms stddev 1.204, 2 failed";
        let expected = Progress {
            t: 3.0,
            clients: 0,
            tps: 209.9,
            latency_ms: 4.763,
            failed: 2,
        };
        assert_eq!(parse_progress(line), Some(expected));
        assert_eq!(parse_progress("pgbench (15.18)"), None);
        // A second without one finished transaction has no numbers.
        let stalled =
            parse_progress("progress: 4.0 s, 0.0 tps, lat 0.000 ms stddev 0.000, 0 failed");
        assert_eq!(stalled.map(|progress| progress.tps), Some(0.0));
    }
}
