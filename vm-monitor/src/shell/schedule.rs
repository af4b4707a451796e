//! The file with the agent's schedule of upgrades.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use super::control::draft_of;

/// Replaces the file as a whole. An empty schedule removes it.
///
/// # Errors
/// The folder cannot be written.
pub(super) fn write(path: &Path, spec: &str) -> io::Result<()> {
    if spec.is_empty() {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    // The folder is below /run, so a crash of the machine takes the file along.
    let draft = draft_of(path);
    fs::write(&draft, spec)?;
    fs::rename(&draft, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: R20
    #[test]
    fn schedule_is_replaced_as_a_whole_and_an_empty_one_removes_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("schedule");
        write(&path, "").expect("nothing to remove");
        for spec in ["*-*-* 02:00:00 UTC", "*-*-* 03:00:00 UTC"] {
            write(&path, spec).expect("written");
            assert_eq!(fs::read_to_string(&path).expect("there"), spec);
        }
        write(&path, "").expect("removed");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
        let absent = folder.path().join("absent/schedule");
        assert!(write(&absent, "*-*-* 02:00:00 UTC").is_err());
    }
}
