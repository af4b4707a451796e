//! A directory in the kubelet's layout: the visible names are links into `..data`, which is a link
//! to a directory for each version. So one rename publishes all new files at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use protocol::time::WallTime;

/// Name of the link to the newest version's directory.
pub const DATA_LINK: &str = "..data";
/// Name of the new link before its rename.
const NEXT_LINK: &str = "..data_tmp";
/// Longest file name on Linux in bytes.
const MAX_NAME_BYTES: usize = 255;
/// Attempts at an unused directory name.
const MAX_TRIES: u32 = 16;

/// Errors of writing or reading files.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The directory is not an absolute path without `..`.
    #[error("{0:?} is not an absolute path without ..")]
    Path(String),
    /// A file name holds a slash, starts with two dots, or is empty or too long.
    #[error("{0:?} is not a plain file name")]
    Name(String),
    /// An operation of the file system failed.
    #[error("cannot {what} {path}")]
    Io {
        /// Verb for the message: `make`, `read`, `write`, `remove`, `link` or `replace`.
        what: &'static str,
        /// File or directory of the call.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
}

impl FilesError {
    /// Whether the file system is read-only, so that a retry would not help.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::ReadOnlyFilesystem)
    }
}

fn io_error<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> FilesError + 'a {
    move |source| FilesError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

/// The directory of a request, below `root` (which is `/` outside tests).
///
/// # Errors
/// [`FilesError::Path`].
pub fn directory(root: &Path, requested: &str) -> Result<PathBuf, FilesError> {
    let bad = || FilesError::Path(requested.chars().take(200).collect());
    let relative = Path::new(requested.trim_start_matches('/'));
    let plain = relative
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    if !plain || relative.as_os_str().is_empty() || requested.contains('\0') {
        return Err(bad());
    }
    Ok(root.join(relative))
}

fn check_name(name: &str) -> Result<(), FilesError> {
    let plain = !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && name != "."
        && !name.starts_with("..")
        && !name.contains(['/', '\0']);
    if plain {
        Ok(())
    } else {
        Err(FilesError::Name(name.chars().take(200).collect()))
    }
}

/// Makes `files` the whole content of `dir`, mode 0644. Equal content is not written again;
/// leftovers of earlier writes are removed.
///
/// # Errors
/// [`FilesError::Name`] before any change. [`FilesError::Io`] with the old content in place, or
/// with the new content in place if only leftovers could not be removed.
pub fn write(
    dir: &Path,
    files: &BTreeMap<String, Vec<u8>>,
    now: WallTime,
) -> Result<(), FilesError> {
    files.keys().try_for_each(|name| check_name(name))?;
    fs::create_dir_all(dir).map_err(io_error("make", dir))?;
    let old = shown(dir);
    // Before any write: the leftovers may be what fills the disk.
    let swept = sweep(dir, old.as_deref());
    if old.is_some() && read(dir).is_ok_and(|old| old == *files) && links_are_whole(dir, files) {
        return swept;
    }
    let version = new_version(dir, now)?;
    if let Err(error) = replace(dir, &version, files) {
        // Half a version must not stay; the first error is returned.
        let _ = fs::remove_dir_all(dir.join(&version));
        return Err(error);
    }
    // The old content first: it may be revoked secrets.
    let swept = sweep(dir, Some(&version));
    for name in visible(dir).map_err(io_error("read", dir))? {
        if !files.contains_key(&name) {
            let path = dir.join(name);
            fs::remove_file(&path).map_err(io_error("remove", &path))?;
        }
    }
    swept
}

/// The version that `..data` refers to, if it is one: a directory of `dir` itself, not behind a
/// link. A foreign writer of `dir` may have made `..data`, and its target is removed later.
fn shown(dir: &Path) -> Option<String> {
    let target = fs::read_link(dir.join(DATA_LINK)).ok()?;
    let name = target.into_os_string().into_string().ok()?;
    let is_dir = || fs::symlink_metadata(dir.join(&name)).is_ok_and(|found| found.is_dir());
    (is_version(&name) && is_dir()).then_some(name)
}

/// Whether a name is one that [`new_version`] or a kubelet makes: `..`, a time, a dot, a number.
fn is_version(name: &str) -> bool {
    let parts = name
        .strip_prefix("..")
        .and_then(|rest| rest.split_once('.'));
    let is_of = |part: &str, also: &[u8]| {
        let is_part = |byte: u8| byte.is_ascii_digit() || also.contains(&byte);
        !part.is_empty() && part.bytes().all(is_part)
    };
    parts.is_some_and(|(time, number)| is_of(time, b"_") && is_of(number, b""))
}

/// Removes all versions but `keep`: the one before, and those of writers that failed or were
/// killed.
fn sweep(dir: &Path, keep: Option<&str>) -> Result<(), FilesError> {
    let mut swept = Ok(());
    for entry in fs::read_dir(dir).map_err(io_error("read", dir))? {
        let entry = entry.map_err(io_error("read", dir))?;
        let name = entry.file_name();
        let name = name.to_str().filter(|name| is_version(name));
        // A link is not followed.
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if name.is_some() && name != keep && is_dir {
            let path = entry.path();
            let removed = fs::remove_dir_all(&path).map_err(io_error("remove", &path));
            swept = swept.and(removed);
        }
    }
    swept
}

/// Makes the directory of a new version and returns its name.
fn new_version(dir: &Path, now: WallTime) -> Result<String, FilesError> {
    let stamp: String = now
        .to_micro_string()
        .chars()
        .map(|c| if c.is_ascii_digit() { c } else { '_' })
        .collect();
    for attempt in 0..MAX_TRIES {
        let name = format!("..{}.{}", stamp.trim_end_matches('_'), attempt);
        let path = dir.join(&name);
        match fs::DirBuilder::new().mode(0o755).create(&path) {
            Ok(()) => return Ok(name),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io_error("make", &path)(error)),
        }
    }
    Err(io_error("make", dir)(io::ErrorKind::AlreadyExists.into()))
}

/// Writes the files of a version, then publishes it. On a failure the earlier version stays.
fn replace(dir: &Path, version: &str, files: &BTreeMap<String, Vec<u8>>) -> Result<(), FilesError> {
    fill(&dir.join(version), files)?;
    let mut made = Vec::new();
    let done = files
        .keys()
        .try_for_each(|name| link(dir, name, &mut made))
        .and_then(|()| point(dir, Path::new(version), DATA_LINK));
    if done.is_err() {
        // Links to new files that were not published; those of the old content have targets.
        for path in made.iter().filter(|path| !path.exists()) {
            let _ = fs::remove_file(path);
        }
    }
    done
}

fn fill(version: &Path, files: &BTreeMap<String, Vec<u8>>) -> Result<(), FilesError> {
    for (name, content) in files {
        let path = version.join(name);
        let write = || -> io::Result<()> {
            let mut options = fs::OpenOptions::new();
            let mut file = options
                .write(true)
                .create_new(true)
                .mode(0o644)
                .open(&path)?;
            io::Write::write_all(&mut file, content)?;
            // The mode above was reduced by the umask.
            file.set_permissions(fs::Permissions::from_mode(0o644))
        };
        write().map_err(io_error("write", &path))?;
    }
    Ok(())
}

/// Makes the link of a file before the file is published: a failure (a mount in its place, a full
/// disk) must occur while the old version is intact.
fn link(dir: &Path, name: &str, made: &mut Vec<PathBuf>) -> Result<(), FilesError> {
    let (path, target) = (dir.join(name), Path::new(DATA_LINK).join(name));
    if fs::read_link(&path).is_ok_and(|to| to == target) {
        return Ok(());
    }
    point(dir, &target, name)?;
    made.push(path);
    Ok(())
}

/// Replaces whatever has the name by a link, unless it is a directory.
fn point(dir: &Path, target: &Path, name: &str) -> Result<(), FilesError> {
    let (next, path) = (dir.join(NEXT_LINK), dir.join(name));
    // Leftover of a killed writer.
    let _ = fs::remove_file(&next);
    symlink(target, &next).map_err(io_error("link", &next))?;
    fs::rename(&next, &path).map_err(|source| {
        let _ = fs::remove_file(&next);
        io_error("replace", &path)(source)
    })
}

/// Names in `dir` that are links into `..data`.
fn visible(dir: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let ours = fs::read_link(entry.path()).is_ok_and(|to| to.starts_with(DATA_LINK));
        if let (true, Ok(name)) = (ours, entry.file_name().into_string()) {
            names.insert(name);
        }
    }
    Ok(names)
}

fn links_are_whole(dir: &Path, files: &BTreeMap<String, Vec<u8>>) -> bool {
    visible(dir).is_ok_and(|names| names.iter().eq(files.keys()))
}

/// Files of `<dir>/..data` by name; sub-directories are skipped.
///
/// # Errors
/// [`FilesError::Io`] when the directory or a file of it cannot be read.
pub fn read(dir: &Path) -> Result<BTreeMap<String, Vec<u8>>, FilesError> {
    let data = dir.join(DATA_LINK);
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(&data).map_err(io_error("read", &data))? {
        let entry = entry.map_err(io_error("read", &data))?;
        let path = entry.path();
        if let (true, Ok(name)) = (path.is_file(), entry.file_name().into_string()) {
            files.insert(name, fs::read(&path).map_err(io_error("read", &path))?);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests;
