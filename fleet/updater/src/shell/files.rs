//! Where files are, and how they are replaced.

use std::fs::Permissions;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::Error;

/// Files of the updater.
#[derive(Debug, Clone)]
pub struct Files {
    /// Settings, mode 0644.
    pub settings: PathBuf,
    /// Folder of state, mode 0700.
    pub state: PathBuf,
    /// Schedule, in the monitor's folder: it goes when the monitor ends.
    pub schedule: PathBuf,
    /// Drop-in of the timer of upgrades.
    pub drop_in: PathBuf,
}

impl Default for Files {
    fn default() -> Self {
        Self {
            settings: "/etc/bellows/updater.toml".into(),
            state: "/var/lib/bellows-updater".into(),
            schedule: "/run/vm-monitor/schedule".into(),
            drop_in: "/run/systemd/system/bellows-upgrade.timer.d/10-window.conf".into(),
        }
    }
}

/// Reads a regular file. `None` if it is absent.
///
/// # Errors
/// It cannot be read, is no regular file, or has more than `most` bytes.
pub fn read(path: &Path, most: usize) -> Result<Option<Vec<u8>>, Error> {
    let failed =
        |reason: &str| Error::Machine(format!("failed to read {}: {reason}", path.display()));
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(&error.to_string())),
    };
    // The open call of a pipe would wait.
    if !metadata.is_file() {
        return Err(failed("it is no regular file"));
    }
    let mut content = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| {
            let most = u64::try_from(most).unwrap_or(u64::MAX);
            file.take(most.saturating_add(1)).read_to_end(&mut content)
        })
        .map_err(|error| failed(&error.to_string()))?;
    if content.len() > most {
        return Err(failed(&format!("it has more than {most} bytes")));
    }
    Ok(Some(content))
}

/// Replaces a file as a whole, and makes its folder with `folder_mode` if that is absent.
///
/// # Errors
/// A call failed. The file is then as before.
pub fn replace(path: &Path, content: &[u8], mode: u32, folder_mode: u32) -> Result<(), Error> {
    let write = || -> std::io::Result<()> {
        let folder = path.parent().unwrap_or_else(|| Path::new("/"));
        if !folder.is_dir() {
            std::fs::create_dir_all(folder)?;
            std::fs::set_permissions(folder, Permissions::from_mode(folder_mode))?;
        }
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(content)?;
        file.as_file()
            .set_permissions(Permissions::from_mode(mode))?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(|error| Error::Machine(format!("failed to write {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: R42
    #[test]
    fn files_and_folders_have_their_modes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state/file");
        replace(&path, b"one", 0o600, 0o700).expect("written");
        replace(&path, b"two", 0o644, 0o755).expect("written");
        let mode = |path: &Path| {
            let metadata = std::fs::metadata(path).expect("there");
            metadata.permissions().mode() & 0o7777
        };
        assert_eq!(mode(&path), 0o644);
        assert_eq!(mode(path.parent().expect("a folder")), 0o700);
        assert_eq!(read(&path, 3).expect("read"), Some(b"two".to_vec()));
        assert!(read(&path, 2).is_err());
        assert!(read(folder.path(), 10).is_err(), "it is no regular file");
        assert_eq!(read(&folder.path().join("none"), 10).expect("read"), None);
    }
}
