//! Reading the kernel's small files.
//!
//! The reads are not handed to another thread, because these files never wait for a disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, PROC_SUPER_MAGIC, fstatfs};
use protocol::units::Bytes;

use crate::core::decision::Watched;
use crate::core::files::{self, MachineMemory, ReadFailure};

/// Most that is read of one file, bytes. `memory.stat` and `/proc/meminfo` have about 2,000.
pub const FILE_LIMIT_BYTES: usize = 16 * 1024;

/// A small file that is read again and again, kept open where that is safe.
#[derive(Debug)]
pub(super) struct Kept {
    path: PathBuf,
    file: Option<File>,
}

impl Kept {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path, file: None }
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(file) = &self.file {
            match read_open(file, buffer) {
                Ok(read) => return Ok(read),
                // The group is gone, and maybe there is a new one of its name.
                Err(_) => self.file = None,
            }
        }
        let (file, read) = open_and_read(&self.path, buffer)?;
        self.file = Some(file).filter(is_the_kernels);
        Ok(read)
    }

    /// As [`Self::read_parsed`] where nobody is told why there is nothing: a kernel may have no
    /// such file, and then this is asked for each shrink.
    pub(super) fn look<T>(
        &mut self,
        buffer: &mut [u8],
        parse: fn(&[u8]) -> Result<T, &'static str>,
    ) -> Option<T> {
        let read = self.read(buffer).ok()?;
        parse(&buffer[..read]).ok()
    }

    pub(super) fn read_parsed<T>(
        &mut self,
        buffer: &mut [u8],
        parse: fn(&[u8]) -> Result<T, &'static str>,
    ) -> Result<T, ReadFailure> {
        let read = self.read(buffer);
        let failure = |detail: &str| ReadFailure::new(&self.path.to_string_lossy(), detail);
        let read = read.map_err(|error| failure(&error.to_string()))?;
        parse(&buffer[..read]).map_err(failure)
    }
}

/// Where memory use is read from, with a buffer to read into.
#[derive(Debug)]
pub struct Source {
    watched: Watched,
    /// The cheap file with a bound on the use.
    bound: Kept,
    /// The file with the figures.
    use_of: Kept,
    /// What the group has in swap, where the figures do not say so themselves.
    swap: Option<Kept>,
    meminfo: PathBuf,
    buffer: Box<[u8]>,
}

impl Source {
    /// What a configuration says to watch.
    #[must_use]
    pub fn new(watched: Watched, cgroup: Option<&Path>, proc_root: &Path) -> Self {
        let meminfo = proc_root.join("meminfo");
        let (bound, use_of, swap) = match (watched, cgroup) {
            (Watched::Cgroup, Some(group)) => (
                group.join("memory.current"),
                group.join("memory.stat"),
                Some(Kept::new(group.join("memory.swap.current"))),
            ),
            // One file has it all, and the use is its own bound.
            _ => (meminfo.clone(), meminfo.clone(), None),
        };
        let buffer = vec![0; FILE_LIMIT_BYTES].into_boxed_slice();
        Self {
            watched,
            bound: Kept::new(bound),
            use_of: Kept::new(use_of),
            swap,
            meminfo,
            buffer,
        }
    }

    /// A figure that the memory in use cannot exceed, `None` where there is none to read.
    pub fn probe(&mut self) -> Option<Bytes> {
        let parse = match self.watched {
            Watched::Cgroup => files::bytes_of_memory_current,
            Watched::Machine | Watched::Nothing => files::anon_of_meminfo,
        };
        // Why there is none is told by the reading of the use, which follows.
        let bound = self.bound.look(&mut self.buffer, parse)?;
        Some(self.with_swap(bound))
    }

    /// Being moved to swap makes nothing less needed.
    fn with_swap(&mut self, in_memory: Bytes) -> Bytes {
        let swap = self.swap().unwrap_or_default();
        Bytes(in_memory.0.saturating_add(swap.0))
    }

    /// What the watched group has in swap now; none without a group, or on a kernel without swap.
    pub fn swap(&mut self) -> Option<Bytes> {
        let kept = self.swap.as_mut()?;
        match kept.read(&mut self.buffer) {
            Ok(read) => files::bytes_of_memory_current(&self.buffer[..read]).ok(),
            Err(error) => {
                let group = self.use_of.file.as_ref();
                let is_there = group.is_some_and(|file| read_open(file, &mut self.buffer).is_ok());
                // A kernel without swap has the file in no group, and will not have it later.
                if error.kind() == io::ErrorKind::NotFound && is_there {
                    self.swap = None;
                }
                None
            }
        }
    }

    /// Memory in use now: what cannot be reclaimed, whether it is in memory or in swap.
    ///
    /// # Errors
    /// [`ReadFailure`], when it is not known.
    pub fn sample(&mut self) -> Result<Bytes, ReadFailure> {
        let parse = match self.watched {
            Watched::Cgroup => files::anon_of_memory_stat,
            Watched::Machine | Watched::Nothing => files::anon_of_meminfo,
        };
        let in_memory = self.use_of.read_parsed(&mut self.buffer, parse)?;
        Ok(self.with_swap(in_memory))
    }

    /// The machine's own total, `None` with a line in the log if it cannot be read.
    pub fn machine_total(&mut self) -> Option<Bytes> {
        match read_parsed(&self.meminfo, &mut self.buffer, files::machine_memory) {
            Ok(memory) => Some(memory.total),
            Err(failure) => {
                tracing::error!(%failure, "the machine's total memory is unknown");
                None
            }
        }
    }
}

/// What `/proc/meminfo` says of the machine.
///
/// # Errors
/// [`ReadFailure`].
pub fn machine_memory(proc_root: &Path) -> Result<MachineMemory, ReadFailure> {
    let mut buffer = [0; FILE_LIMIT_BYTES];
    read_parsed(
        &proc_root.join("meminfo"),
        &mut buffer,
        files::machine_memory,
    )
}

/// The text of a small file, `None` if there is none or it cannot be read.
#[must_use]
pub fn text(path: &Path) -> Option<String> {
    let mut buffer = [0; FILE_LIMIT_BYTES];
    let (_, read) = open_and_read(path, &mut buffer).ok()?;
    std::str::from_utf8(&buffer[..read]).ok().map(str::to_owned)
}

/// A figure of a small file.
///
/// # Errors
/// [`ReadFailure`].
pub fn parsed<T>(
    path: &Path,
    parse: fn(&[u8]) -> Result<T, &'static str>,
) -> Result<T, ReadFailure> {
    read_parsed(path, &mut [0; FILE_LIMIT_BYTES], parse)
}

fn read_parsed<T>(
    path: &Path,
    buffer: &mut [u8],
    parse: fn(&[u8]) -> Result<T, &'static str>,
) -> Result<T, ReadFailure> {
    let failure = |detail: &str| ReadFailure::new(&path.to_string_lossy(), detail);
    let (_, read) = open_and_read(path, buffer).map_err(|error| failure(&error.to_string()))?;
    parse(&buffer[..read]).map_err(failure)
}

/// Whether a file is one of the kernel's. Such a file can be kept open between readings: it cannot
/// be replaced by another of its name without reads of it failing, where an ordinary one goes on
/// showing what it was.
pub(super) fn is_the_kernels(file: &File) -> bool {
    fstatfs(file).is_ok_and(|system| {
        matches!(
            system.filesystem_type(),
            CGROUP2_SUPER_MAGIC | CGROUP_SUPER_MAGIC | PROC_SUPER_MAGIC
        )
    })
}

fn open_and_read(path: &Path, buffer: &mut [u8]) -> io::Result<(File, usize)> {
    let file = File::open(path)?;
    let read = read_open(&file, buffer)?;
    Ok((file, read))
}

/// Reads from the beginning; how much there was.
pub(super) fn read_open(file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        let at = u64::try_from(length).map_err(io::Error::other)?;
        match file.read_at(&mut buffer[length..], at) {
            Ok(count) => {
                let is_all = count < buffer.len() - length;
                length += count;
                // The kernel composes these files whole: less than there was room for means that
                // this was all.
                if is_all {
                    break;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_readable() {
        let proc_root = Path::new("/proc");
        let memory = machine_memory(proc_root).expect("Linux");
        assert!(memory.total > memory.available && memory.available.0 > 0);
        let mut source = Source::new(Watched::Machine, None, proc_root);
        let used = source.sample().expect("Linux");
        assert!(used.0 > 0 && used < memory.total);
        assert_eq!(source.machine_total(), Some(memory.total));
    }

    #[test]
    fn readings_are_new_each_time_whether_the_file_is_kept_open_or_not() {
        let mut source = Source::new(Watched::Machine, None, Path::new("/proc"));
        let before = source.sample().expect("Linux");
        assert!(source.use_of.file.is_some(), "the kernel's file is kept");
        let more = std::hint::black_box(vec![1_u8; 64 << 20]);
        let after = source.sample().expect("Linux");
        assert_ne!(before, after, "{} more bytes", more.len());

        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("memory.stat");
        let mut source = Source::new(Watched::Cgroup, Some(folder.path()), Path::new("/proc"));
        for used in [5_u64, 7] {
            let draft = folder.path().join("draft");
            std::fs::write(&draft, format!("active_anon {used}\ninactive_anon 0\n"))
                .expect("written");
            std::fs::rename(&draft, &path).expect("replaced");
            assert_eq!(source.sample(), Ok(Bytes(used)));
            assert!(
                source.use_of.file.is_none(),
                "an ordinary file is opened anew"
            );
        }
    }

    #[test]
    fn a_kept_file_that_fails_is_opened_anew() {
        let mut source = Source::new(Watched::Machine, None, Path::new("/proc"));
        // A folder opens, and every read of it fails, as with the file of a group that was removed.
        source.use_of.file = Some(File::open("/proc").expect("Linux"));
        assert!(source.sample().is_ok());
    }

    #[test]
    fn what_is_in_swap_is_in_use() {
        let folder = tempfile::tempdir().expect("a folder");
        let put = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("written");
        };
        put(
            "memory.stat",
            "active_anon 500\ninactive_anon 50\nswapcached 7\n",
        );
        put("memory.current", "900\n");
        let mut source = Source::new(Watched::Cgroup, Some(folder.path()), Path::new("/proc"));
        assert_eq!(source.sample(), Ok(Bytes(543)), "no swap at all");
        assert_eq!(source.probe(), Some(Bytes(900)));
        put("memory.swap.current", "100\n");
        assert_eq!(source.sample(), Ok(Bytes(643)));
        assert_eq!(source.probe(), Some(Bytes(1000)), "still a bound");
    }

    #[test]
    fn a_group_of_the_kernels_without_swap_is_asked_for_it_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("memory.stat"), "active_anon 5\ninactive_anon 0\n").expect("written");
        let mut source = Source::new(Watched::Cgroup, Some(folder.path()), Path::new("/proc"));
        assert_eq!(source.sample(), Ok(Bytes(5)));
        assert!(source.swap.is_some(), "ordinary files may still come");
        // Any file of the kernel's stands for one of a real group's.
        source.use_of.file = Some(File::open("/proc/meminfo").expect("Linux"));
        assert_eq!(source.with_swap(Bytes(5)), Bytes(5));
        assert!(source.swap.is_none());
        std::fs::write(path("memory.swap.current"), "100\n").expect("written");
        assert_eq!(source.with_swap(Bytes(5)), Bytes(5));
    }

    #[test]
    fn a_missing_group_is_named() {
        let mut source = Source::new(
            Watched::Cgroup,
            Some(Path::new("/nowhere/db")),
            Path::new("/proc"),
        );
        let failure = source.sample().expect_err("not there");
        assert_eq!(failure.file, "/nowhere/db/memory.stat");
        assert!(failure.detail.contains("No such file"), "{failure}");
    }

    #[test]
    fn an_overlong_file_ends_at_the_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("endless");
        std::fs::write(&path, vec![b'x'; 3 * FILE_LIMIT_BYTES]).expect("written");
        assert_eq!(text(&path).expect("read").len(), FILE_LIMIT_BYTES);
    }
}
