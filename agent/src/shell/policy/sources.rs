//! The sources of policies beside the journal, so that their recorded answers can be asked again.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use policy_contract::{Digest, Spec};

use super::known::Policy;

/// Folder below that of the journal.
pub(super) const FOLDER: &str = "policies";
/// Only the agent reads the sources.
const FOLDER_MODE: u32 = 0o700;
/// Age from which a source that is not in use is removed. The journal is kept for a week.
const KEPT_FOR: Duration = Duration::from_secs(14 * 24 * 3600);

/// Writes the sources of the versions in use, and removes old ones. A failure is logged only:
/// sizing goes on.
pub(super) fn keep<'a>(folder: &Path, used: impl Iterator<Item = &'a Arc<Policy>>) {
    for policy in used {
        let path = path_of(folder, &policy.digest);
        if let Err(error) = write(&path, policy) {
            let path = path.display().to_string();
            tracing::warn!(path, %error, "the source of a policy is not kept");
        }
    }
    prune(folder);
}

/// File of a source.
pub(super) fn path_of(folder: &Path, digest: &Digest) -> PathBuf {
    folder.join(format!("{digest}.json"))
}

pub(super) fn write(path: &Path, policy: &Policy) -> std::io::Result<()> {
    replace(path, &serde_json::to_vec(&policy.spec)?)
}

/// Replaces a file as a whole. Makes its folder if it is missing.
pub(super) fn replace(path: &Path, text: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(FOLDER_MODE)
            .create(folder)?;
    }
    daemon_kit::durable::replace(path, text)
}

/// Reads the source of a version that was in use. `None` if it is not kept, or is another one.
pub(super) fn read(folder: Option<&Path>, digest: &Digest) -> Option<Spec> {
    let text = std::fs::read(path_of(folder?, digest)).ok()?;
    let spec: Spec = serde_json::from_slice(&text).ok()?;
    (spec.digest() == *digest).then_some(spec)
}

fn prune(folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    for entry in entries.filter_map(Result::ok) {
        let age = entry
            .metadata()
            .and_then(|metadata| metadata.modified())
            .ok()
            .and_then(|at| at.elapsed().ok());
        if age.is_some_and(|age| age > KEPT_FOR) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
