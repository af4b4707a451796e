//! `bellows journal fetch`: copies the journals of a cluster's agents through forwarded ports.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use clap::Args;
use daemon_kit::durable;
use daemon_kit::journal::served::{JournalFile, JournalFiles, is_name};
use hyper::http::StatusCode;
use serde_json::Value;

use crate::api::Api;
use crate::cluster::{self, AGENT};
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::forward::ForwardError;
use crate::terminal::out;

const PAGE: &str = "/debug/journal";
/// Ending of a packed segment after that of a plain one.
const PACKED: &str = ".zst";
/// Times that the list is read: the writer packs and removes segments meanwhile.
const ROUNDS: usize = 3;

/// Copy the journals of a cluster's agents to this machine.
///
/// DIR/NODE becomes a state directory with the journal of that node. What was copied before is not
/// copied again.
#[derive(Debug, Clone, Args)]
pub(crate) struct FetchArgs {
    /// Where to
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Only the journal of this node's agent [default: of all nodes]
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
}

pub(crate) async fn run(context: &Context, args: &FetchArgs) -> Outcome {
    if !context.asks_cluster() {
        return Err(Fail::usage("only a cluster's journals are fetched")
            .rule("on one machine the journal is in the state directory")
            .fix("name a cluster: kubectl bellows journal fetch DIR, or --kubeconfig FILE"));
    }
    let api = context.api().await?;
    for pod in cluster::ready_agents(&api, args.node.as_deref()).await? {
        let node = cluster::node_of(&pod);
        let state = args.dir.join(node);
        let copied = Copying {
            api: &api,
            pod: &pod,
            folder: state.join("journal"),
        };
        let (files, bytes) = copied.run().await?;
        out(&format!("{node}: {files} files, {bytes} bytes"));
        out(&format!(
            "  look at it: bellows --state-dir {} history VM",
            state.display()
        ));
    }
    Ok(())
}

/// One agent's journal on its way into a folder.
struct Copying<'a> {
    api: &'a Api,
    pod: &'a Value,
    folder: PathBuf,
}

impl Copying<'_> {
    /// Copies what is missing. Returns the number of files and their bytes.
    async fn run(&self) -> Outcome<(usize, u64)> {
        let (mut files, mut bytes) = (0, 0);
        for _ in 0..ROUNDS {
            let mut is_whole = true;
            for file in self.list().await? {
                if is_there(&self.folder, &file) {
                    continue;
                }
                match self.copy(&file).await? {
                    Some(length) => {
                        files += 1;
                        bytes += length;
                    }
                    None => is_whole = false,
                }
            }
            if is_whole {
                break;
            }
        }
        Ok((files, bytes))
    }

    async fn list(&self) -> Outcome<Vec<JournalFile>> {
        let port = AGENT.port(self.pod);
        let answer = match self.api.at_port(port, PAGE).await {
            Err(ForwardError::Status { status, .. }) if status == StatusCode::NOT_FOUND => {
                return Err(no_journal(cluster::node_of(self.pod)));
            }
            answer => answer.map_err(|error| cluster::unasked(port, &error))?,
        };
        let listed: JournalFiles = serde_json::from_value(answer)
            .map_err(|error| Fail::bug(format!("{}: {PAGE}: {error}", port.pod)))?;
        // A name becomes a path on this machine.
        Ok(listed
            .files
            .into_iter()
            .filter(|file| is_name(&file.path))
            .collect())
    }

    /// Copies one file. `None` if the agent has it no more.
    async fn copy(&self, file: &JournalFile) -> Outcome<Option<u64>> {
        let port = AGENT.port(self.pod);
        let page = format!("{PAGE}/{}", file.path);
        let content = match self.api.bytes_at_port(port, &page).await {
            Err(ForwardError::Status { status, .. }) if status == StatusCode::NOT_FOUND => {
                return Ok(None);
            }
            answer => answer.map_err(|error| cluster::unasked(port, &error))?,
        };
        let path = self.folder.join(&file.path);
        store(&path, &content, file.modified).map_err(|error| {
            Fail::missing(format!("{} is not written: {error}", path.display()))
        })?;
        Ok(Some(content.len() as u64))
    }
}

fn store(path: &Path, content: &[u8], modified: u64) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
    }
    durable::replace(path, content)?;
    let modified = UNIX_EPOCH + Duration::from_secs(modified);
    File::options()
        .append(true)
        .open(path)?
        .set_modified(modified)?;
    // A plain segment counts before the packed one, and an older copy of it may be incomplete.
    let plain = path.to_str().and_then(|name| name.strip_suffix(PACKED));
    match plain.map(fs::remove_file) {
        Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether a copy with the length of the file exists.
fn is_there(folder: &Path, file: &JournalFile) -> bool {
    let copied = fs::metadata(folder.join(&file.path));
    copied.is_ok_and(|copied| copied.len() == file.bytes)
}

fn no_journal(node: &str) -> Fail {
    Fail::missing(format!("the agent of node {node} keeps no journal"))
        .rule("agents in clusters keep one unless the chart's agent.journal.enabled is false")
        .fix("see its options: kubectl describe pods -n kube-system -l name=autoscaler-agent")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(path: &str, bytes: u64) -> JournalFile {
        JournalFile {
            path: path.into(),
            bytes,
            modified: 1_700_000_000,
        }
    }

    #[test]
    fn packed_segment_takes_the_place_of_its_plain_copy() {
        let dir = tempfile::tempdir().unwrap();
        let plain = listed("agent/0000000001.bj", 4);
        let packed = listed("agent/0000000001.bj.zst", 2);
        store(&dir.path().join(&plain.path), b"head", plain.modified).unwrap();
        assert!(is_there(dir.path(), &plain));
        assert!(!is_there(dir.path(), &packed));
        store(&dir.path().join(&packed.path), b"zz", packed.modified).unwrap();
        assert!(is_there(dir.path(), &packed));
        assert!(!dir.path().join(&plain.path).exists());
        let modified = fs::metadata(dir.path().join(&packed.path)).unwrap();
        let wanted = UNIX_EPOCH + Duration::from_secs(packed.modified);
        assert_eq!(modified.modified().unwrap(), wanted);
    }

    #[test]
    fn grown_segment_is_copied_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = "agent/0000000001.bj";
        store(&dir.path().join(path), b"head", 1).unwrap();
        assert!(!is_there(dir.path(), &listed(path, 5)));
    }
}
