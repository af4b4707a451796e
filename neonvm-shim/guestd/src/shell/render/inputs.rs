//! What units are rendered from: their files and the files that they watch.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use crate::core::render::unit::{self, Format, Unit, Watched};
use crate::core::render::{MAX_INPUT_BYTES, WatchedFile};

/// Most units of a guest. The rest is not read.
pub(super) const MAX_UNITS: usize = 32;

/// What tells one version of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version([u64; 5], [i64; 4]);

impl Version {
    /// `rights`: of the folder, where they matter.
    fn of(found: &Metadata, rights: u64) -> Self {
        let mode = u64::from(found.mode());
        let numbers = [found.dev(), found.ino(), found.size(), mode, rights];
        let times = [
            found.mtime(),
            found.mtime_nsec(),
            found.ctime(),
            found.ctime_nsec(),
        ];
        Self(numbers, times)
    }
}

/// Versions of the units in a folder, by their names.
pub(super) fn units(folder: &Path) -> io::Result<BTreeMap<String, Version>> {
    let above = fs::metadata(folder)?;
    let rights = u64::from(above.uid()) << 32 | u64::from(above.mode());
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let file = entry.file_name();
        if let Some(name) = file.to_str().and_then(unit::name)
            && let Ok(metadata) = fs::metadata(entry.path())
        {
            found.insert(name.to_owned(), Version::of(&metadata, rights));
        }
    }
    Ok(found)
}

/// Reads a unit. It can name any file and any command, so that only root may write it.
pub(super) fn unit(folder: &Path, name: &str) -> Result<Unit, String> {
    let path = folder.join(format!("{name}.toml"));
    for path in [folder, &path] {
        let found = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
        // In a guest the daemon is root.
        let is_own = found.uid() == rustix::process::geteuid().as_raw();
        if !is_own || found.mode() & 0o022 != 0 {
            let path = path.display();
            return Err(format!(
                "{path} must belong to root and be writable by nobody else"
            ));
        }
    }
    // One byte more, so that the parser refuses a file that is too long.
    let text = bounded(&path, MAX_INPUT_BYTES + 1)
        .and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    unit::parse(&text).map_err(|error| error.to_string())
}

/// The watched files of a unit. A file is read again when its version has changed.
#[derive(Debug, Default)]
pub(super) struct Files {
    read: BTreeMap<String, (Option<Version>, Option<WatchedFile>)>,
}

impl Files {
    pub(super) fn look(
        &mut self,
        watched: &BTreeMap<String, Watched>,
    ) -> BTreeMap<String, WatchedFile> {
        for (name, watched) in watched {
            let version = fs::metadata(&watched.path)
                .ok()
                .map(|found| Version::of(&found, 0));
            if self.read.get(name).is_none_or(|(read, _)| *read != version) {
                let file = version.map(|_| read(watched));
                self.read.insert(name.clone(), (version, file));
            }
        }
        let there = |(name, (_, file)): (&String, &(_, Option<WatchedFile>))| {
            Some((name.clone(), file.clone()?))
        };
        self.read.iter().filter_map(there).collect()
    }
}

fn read(watched: &Watched) -> WatchedFile {
    let bytes = match bounded(&watched.path, MAX_INPUT_BYTES + 1) {
        Ok(bytes) if bytes.len() <= MAX_INPUT_BYTES => bytes,
        Ok(_) => {
            return WatchedFile::Unusable(format!("it is longer than {MAX_INPUT_BYTES} bytes"));
        }
        Err(error) => return WatchedFile::Unusable(error.to_string()),
    };
    match watched.format {
        Format::Json => match serde_json::from_slice(&bytes) {
            Ok(document) => WatchedFile::Json(document),
            Err(error) => WatchedFile::Unusable(format!("it is not JSON: {error}")),
        },
        Format::Text => match String::from_utf8(bytes) {
            Ok(text) => WatchedFile::Text(text.strip_suffix('\n').unwrap_or(&text).to_owned()),
            Err(_) => WatchedFile::Unusable("it is not UTF-8".to_owned()),
        },
    }
}

/// First `most` bytes of a regular file.
pub(super) fn bounded(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    // Opening a pipe or a device must not block.
    let flags = rustix::fs::OFlags::NONBLOCK.bits();
    let file = File::options()
        .read(true)
        .custom_flags(i32::try_from(flags).unwrap_or(0))
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}
