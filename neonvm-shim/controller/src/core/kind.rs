//! Kinds of actions, and the peers that carry them out.

use std::fmt;

use serde::Serialize;

/// Peer that carries out an action. At most one action per peer is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Peer {
    /// The Kubernetes API server.
    Api,
    /// The API server's endpoint for a pod's requests. A growth that also waits for the pod's
    /// metadata takes the time of the slower write, not of both.
    Requests,
    /// The runner of the VM.
    Runner,
    /// The API server once more: an issuer may take its time, and nothing else of a VM waits for
    /// that.
    Certificates,
}

/// Kind of an action. Errors, back-off and metrics are kept by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the variants of `Action`, one to one")]
pub enum Kind {
    PatchVm,
    WriteStatus,
    ReadVm,
    ReadPod,
    #[serde(rename = "read_taker")]
    ReadMigration,
    EnsureSshSecret,
    EnsureRunnerSecret,
    CreatePod,
    PatchPodMetadata,
    PatchPodCounted,
    ResizePod,
    DeletePod,
    OrphanPod,
    TakeAddress,
    ReleaseAddress,
    ReadCertificate,
    MakeTlsKey,
    #[serde(rename = "ask_certificate")]
    RequestCertificate,
    AwaitCertificate,
    StoreCertificate,
    WithdrawRequest,
    TidyCertificate,
    PlugAhead,
    SetSize,
}

impl Kind {
    /// Peer that carries out the action. Each peer has at most one action under way.
    #[must_use]
    pub fn peer(self) -> Peer {
        match self {
            Self::PlugAhead | Self::SetSize => Peer::Runner,
            Self::ResizePod => Peer::Requests,
            Self::ReadCertificate
            | Self::MakeTlsKey
            | Self::RequestCertificate
            | Self::AwaitCertificate
            | Self::StoreCertificate
            | Self::WithdrawRequest
            | Self::TidyCertificate => Peer::Certificates,
            _ => Peer::Api,
        }
    }

    /// Whether its VM lacks something as long as it fails. CPUs that do not come ahead of their
    /// order come with it.
    #[must_use]
    pub fn is_needed(self) -> bool {
        self != Self::PlugAhead
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PatchVm => "patch the VM object",
            Self::WriteStatus => "write the status",
            Self::ReadVm => "read the VM object",
            Self::ReadPod => "read the pod",
            Self::ReadMigration => "read the migration",
            Self::EnsureSshSecret => "create the SSH secret",
            Self::EnsureRunnerSecret => "create the runner's secret",
            Self::CreatePod => "create the pod",
            Self::PatchPodMetadata => "copy labels and annotations to the pod",
            Self::PatchPodCounted => "record the VM's size on the pod",
            Self::ResizePod => "resize the pod's requests",
            Self::DeletePod => "delete the pod",
            Self::OrphanPod => "release the pod",
            Self::TakeAddress => "take an overlay address",
            Self::ReleaseAddress => "release the overlay address",
            Self::ReadCertificate => "read the certificate",
            Self::MakeTlsKey => "create a key for the certificate",
            Self::RequestCertificate => "request the certificate",
            Self::AwaitCertificate => "wait for the certificate",
            Self::StoreCertificate => "store the certificate",
            Self::WithdrawRequest => "withdraw the request for the certificate",
            Self::TidyCertificate => "delete the certificate's request and temporary key",
            Self::PlugAhead => "plug CPUs ahead of their order",
            Self::SetSize => "set the size",
        })
    }
}
