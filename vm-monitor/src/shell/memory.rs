//! Reading the kernel's small files.
//!
//! They are opened anew each time: a group that is removed and made again (a restarted service) is then read without
//! further ado, and three system calls cost little beside the kernel's own work of composing the file. The reads are not
//! handed to another thread, because these files never wait for a disk.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use protocol::units::Bytes;

use crate::core::decision::Watched;
use crate::core::files::{self, MachineMemory, ReadFailure};

/// Most that is read of one file, bytes. `memory.stat` and `/proc/meminfo` have about 2,000.
pub const FILE_LIMIT_BYTES: usize = 16 * 1024;

/// Where memory use is read from, with a buffer to read into.
#[derive(Debug)]
pub struct Source {
    watched: Watched,
    /// The file with the figures, empty when nothing is watched.
    file: PathBuf,
    meminfo: PathBuf,
    buffer: Box<[u8]>,
}

impl Source {
    /// What a configuration says to watch.
    #[must_use]
    pub fn new(watched: Watched, cgroup: Option<&Path>, proc_root: &Path) -> Self {
        let meminfo = proc_root.join("meminfo");
        let file = match (watched, cgroup) {
            (Watched::Cgroup, Some(group)) => group.join("memory.stat"),
            _ => meminfo.clone(),
        };
        let buffer = vec![0; FILE_LIMIT_BYTES].into_boxed_slice();
        Self { watched, file, meminfo, buffer }
    }

    /// Memory in use now.
    ///
    /// # Errors
    /// [`ReadFailure`], when it is not known.
    pub fn sample(&mut self) -> Result<Bytes, ReadFailure> {
        let parse = match self.watched {
            Watched::Cgroup => files::anon_of_memory_stat,
            Watched::Machine | Watched::Nothing => files::anon_of_meminfo,
        };
        read_parsed(&self.file, &mut self.buffer, parse)
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
    read_parsed(&proc_root.join("meminfo"), &mut buffer, files::machine_memory)
}

/// The text of a small file, `None` if there is none or it cannot be read.
#[must_use]
pub fn text(path: &Path) -> Option<String> {
    let mut buffer = [0; FILE_LIMIT_BYTES];
    let read = read_small(path, &mut buffer).ok()?;
    std::str::from_utf8(read).ok().map(str::to_owned)
}

fn read_parsed<T>(
    path: &Path,
    buffer: &mut [u8],
    parse: fn(&[u8]) -> Result<T, &'static str>,
) -> Result<T, ReadFailure> {
    let failure = |detail: &str| ReadFailure::new(&path.to_string_lossy(), detail);
    let read = read_small(path, buffer).map_err(|error| failure(&error.to_string()))?;
    parse(read).map_err(failure)
}

fn read_small<'a>(path: &Path, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    let mut file = File::open(path)?;
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(&buffer[..length])
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
    fn a_missing_group_is_named() {
        let mut source = Source::new(Watched::Cgroup, Some(Path::new("/nowhere/db")), Path::new("/proc"));
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
