//! The key from which the agent derives the token for each VM's monitor.

use std::path::PathBuf;

use daemon_kit::bearer::VmKey;
use daemon_kit::chain;
use tracing::warn;

/// Source of the key.
#[derive(Debug, Clone)]
pub(super) enum MonitorKey {
    /// Given at the start.
    Held(VmKey),
    /// Content of a file that may appear or be replaced while the agent runs.
    File(PathBuf),
}

impl MonitorKey {
    /// The current key. `None` when the file is missing or cannot be used. Monitors are then
    /// dialled without a token, and those that require one refuse.
    pub(super) fn current(&self) -> Option<VmKey> {
        match self {
            Self::Held(key) => Some(key.clone()),
            Self::File(path) => match VmKey::load(path) {
                Ok(key) => Some(key),
                Err(error) => {
                    if !error.is_missing() {
                        warn!(
                            error = chain(&error),
                            "monitors are dialled without a token"
                        );
                    }
                    None
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_file_is_used_as_soon_as_it_exists() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        let key = MonitorKey::File(path.clone());
        assert!(key.current().is_none());
        let made = VmKey::load_or_create(&path).expect("made");
        let token = |key: VmKey| key.token("default", "pg", "1");
        assert_eq!(key.current().map(token), Some(token(made)));
        std::fs::write(&path, "no key").expect("written");
        assert!(key.current().is_none());
    }
}
