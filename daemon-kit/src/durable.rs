//! Small files that are replaced atomically, also with respect to a crash.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Mode of every file: only the daemon reads them.
const MODE: u32 = 0o600;

/// Replaces the file at `path`, mode 0600. On return the new content survives a crash of the
/// machine. One writer at a time: a draft beside it, `PATH.new`, counts as the leftover of a killed
/// writer.
///
/// # Errors
/// The file system's error; the old content is still there.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    put(path, content, File::sync_all)?;
    sync_folder_of(path)
}

/// Like [`replace`], but the new content survives only the end of the process, not a crash of the
/// machine. For state that is void after one, and is written while a client waits.
///
/// # Errors
/// Those of [`replace`].
pub fn replace_lazily(path: &Path, content: &[u8]) -> io::Result<()> {
    put(path, content, |_| Ok(()))
}

fn put(path: &Path, content: &[u8], settle: fn(&File) -> io::Result<()>) -> io::Result<()> {
    let draft = draft(path);
    // A leftover would keep its mode, and a process that has it open would see the new content.
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(MODE)
        .open(&draft)?;
    let written = file.write_all(content).and_then(|()| settle(&file));
    if let Err(error) = written {
        // A draft must not keep a full disk full.
        let _ = fs::remove_file(&draft);
        return Err(error);
    }
    fs::rename(&draft, path)
}

/// Syncs the folder of `path`: a new file survives a crash only with its folder's entry.
///
/// # Errors
/// The file system's error.
pub fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|path| !path.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn draft(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".new");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    #[test]
    fn file_is_replaced_atomically_and_private() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state.json");
        let ways = [replace, replace_lazily, replace];
        for (content, way) in ["first, and longer", "second", "third"]
            .into_iter()
            .zip(ways)
        {
            way(&path, content.as_bytes()).expect("written");
            assert_eq!(fs::read_to_string(&path).expect("there"), content);
            assert_eq!(fs::metadata(&path).expect("there").mode() & 0o7777, MODE);
            // A file that others may read is replaced by a private one.
            fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("set");
        }
        let names = fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(names, 1, "no draft is left");
    }

    #[test]
    fn leftover_of_a_killed_writer_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state.json");
        fs::write(draft(&path), "half").expect("written");
        fs::set_permissions(draft(&path), Permissions::from_mode(0o666)).expect("set");
        replace(&path, b"whole").expect("written");
        assert_eq!(fs::read(&path).expect("there"), b"whole");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o7777, MODE);
    }

    #[test]
    fn failed_write_leaves_the_old_content() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state.json");
        replace(&path, b"old").expect("written");
        // A folder in the draft's place cannot be removed as a file.
        fs::create_dir(draft(&path)).expect("made");
        assert!(replace(&path, b"new").is_err());
        assert_eq!(fs::read(&path).expect("there"), b"old");
        assert!(replace(&folder.path().join("none/file"), b"").is_err());
    }
}
