//! A directory in the kubelet's layout: the visible names are links into `..data`, which is a link to a
//! directory of its own for each version, so that one rename shows all new files at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use protocol::time::WallTime;

/// The link to the newest version's directory.
pub const DATA_LINK: &str = "..data";
/// Its next version before the rename.
const NEXT_LINK: &str = "..data_tmp";
/// Longest file name Linux takes.
const MAX_NAME_BYTES: usize = 255;
/// Tries at a directory name nobody has.
const MAX_TRIES: u32 = 16;

/// Why files were not taken or not read.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The directory is not an absolute path without `..`.
    #[error("{0:?} is not an absolute path without ..")]
    Path(String),
    /// A file name holds a slash, starts with two dots, or is empty or too long.
    #[error("{0:?} is not a plain file name")]
    Name(String),
    /// The file system refused.
    #[error("cannot {what} {path}")]
    Io {
        /// Verb.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl FilesError {
    /// Whether the file system takes no files from anybody.
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

/// The directory a request names, below `root` (which is `/` outside tests).
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

/// Writes `files` as the whole content of `dir`, mode 0644. Equal content is left alone.
///
/// # Errors
/// [`FilesError::Name`] before anything is touched, [`FilesError::Io`] with the old content still in place.
pub fn write(
    dir: &Path,
    files: &BTreeMap<String, Vec<u8>>,
    now: WallTime,
) -> Result<(), FilesError> {
    files.keys().try_for_each(|name| check_name(name))?;
    fs::create_dir_all(dir).map_err(io_error("make", dir))?;
    if read(dir).is_ok_and(|old| old == *files) && links_are_whole(dir, files) {
        return Ok(());
    }
    let old = fs::read_link(dir.join(DATA_LINK)).ok();
    let version = new_version(dir, now)?;
    if let Err(error) = fill(dir, &version, files) {
        // Half a version must not stay; the error that matters is the first one.
        let _ = fs::remove_dir_all(dir.join(&version));
        return Err(error);
    }
    let stale = visible(dir).map_err(io_error("read", dir))?;
    for name in stale.iter().filter(|name| !files.contains_key(*name)) {
        let path = dir.join(name);
        fs::remove_file(&path).map_err(io_error("remove", &path))?;
    }
    if let Some(old) = old.filter(|old| old.as_os_str() != version.as_str()) {
        let path = dir.join(old);
        fs::remove_dir_all(&path).map_err(io_error("remove", &path))?;
    }
    Ok(())
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

/// Writes the files of a version, then shows it.
fn fill(dir: &Path, version: &str, files: &BTreeMap<String, Vec<u8>>) -> Result<(), FilesError> {
    for (name, content) in files {
        let path = dir.join(version).join(name);
        let write = || -> io::Result<()> {
            let mut options = fs::OpenOptions::new();
            let mut file = options
                .write(true)
                .create_new(true)
                .mode(0o644)
                .open(&path)?;
            io::Write::write_all(&mut file, content)?;
            // The mode above went through the umask.
            file.set_permissions(fs::Permissions::from_mode(0o644))
        };
        write().map_err(io_error("write", &path))?;
    }
    let next = dir.join(NEXT_LINK);
    // A link left over by a killed writer.
    let _ = fs::remove_file(&next);
    symlink(version, &next).map_err(io_error("link", &next))?;
    fs::rename(&next, dir.join(DATA_LINK)).map_err(io_error("rename", &next))?;
    for name in files.keys() {
        let (path, target) = (dir.join(name), Path::new(DATA_LINK).join(name));
        if fs::read_link(&path).is_ok_and(|to| to == target) {
            continue;
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_error("replace", &path)(error));
            }
            _ => symlink(&target, &path).map_err(io_error("link", &path))?,
        }
    }
    Ok(())
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

/// The files of `<dir>/..data` by name; sub-directories are passed over.
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
mod tests {
    use super::*;

    fn files(pairs: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
        pairs
            .iter()
            .map(|(n, c)| ((*n).to_owned(), c.as_bytes().to_vec()))
            .collect()
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name());
        let mut names: Vec<String> = entries.map(|n| n.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_layout_is_the_kubelets() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("var/sync");
        write(
            &dir,
            &files(&[("a", "1"), ("b", "2")]),
            WallTime(1_704_164_645_000_000),
        )
        .unwrap();
        assert_eq!(
            names(&dir),
            ["..2024_01_02T03_04_05_000000.0", "..data", "a", "b"].map(|n| n.replace('T', "_"))
        );
        assert_eq!(fs::read_link(dir.join("a")).unwrap(), Path::new("..data/a"));
        assert_eq!(fs::read_to_string(dir.join("b")).unwrap(), "2");
        let mode = fs::metadata(dir.join("a")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
    }

    #[test]
    fn a_new_version_replaces_the_old_whole() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        write(dir, &files(&[("a", "1"), ("b", "2")]), WallTime(1)).unwrap();
        fs::write(dir.join("stranger"), "kept").unwrap();
        write(dir, &files(&[("b", "3"), ("c", "4")]), WallTime(2)).unwrap();
        assert_eq!(read(dir).unwrap(), files(&[("b", "3"), ("c", "4")]));
        let left = names(dir);
        assert!(!left.contains(&"a".to_owned()), "{left:?}");
        assert!(left.contains(&"stranger".to_owned()), "{left:?}");
        assert_eq!(
            left.iter().filter(|n| n.starts_with("..1970")).count(),
            1,
            "{left:?}"
        );
    }

    #[test]
    fn equal_content_is_left_alone_and_a_lost_link_comes_back() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        write(dir, &files(&[("a", "1")]), WallTime(1)).unwrap();
        let before = fs::read_link(dir.join(DATA_LINK)).unwrap();
        write(dir, &files(&[("a", "1")]), WallTime(2)).unwrap();
        assert_eq!(fs::read_link(dir.join(DATA_LINK)).unwrap(), before);
        fs::remove_file(dir.join("a")).unwrap();
        write(dir, &files(&[("a", "1")]), WallTime(3)).unwrap();
        assert_eq!(fs::read_to_string(dir.join("a")).unwrap(), "1");
    }

    #[test]
    fn names_and_paths_cannot_leave_the_directory() {
        let temp = tempfile::tempdir().unwrap();
        for bad in ["", ".", "..", "..data", "a/b", "..x", &"x".repeat(256)] {
            let error = write(temp.path(), &files(&[(bad, "1")]), WallTime(1)).unwrap_err();
            assert!(matches!(error, FilesError::Name(_)), "{bad:?}: {error}");
        }
        assert_eq!(names(temp.path()).len(), 0, "nothing was touched");
        for bad in ["", "/", "/a/../b", "//", "a/.."] {
            assert!(directory(temp.path(), bad).is_err(), "{bad:?}");
        }
        assert_eq!(
            directory(Path::new("/"), "//mnt/ssh").unwrap(),
            Path::new("/mnt/ssh")
        );
    }
}
