//! What a VM's task and its link get of the VM object.

use std::sync::Arc;

use protocol::time::Timestamp;

use super::policy::VmChoice;
use super::vm_metrics::VmLabels;
use crate::core::VmUpdate;

/// A state of the VM object in the form of the core.
#[derive(Debug, Clone)]
pub(super) struct VmFeed {
    pub update: VmUpdate,
    pub endpoint_id: String,
    pub labels: VmLabels,
    /// Value of the annotation [`protocol::fleet::KEY_SCHEDULE`].
    pub schedule: Option<Arc<str>>,
    /// Choice of a policy; `None` where policies are off.
    pub choice: Option<Arc<VmChoice>>,
    /// When the watch delivered it.
    pub arrived: Timestamp,
}
