//! A child process: start, end and resource usage.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::Signal;

/// A running program. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    /// Output after the first line. It stays open, because many programs end when they cannot
    /// print.
    said: Option<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts a program with its log in `log`.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
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

    /// First line of its output, which reports that it is ready.
    ///
    /// # Errors
    ///
    /// If it ended before.
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

    /// Id of the process, valid until it is waited for.
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

    /// Exit code, if it has ended on its own.
    ///
    /// # Errors
    ///
    /// If its state cannot be read.
    pub fn exit_code(&mut self) -> Result<Option<i32>> {
        Ok(self.child.try_wait()?.and_then(|status| status.code()))
    }

    /// Time on a processor so far, of all threads that live.
    ///
    /// # Errors
    /// When it has ended.
    pub fn cpu(&self) -> Result<Duration> {
        let mut sum = Duration::ZERO;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            sum += cpu_of(&task?.path())?;
        }
        Ok(sum)
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

/// Time on a processor so far of the thread whose directory below `/proc` this is.
fn cpu_of(thread: &Path) -> Result<Duration> {
    let text = std::fs::read_to_string(thread.join("schedstat"))?;
    let first = text.split_whitespace().next().context("empty schedstat")?;
    Ok(Duration::from_nanos(first.parse().context("schedstat")?))
}

/// Time on a processor so far of the children of a process that live.
///
/// # Errors
/// When the process has ended.
pub fn cpu_of_children(pid: u32) -> Result<Duration> {
    let mut sum = Duration::ZERO;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let children = std::fs::read_to_string(task?.path().join("children"))?;
        for child in children.split_whitespace() {
            // One that has ended meanwhile counts no more.
            let cpu = cpu_of(&Path::new("/proc").join(child).join("task").join(child));
            sum += cpu.unwrap_or_default();
        }
    }
    Ok(sum)
}

/// Time on a processor of the children of this process that have ended, and of theirs.
///
/// # Errors
/// When the kernel does not say.
pub fn cpu_of_ended() -> Result<Duration> {
    let stat = procfs::process::Process::myself()?.stat()?;
    let ticks = stat.cutime.saturating_add(stat.cstime);
    let seconds = u64::try_from(ticks)?.saturating_mul(1000) / procfs::ticks_per_second();
    Ok(Duration::from_millis(seconds))
}

/// Time on a processor so far of all threads that live on this machine, by the names of their
/// programs as the kernel has them: cut to 15 bytes, and the same for all that have it. The
/// kernel's own are one.
#[must_use]
pub fn cpu_by_program() -> BTreeMap<String, Duration> {
    let mut sums: BTreeMap<String, Duration> = BTreeMap::new();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let process = process.path();
        let Ok(name) = std::fs::read_to_string(process.join("comm")) else {
            continue;
        };
        let name = match std::fs::read(process.join("cmdline")) {
            Ok(line) if line.is_empty() => "kernel",
            _ => name.trim(),
        };
        let threads = std::fs::read_dir(process.join("task")).into_iter();
        // One that ends meanwhile counts no more.
        let of_threads = threads.flatten().flatten();
        let sum = of_threads.filter_map(|thread| cpu_of(&thread.path()).ok());
        *sums.entry(name.to_owned()).or_default() += sum.sum::<Duration>();
    }
    sums
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended on its own.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
