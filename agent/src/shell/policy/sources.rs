//! The sources of policies beside the journal, so that their recorded answers can be asked again.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::known::Policy;

/// Folder below that of the journal.
pub(super) const FOLDER: &str = "policies";
/// Only the agent reads the sources.
const FOLDER_MODE: u32 = 0o700;
/// Age from which a source that is not in use is removed. The journal is kept for a week.
const KEPT_FOR: Duration = Duration::from_secs(14 * 24 * 3600);

/// Writes the source of a policy. A failure is logged only: sizing goes on.
pub(super) fn keep(folder: Option<&Path>, policy: &Arc<Policy>) {
    let Some(folder) = folder.map(Path::to_owned) else {
        return;
    };
    let policy = Arc::clone(policy);
    tokio::task::spawn_blocking(move || {
        let path = folder.join(format!("{}.json", policy.digest));
        let text = serde_json::to_vec(&policy.spec).unwrap_or_default();
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(FOLDER_MODE)
            .create(&folder);
        let written = made.and_then(|()| daemon_kit::durable::replace(&path, &text));
        if let Err(error) = written {
            let path = path.display().to_string();
            tracing::warn!(path, %error, "the source of a policy is not kept");
        }
        prune(&folder);
    });
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
