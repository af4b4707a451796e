//! A child process: start, end, and what the kernel says of its costs.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::Signal;

/// A running program. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    /// What it prints, once its first line is read: open as long as it runs, for many a program that cannot print any more ends.
    said: Option<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts a program whose log goes to `log`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(command: &mut Command, log: impl Into<Stdio>) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self {
            child,
            name,
            said: None,
        })
    }

    /// The first line it prints, which says that it is ready.
    ///
    /// # Errors
    /// When it ended before.
    pub fn first_line(&mut self) -> Result<String> {
        let stdout = self.child.stdout.take().context("read already")?;
        let mut line = String::new();
        let said = self.said.insert(BufReader::new(stdout));
        said.read_line(&mut line)?;
        if line.is_empty() {
            bail!("{} ended before it was ready", self.name);
        }
        Ok(line)
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it to end (SIGTERM).
    ///
    /// # Errors
    /// When it has ended.
    pub fn terminate(&self) -> Result<()> {
        self.signal(Signal::SIGTERM)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).context("a process id")?;
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal)?;
        Ok(())
    }

    /// Its exit code, once it has ended by itself.
    ///
    /// # Errors
    /// When nothing is known of it.
    pub fn exit_code(&mut self) -> Result<Option<i32>> {
        Ok(self.child.try_wait()?.and_then(|status| status.code()))
    }

    /// Time on a processor so far, of all threads that live.
    ///
    /// # Errors
    /// When it has ended.
    pub fn cpu(&self) -> Result<Duration> {
        let mut nanos = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
            let first = text.split_whitespace().next().context("empty schedstat")?;
            nanos += first.parse::<u64>().context("schedstat")?;
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// Resident memory, bytes.
    ///
    /// # Errors
    /// When it has ended.
    pub fn rss(&self) -> Result<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        Ok(kib.context("no VmRSS")?.parse::<u64>()? << 10)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself, which showed before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
