//! The file of the [`GuestdKey`] in the runner's directory.

use std::io;
use std::path::Path;

use crate::core::guestd_key::{GuestdKey, KEY_BYTES};

/// Makes the key of a guest that is about to boot.
///
/// # Errors
/// The file system's error.
pub fn make(path: &Path) -> io::Result<GuestdKey> {
    let key = GuestdKey::new(rand::random::<[u8; KEY_BYTES]>());
    keep(path, Some(&key))?;
    Ok(key)
}

/// Writes the key of a guest, mode 0600. `None` removes that of an earlier guest.
///
/// # Errors
/// The file system's error.
pub fn keep(path: &Path, key: Option<&GuestdKey>) -> io::Result<()> {
    match key {
        // The key is void after a crash of the machine, which also ends the guest.
        Some(key) => {
            let text = format!("{}\n", key.as_str());
            daemon_kit::durable::replace_lazily(path, text.as_bytes())
        }
        None => match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
    }
}

/// Key of the running guest; `None` if an older runner booted it.
///
/// # Errors
/// The file cannot be read or holds no key.
pub fn read(path: &Path) -> io::Result<Option<GuestdKey>> {
    match std::fs::read_to_string(path) {
        Ok(text) => GuestdKey::try_from(text.trim().to_owned())
            .map(Some)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn key_is_private_and_read_by_the_next_runner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("guestd.key");
        assert_eq!(read(&path).unwrap(), None);
        let first = make(&path).unwrap();
        assert_eq!(read(&path).unwrap(), Some(first.clone()));
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_ne!(make(&path).unwrap(), first, "each boot has its own");
        keep(&path, None).unwrap();
        keep(&path, None).unwrap();
        assert_eq!(read(&path).unwrap(), None);
        std::fs::write(&path, "half").unwrap();
        assert!(read(&path).is_err());
    }
}
