//! A made-up guest that a monitor watches. The benchmark sets its figures.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
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

    /// Arguments that make a monitor watch it.
    pub(super) fn arguments(&self) -> Vec<String> {
        let path = |name: &str| self.path(name).display().to_string();
        vec![
            format!("--cgroup={}", path("group")),
            format!("--proc-root={}", path("proc")),
        ]
    }

    /// Sets the memory in use, with some page cache. The limit is set first, as in a group that
    /// grows.
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
