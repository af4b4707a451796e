//! What the tasks of all VMs share, and the identity of the VM that a task scales.

use std::time::Duration;

use agent_events::{ScalingSender, UsageMeter};
use daemon_kit::StageLog;
use daemon_kit::clock::Clock;
use hyper::header::HeaderValue;
use protocol::permit::NamespacedName;
use tokio::sync::watch;

use super::config::Config;
use super::journal::JournalHandle;
use super::metrics::AgentMetrics;
use super::monitor_key::MonitorKey;
use super::permit::PermitClient;
use super::policy::PolicyRuntime;
use super::schedulers::SchedulerPod;
use super::token::bearer_header;
use super::vm_metrics::VmMetrics;

/// Dependencies that all drivers share.
pub(super) struct Context {
    pub config: Config,
    pub clock: Clock,
    pub kube: kube::Client,
    pub metrics: AgentMetrics,
    pub vm_metrics: VmMetrics,
    pub stages: StageLog,
    pub schedulers: watch::Receiver<Option<SchedulerPod>>,
    pub permit_client: PermitClient,
    /// Key from which the tokens of monitors are derived.
    pub monitor_key: Option<MonitorKey>,
    pub health_check_every: Duration,
    pub journal: Option<JournalHandle>,
    pub usage: UsageMeter,
    pub scaling: ScalingSender,
    /// Absent without the section `policies` of the configuration.
    pub policies: Option<PolicyRuntime>,
}

/// Identity and addresses of the VM that a task scales.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    pub vm: NamespacedName,
    pub pod: NamespacedName,
    /// UID of the VM object.
    pub uid: String,
    pub pod_ip: String,
    pub vsock_cid: Option<u32>,
}

impl Subject {
    /// Value of `Authorization` for the VM's monitor.
    pub(super) fn monitor_token(&self, key: Option<&MonitorKey>) -> Option<HeaderValue> {
        let token = key?
            .current()?
            .token(&self.vm.namespace, &self.vm.name, &self.uid);
        bearer_header(token.as_bytes())
    }
}
