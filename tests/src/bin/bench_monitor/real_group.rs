//! A cgroup of this machine's kernel that a monitor watches, and its content.
//!
//! The kernel's files of an empty group are cheaper than those of one with memory, and a group in a
//! guest is never empty.

use std::io::{BufRead as _, BufReader, Write as _, stdin};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use super::timing::pause;

/// Anonymous memory and page cache of the process in the group.
const ANON: usize = 64 << 20;
const CACHE: usize = 32 << 20;
const PAGE: usize = 4096;
/// Longest time until the kernel releases a group.
const REMOVAL: Duration = Duration::from_secs(2);

/// A memory cgroup of this machine's kernel with a process in it. Gone when dropped.
pub(super) struct RealGroup {
    group: PathBuf,
    /// Its files under the names of cgroup v2, if the machine has only v1.
    renamed: Option<TempDir>,
    /// `None` until it has joined, and once it has ended.
    holder: Option<Holder>,
}

impl RealGroup {
    /// Makes one in cgroup v2, else in the memory hierarchy of v1.
    pub(super) fn new() -> Result<Self> {
        let name = format!("bellows-bench-{}", std::process::id());
        let mount = Path::new("/sys/fs/cgroup");
        let enabled = std::fs::read_to_string(mount.join("cgroup.subtree_control"));
        let v1 = mount.join("memory");
        let is_v2 = enabled.is_ok_and(|all| all.split_whitespace().any(|one| one == "memory"));
        if !is_v2 && !v1.join("memory.stat").exists() {
            bail!(
                "no memory controller in /sys/fs/cgroup: what the monitor costs on a group's files cannot be measured"
            );
        }
        let group = if is_v2 { mount } else { &v1 }.join(name);
        std::fs::create_dir(&group)
            .with_context(|| format!("make the group {}", group.display()))?;
        let mut real = Self {
            group,
            renamed: None,
            holder: None,
        };
        if !is_v2 {
            real.renamed = Some(real.rename()?);
        }
        real.holder = Some(Holder::start(&real.group)?);
        Ok(real)
    }

    fn rename(&self) -> Result<TempDir> {
        let folder = tempfile::tempdir().context("a folder for a group's names")?;
        let names = [
            ("memory.usage_in_bytes", "memory.current"),
            ("memory.stat", "memory.stat"),
        ];
        for (is, shown) in names {
            symlink(self.group.join(is), folder.path().join(shown))?;
        }
        Ok(folder)
    }

    /// The folder of its files under the names of cgroup v2.
    pub(super) fn folder(&self) -> &Path {
        let renamed = self.renamed.as_ref();
        renamed.map_or(self.group.as_path(), TempDir::path)
    }

    /// Arguments that make a monitor watch it.
    pub(super) fn arguments(&self) -> Vec<String> {
        vec![format!("--cgroup={}", self.folder().display())]
    }
}

impl Drop for RealGroup {
    fn drop(&mut self) {
        drop(self.holder.take());
        // The kernel releases a process shortly after its end. A group that stays costs nothing,
        // and its name says where it came from.
        let began = Instant::now();
        while std::fs::remove_dir(&self.group).is_err() && began.elapsed() < REMOVAL {
            pause(REMOVAL / 100);
        }
    }
}

/// An idle process in the group that holds memory and page cache.
struct Holder(Child);

impl Holder {
    /// Starts this program again. It allocates in the group, because the kernel charges memory to
    /// the group that a process is in at the time.
    fn start(group: &Path) -> Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .arg("--hold-memory")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("failed to start the process of the group")?;
        let mut holder = Self(child);
        let joined = group.join("cgroup.procs");
        std::fs::write(&joined, holder.0.id().to_string())
            .with_context(|| format!("failed to write {}", joined.display()))?;
        let mut stdin = holder.0.stdin.as_ref().context("its stdin")?;
        stdin.write_all(b"go\n")?;
        let stdout = holder.0.stdout.as_mut().context("its stdout")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        ensure!(line == "held\n", "the process of the group said {line:?}");
        Ok(holder)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have ended on its own.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process in the group: allocates memory on request and holds it until its stdin ends.
#[expect(clippy::print_stdout, reason = "the benchmark waits for this line")]
pub(super) fn hold_memory() -> Result<()> {
    let mut line = String::new();
    stdin().read_line(&mut line)?;
    let mut memory = vec![0_u8; ANON];
    memory.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    let mut file = tempfile::tempfile().context("failed to make a file for the page cache")?;
    file.write_all(&vec![1; CACHE])?;
    println!("held");
    stdin().read_line(&mut line)?;
    drop(std::hint::black_box(memory));
    Ok(())
}
