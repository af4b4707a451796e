//! Kinds of a migration's actions, and the peers that carry them out.

use std::fmt;

use serde::Serialize;

/// Peer that carries out an action. At most one action per peer is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Peer {
    /// The Kubernetes API server.
    Api,
    /// The runner the guest leaves.
    Source,
    /// The runner it goes to.
    Target,
}

/// Kind of an action. Errors and back-off are kept by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the variants of `Action`, one to one")]
pub enum Kind {
    PatchMigration,
    WriteMigration,
    WriteVm,
    ReadVm,
    ReadMigration,
    ReadPod,
    CreatePod,
    PatchPod,
    DeletePod,
    Send,
    Recall,
    Quit,
    Receive,
    Begin,
}

impl Kind {
    /// Peer that carries out the action. Each peer has at most one action under way.
    #[must_use]
    pub fn peer(self) -> Peer {
        match self {
            Self::Send | Self::Recall | Self::Quit => Peer::Source,
            Self::Receive | Self::Begin => Peer::Target,
            _ => Peer::Api,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PatchMigration => "patch the migration object",
            Self::WriteMigration => "write the migration's status",
            Self::WriteVm => "write the VM's status",
            Self::ReadVm => "read the VM object",
            Self::ReadMigration => "read the migration object",
            Self::ReadPod => "read a pod",
            Self::CreatePod => "create the target pod",
            Self::PatchPod => "patch a pod's owners, labels and annotations",
            Self::DeletePod => "delete a pod",
            Self::Send => "send the guest",
            Self::Recall => "recall the guest",
            Self::Quit => "end the QEMU of the source",
            Self::Receive => "prepare the target for the guest",
            Self::Begin => "start the guest at the target",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_go_to_the_runners_and_all_else_to_the_api_server() {
        for (peer, kinds) in [
            (Peer::Source, vec![Kind::Send, Kind::Recall, Kind::Quit]),
            (Peer::Target, vec![Kind::Receive, Kind::Begin]),
            (
                Peer::Api,
                vec![Kind::PatchMigration, Kind::ReadPod, Kind::DeletePod],
            ),
        ] {
            for kind in kinds {
                assert_eq!(kind.peer(), peer, "{kind}");
            }
        }
    }
}
