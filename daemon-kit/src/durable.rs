//! Small files that are replaced whole: a reader sees the old content or the new one, also after a
//! crash.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Mode of every file written here: what daemons keep is for themselves.
const MODE: u32 = 0o600;

/// Puts `content` at `path`, mode 0600. When it returns the new content survives a crash of the
/// machine. One writer at a time: a draft beside it, `PATH.new`, is taken for the leftover of a
/// writer that was killed.
///
/// # Errors
/// As the file system says; what was there before is then still there.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    put(path, content, File::sync_all)?;
    sync_folder_of(path)
}

/// Like [`replace`], but the new content survives only the end of the process, not a crash of the
/// machine: for what means nothing after one, and is written where somebody waits.
///
/// # Errors
/// As for [`replace`].
pub fn replace_lazily(path: &Path, content: &[u8]) -> io::Result<()> {
    put(path, content, |_| Ok(()))
}

fn put(path: &Path, content: &[u8], settle: fn(&File) -> io::Result<()>) -> io::Result<()> {
    let draft = draft(path);
    // A leftover would keep its mode, and whoever has it open would read along.
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
        // A disk that is full is not to be kept full by half a draft.
        let _ = fs::remove_file(&draft);
        return Err(error);
    }
    fs::rename(&draft, path)
}

/// Makes the names in the folder of `path` last: a new file is there after a crash only when its
/// folder was written too.
///
/// # Errors
/// As the file system says.
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
    fn a_file_is_replaced_whole_and_is_its_owners_alone() {
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
            // What is open to others is replaced by what is not.
            fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("set");
        }
        let names = fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(names, 1, "no draft is left");
    }

    #[test]
    fn the_leftover_of_a_killed_writer_is_no_hindrance() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state.json");
        fs::write(draft(&path), "half").expect("written");
        fs::set_permissions(draft(&path), Permissions::from_mode(0o666)).expect("set");
        replace(&path, b"whole").expect("written");
        assert_eq!(fs::read(&path).expect("there"), b"whole");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o7777, MODE);
    }

    #[test]
    fn what_cannot_be_written_leaves_what_was_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state.json");
        replace(&path, b"old").expect("written");
        // A draft that is a folder cannot be removed as a file.
        fs::create_dir(draft(&path)).expect("made");
        assert!(replace(&path, b"new").is_err());
        assert_eq!(fs::read(&path).expect("there"), b"old");
        assert!(replace(&folder.path().join("none/file"), b"").is_err());
    }
}
