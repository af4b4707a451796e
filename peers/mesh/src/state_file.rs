//! What a machine keeps of its peers over a restart.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::published::{Wishes, are_wishes};

/// Content of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Kept {
    /// Largest number of machines that was seen.
    pub(crate) expected: usize,
    /// Addresses of other machines.
    pub(crate) peers: Vec<SocketAddr>,
    pub(crate) wishes: Wishes,
}

/// The file, and what it has.
pub(crate) struct StateFile {
    path: PathBuf,
    kept: Kept,
}

impl StateFile {
    /// Reads the file. One that is missing or damaged counts as empty: the peers tell it again.
    pub(crate) fn load(path: &Path) -> Self {
        let content = std::fs::read(path).unwrap_or_default();
        let kept = match serde_json::from_slice::<Kept>(&content) {
            Ok(kept) if are_wishes(&kept.wishes) => kept,
            _ if content.is_empty() => Kept::default(),
            _ => {
                tracing::warn!(path = %path.display(), "the file of peers is damaged and is not used");
                Kept::default()
            }
        };
        Self {
            path: path.to_owned(),
            kept,
        }
    }

    pub(crate) fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Writes the file if it differs.
    pub(crate) fn keep(&mut self, kept: Kept) {
        if self.kept == kept {
            return;
        }
        let text = serde_json::to_vec_pretty(&kept).unwrap_or_default();
        match daemon_kit::durable::replace(&self.path, &text) {
            Ok(()) => self.kept = kept,
            Err(error) => {
                tracing::warn!(%error, path = %self.path.display(), "failed to write the file of peers")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_file_counts_as_empty_and_a_good_one_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("peers.json");
        for damage in ["", "{", r#"{"expected": -1}"#, r#"{"x": 1}"#] {
            std::fs::write(&path, damage).unwrap();
            assert_eq!(*StateFile::load(&path).kept(), Kept::default(), "{damage}");
        }
        let kept = Kept {
            expected: 3,
            peers: vec!["10.0.0.1:7".parse().unwrap()],
            wishes: Wishes::new(),
        };
        StateFile::load(&path).keep(kept.clone());
        assert_eq!(*StateFile::load(&path).kept(), kept);
    }
}
