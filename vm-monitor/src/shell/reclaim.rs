//! Taking a little memory from the group: the one use of `memory.reclaim`, by the estimator of the
//! working set and by the soft squeeze, which are both off unless asked for.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

use protocol::units::Bytes;

/// Asks the kernel to take this much from the group. It may take long, so not from the runtime's
/// own thread.
///
/// # Errors
/// What the kernel says; `EAGAIN` when it could not take as much, which is no fault.
pub fn reclaim(group: &Path, bytes: Bytes) -> io::Result<()> {
    let path = group.join("memory.reclaim");
    // A group without the file (before Linux 5.19) must not get an ordinary one.
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(bytes.0.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_amount_is_written_and_no_file_is_made() {
        let folder = tempfile::tempdir().expect("a folder");
        let missing = reclaim(folder.path(), Bytes(5)).expect_err("no file");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let path = folder.path().join("memory.reclaim");
        std::fs::write(&path, "").expect("made");
        reclaim(folder.path(), Bytes::mib(3)).expect("written");
        assert_eq!(std::fs::read_to_string(path).expect("there"), "3145728");
    }
}
