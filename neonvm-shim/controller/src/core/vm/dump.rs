//! State of a VM for `/debug/state`. No decision reads it.

use protocol::time::Timestamp;
use protocol::units::Resources;
use protocol::vm::VmPhase;
use serde::Serialize;

use super::state::{Link, VmCore};
use crate::core::backoff::{Backoff, RestartBackoff};
use crate::core::certificate::state::CertificateDump;
use crate::core::head_start::HeadStart;
use crate::core::kind::{Kind, Peer};
use crate::core::problem::Problem;

/// A VM as its core sees it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Dump {
    uid: String,
    resource_version: String,
    phase: VmPhase,
    pod: String,
    known_pods: Vec<String>,
    wanted: Option<Resources>,
    revision: Option<i64>,
    current_revision: Option<i64>,
    runner: Link,
    under_way: Vec<(Peer, Kind)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate: Option<CertificateDump>,
    retries: Backoff<Kind>,
    restarts: RestartBackoff,
    head_start: HeadStart,
    problems: Vec<Problem>,
    look_again_at: Option<Timestamp>,
}

impl VmCore {
    /// Copy of the core's state for `/debug/state`.
    #[must_use]
    pub fn snapshot(&self) -> Dump {
        let vm = self.vm.as_ref();
        let status = vm.and_then(|vm| vm.status.clone()).unwrap_or_default();
        let target = vm.and_then(|vm| vm.spec.target_revision);
        Dump {
            uid: vm.map(|vm| vm.metadata.uid.clone()).unwrap_or_default(),
            resource_version: vm
                .map(|vm| vm.metadata.resource_version.clone())
                .unwrap_or_default(),
            phase: status.phase,
            pod: status.pod_name,
            known_pods: self.pods.keys().cloned().collect(),
            wanted: vm.map(|vm| vm.spec.guest.in_use()),
            revision: target.map(|target| target.revision.value),
            current_revision: status
                .current_revision
                .map(|current| current.revision.value),
            runner: self.link.clone(),
            under_way: self
                .busy
                .iter()
                .map(|(peer, action)| (*peer, action.kind()))
                .collect(),
            certificate: self.certificate.dump(),
            retries: self.backoff.clone(),
            restarts: self.restarts,
            head_start: self.head_start,
            problems: self.problems.clone(),
            look_again_at: self.wake_at,
        }
    }
}
