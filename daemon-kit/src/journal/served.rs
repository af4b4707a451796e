//! The files of a journal as a server names them and a client stores them: a pod's disk is read by
//! nobody else.
//!
//! Both sides accept the same names only ([`is_name`]), so neither reads nor writes a file outside
//! the journal's folder.

use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::files;

/// Folder of the agent's segments, below that of the journal.
pub const AGENT: &str = "agent";
/// Folder of the sources of policies that segments name, below that of the journal.
pub const POLICIES: &str = "policies";
const SOURCE_ENDING: &str = ".json";

/// Files of an agent's journal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalFiles {
    /// Sources of policies, then segments by number.
    pub files: Vec<JournalFile>,
}

/// One file of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalFile {
    /// Path below the journal's folder, for example `agent/0000000001.bj.zst`.
    pub path: String,
    /// Length in bytes when the file was listed. The newest segment grows.
    pub bytes: u64,
    /// Seconds from 1970 to the last write.
    pub modified: u64,
}

/// Whether a path is that of a segment or of a policy's source.
#[must_use]
pub fn is_name(path: &str) -> bool {
    match path.split_once('/') {
        Some((AGENT, name)) => files::seq_of(name).is_some_and(|(seq, _)| {
            // The one spelling that the writer uses, without signs.
            name.starts_with(&format!("{seq:010}."))
        }),
        Some((POLICIES, name)) => name
            .strip_suffix(SOURCE_ENDING)
            .is_some_and(|digest| !digest.is_empty() && digest.bytes().all(is_digit)),
        _ => false,
    }
}

fn is_digit(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

/// Lists the files below the folder of a journal.
///
/// # Errors
/// A folder cannot be read; a missing one is empty.
pub fn list(journal: &Path) -> io::Result<JournalFiles> {
    let mut all = sources(&journal.join(POLICIES))?;
    for file in files::list(&journal.join(AGENT))? {
        let name = file.path.file_name().unwrap_or_default().to_string_lossy();
        all.push(JournalFile {
            path: format!("{AGENT}/{name}"),
            bytes: file.bytes,
            modified: seconds(file.modified),
        });
    }
    all.retain(|file| is_name(&file.path));
    Ok(JournalFiles { files: all })
}

fn sources(folder: &Path) -> io::Result<Vec<JournalFile>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        // A source may be removed after the listing.
        if let Ok(metadata) = entry.metadata() {
            found.push(JournalFile {
                path: format!("{POLICIES}/{}", entry.file_name().to_string_lossy()),
                bytes: metadata.len(),
                modified: seconds(metadata.modified()?),
            });
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_segments_and_sources_are_accepted_and_nothing_else() {
        for name in [
            "agent/0000000001.bj",
            "agent/0000000001.bj.zst",
            "policies/0a9f.json",
        ] {
            assert!(is_name(name), "{name}");
        }
        for name in [
            "",
            "agent",
            "agent/",
            "agent/lock",
            "agent/1.bj",
            "agent/+000000001.bj",
            "agent/0000000001.draft",
            "agent/../agent/0000000001.bj",
            "agent//0000000001.bj",
            "/agent/0000000001.bj",
            "people/0000000001.bj",
            "policies/.json",
            "policies/../../events/0a.json",
            "policies/0A.json",
        ] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn list_has_each_segment_once_and_the_sources() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(list(folder.path()).unwrap(), JournalFiles::default());
        for path in [
            "agent/lock",
            "agent/0000000001.bj",
            "agent/0000000001.bj.zst",
            "agent/0000000002.bj",
            "policies/ab.json",
            "policies/ab.json.new",
            "events/0000000003.bj",
        ] {
            let file = folder.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, "12345").unwrap();
        }
        let listed = list(folder.path()).unwrap().files;
        let paths: Vec<&str> = listed.iter().map(|file| file.path.as_str()).collect();
        let wanted = [
            "policies/ab.json",
            "agent/0000000001.bj",
            "agent/0000000002.bj",
        ];
        assert_eq!(paths, wanted);
        assert!(
            listed
                .iter()
                .all(|file| file.bytes == 5 && file.modified > 0)
        );
    }
}
