//! Keeps the rules of [`crate::core::host_wall`] in the kernel as long as the node driver runs, and
//! records whether they are there.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::params::{GuestWalls, NodeParams};
use crate::config::Resolver;
use crate::core::host_wall::{removal, rules, table};
use crate::core::users::UserRange;
use crate::shell::nft;
use crate::shell::record::{read_json, write_json};

/// How often the rules are checked: a flush of all rules of the kernel removes these too.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// `host-wall.json`: whether the kernel has the rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostWall {
    /// Why the kernel does not have the rules. `None` if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) missing: Option<String>,
}

impl HostWall {
    /// State that the node driver of a state directory wrote last.
    pub(super) fn of(state_dir: &Path) -> Option<Self> {
        // An unreadable file counts as missing.
        read_json(&path(state_dir)).ok().flatten()
    }
}

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("host-wall.json")
}

/// Name servers of this machine.
pub(super) fn resolver() -> Resolver {
    Resolver::of(&std::fs::read_to_string(RESOLV_CONF).unwrap_or_default())
}

/// Makes the rules and records the result. It runs before the first guest starts.
pub(super) async fn make(params: &NodeParams) {
    let missing = match params.walls {
        GuestWalls::Open => Some("bellows up was started with --guest-network=user".to_owned()),
        GuestWalls::Walled(None) => {
            Some("bellows up does not run as root, so guests have no users of their own".to_owned())
        }
        GuestWalls::Walled(Some(users)) => {
            let servers: Vec<Ipv4Addr> = resolver().servers;
            let made = nft::give(&rules(params.block(), users, &servers)).await;
            made.err().map(|error| daemon_kit::chain(&error))
        }
    };
    match &missing {
        None => info!(
            table = table(params.block()),
            "wall between guests and this machine made"
        ),
        Some(why) => warn!(
            why,
            "the kernel rejects the host wall: guests' processes reach this machine's addresses"
        ),
    }
    let path = path(&params.state_dir);
    if let Err(error) = write_json(&path, &HostWall { missing }) {
        warn!(
            error = daemon_kit::chain(&error),
            "failed to record the state of the host wall"
        );
    }
}

/// Why this kernel rejects such rules; `None` if it accepts them.
pub async fn rules_refused() -> Option<String> {
    let checked = nft::check(&rules(0, UserRange::of_block(0), &[])).await;
    checked.err().map(|error| daemon_kit::chain(&error))
}

/// Restores missing rules, until cancelled.
pub(super) async fn keep(params: NodeParams, cancel: CancellationToken) {
    if !matches!(params.walls, GuestWalls::Walled(Some(_))) {
        return;
    }
    let table = table(params.block());
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
        if nft::has_table(&table).await.is_err() {
            make(&params).await;
        }
    }
}

/// Removes the rules when no guest is left. Without root there are none.
pub async fn remove(block: u8) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    if let Err(error) = nft::give(&removal(block)).await {
        warn!(
            error = daemon_kit::chain(&error),
            "failed to remove the rules of the host wall"
        );
    }
}
