//! Machines without a cluster that know each other.

use askama::Template;

use crate::commands::peers::{PeerRow, summary};
use crate::web::frame::Frame;
use crate::web::snapshot::Snapshot;

#[derive(Debug, Template)]
#[template(path = "machines.html", whitespace = "minimize")]
pub(crate) struct MachinesPage {
    pub(super) frame: Frame,
    /// What this machine does. `None` without others.
    role: Option<String>,
    machines: Vec<PeerRow>,
    /// Members that are wanted of each set over all machines.
    wanted: Vec<(String, String)>,
}

impl MachinesPage {
    pub(crate) fn new(frame: Frame, state: &Snapshot) -> Self {
        let wanted = state.peers["wanted"].as_object().into_iter().flatten();
        Self {
            role: state.peers.is_object().then(|| summary(&state.peers)),
            machines: PeerRow::all(&state.peers),
            wanted: wanted
                .map(|(set, count)| (set.clone(), count.to_string()))
                .collect(),
            frame,
        }
    }
}
