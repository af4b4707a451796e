//! What a monitor watches here: a made-up guest, whose figures the benchmark sets, and a group of this machine's kernel.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

/// The folder. Gone when dropped.
pub(super) struct Group {
    folder: TempDir,
}

impl Group {
    /// A guest with `total` bytes of memory, `used` of them in use.
    pub(super) fn new(total: u64, used: u64) -> Result<Self> {
        let folder = tempfile::tempdir().context("a folder for a group's files")?;
        for name in ["group", "proc"] {
            std::fs::create_dir(folder.path().join(name))?;
        }
        let group = Self { folder };
        let kib = total >> 10;
        let meminfo = format!(
            "MemTotal: {kib} kB\nMemAvailable: {} kB\nCached: 100 kB\nActive(anon): 100 kB\nInactive(anon): 100 kB\n",
            kib / 2
        );
        group.write("proc/meminfo", &meminfo)?;
        group.write("proc/loadavg", "0.10 0.10 0.10 1/1 1\n")?;
        group.set_use(used)?;
        Ok(group)
    }

    /// What makes a monitor watch it.
    pub(super) fn arguments(&self) -> Vec<String> {
        let path = |name: &str| self.path(name).display().to_string();
        vec![
            format!("--cgroup={}", path("group")),
            format!("--proc-root={}", path("proc")),
        ]
    }

    /// Sets what is in use, with a little page cache beside it; the bound first, as in a group that grows.
    pub(super) fn set_use(&self, used: u64) -> Result<()> {
        let current = used + (8 << 20);
        self.write("group/memory.current", &format!("{current}\n"))?;
        let stat = format!(
            "anon {used}\nfile 8388608\nkernel 1048576\ninactive_anon {used}\nactive_anon 0\ninactive_file 8388608\n"
        );
        self.write("group/memory.stat", &stat)
    }

    /// Replaces a file at once, as a reader sees it.
    fn write(&self, name: &str, text: &str) -> Result<()> {
        let draft = self.path("draft");
        std::fs::write(&draft, text).context("draft of a group's file")?;
        std::fs::rename(&draft, self.path(name)).with_context(|| name.to_owned())
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new(self.folder.path()).join(name)
    }
}

/// A memory cgroup of this machine's kernel, empty. Gone when dropped.
pub(super) struct RealGroup {
    group: PathBuf,
    /// Its files by the names of cgroup v2, where the machine has v1 only.
    renamed: Option<TempDir>,
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
        };
        if !is_v2 {
            real.renamed = Some(real.rename()?);
        }
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

    /// What makes a monitor watch it.
    pub(super) fn arguments(&self) -> Vec<String> {
        let renamed = self.renamed.as_ref();
        let path = renamed.map_or(self.group.as_path(), TempDir::path);
        vec![format!("--cgroup={}", path.display())]
    }
}

impl Drop for RealGroup {
    fn drop(&mut self) {
        // Nothing is in it; if it stays, it costs nothing and its name says whose it was.
        let _ = std::fs::remove_dir(&self.group);
    }
}
