//! State of one VM: the newest known objects, and the actions under way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv4Addr;

use protocol::object::Pod;
use protocol::runner::RunnerState;
use protocol::time::Timestamp;
use protocol::trace::StageRecord;
use protocol::units::Resources;
use protocol::vm::{VirtualMachine, VmPhase};
use serde::Serialize;

use super::claim::MigrationClaim;
use crate::core::action::Action;
use crate::core::backoff::{Backoff, RestartBackoff};
use crate::core::certificate::state::CertificateState;
use crate::core::head_start::HeadStart;
use crate::core::kind::{Kind, Peer};
use crate::core::metadata::PatchOp;
use crate::core::missing_pods::MissingPods;
use crate::core::names::suffix;
use crate::core::observe::{PodRunner, runner_address};
use crate::core::problem::Problem;
use crate::core::settings::Settings;
use crate::core::stages::StageWatch;
use crate::core::vm_event::VmEvent;

/// Notes kept for a shell that does not fetch them; the oldest fall out.
const EVENTS_LIMIT: usize = 64;

/// The runner, as far as known.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "link", rename_all = "snake_case")]
pub(super) enum Link {
    None,
    Silent {
        pod: String,
        since: Timestamp,
        error: String,
    },
    Known {
        pod: String,
        state: Box<RunnerState>,
    },
}

/// State of one VM.
#[derive(Debug, Clone)]
pub struct VmCore {
    pub(super) settings: Settings,
    pub(super) seed: u64,
    pub(super) vm: Option<VirtualMachine>,
    pub(super) pods: BTreeMap<String, Pod>,
    pub(super) absent: Option<String>,
    /// The VM's pod, while it is only known that the watch does not show it.
    pub(super) missing_pods: MissingPods,
    pub(super) link: Link,
    pub(super) busy: BTreeMap<Peer, Action>,
    pub(super) backoff: Backoff<Kind>,
    pub(super) failures: BTreeMap<Kind, Problem>,
    pub(super) restarts: RestartBackoff,
    pub(super) ssh_secret_ready: bool,
    pub(super) runner_secret_ready: bool,
    pub(super) address: Option<(Ipv4Addr, Ipv4Addr)>,
    pub(super) address_released: bool,
    pub(super) certificate: CertificateState,
    pub(super) claim: MigrationClaim,
    pub(super) suffix: String,
    pub(super) progress_at: Timestamp,
    pub(super) resized_at: Timestamp,
    /// When the VM was first seen, if it had a pod of an earlier controller by then.
    pub(super) took_over_at: Option<Timestamp>,
    pub(super) head_start: HeadStart,
    /// Orders to a pod's runner, with their sizes, that are in flight or have an unknown outcome. A
    /// response to a later order, or to the same order sent again, clears them.
    pub(super) ordering: Vec<(String, Resources)>,
    /// Changes of the pod's requests with an unknown outcome. An answer to a later change, or to a
    /// read of the pod, clears them.
    pub(super) resize_unsure: Vec<Vec<PatchOp>>,
    pub(super) scaling_from: Option<Resources>,
    /// Size of the guest when the order under way was decided. A report may arrive before the
    /// order's response.
    pub(super) ordered_from: Option<Resources>,
    pub(super) must_read_vm: bool,
    pub(super) read_at: Timestamp,
    pub(super) reads_due: BTreeSet<Kind>,
    pub(super) wake_at: Option<Timestamp>,
    pub(super) reported: BTreeSet<&'static str>,
    pub(super) problems: Vec<Problem>,
    pub(super) events: VecDeque<VmEvent>,
    pub(super) stages: StageWatch,
}

impl VmCore {
    /// State of a VM of which no object is known. `seed` makes the random part of its pods' names.
    #[must_use]
    pub fn new(settings: Settings, seed: u64) -> Self {
        let mut core = Self {
            settings,
            seed,
            vm: None,
            pods: BTreeMap::new(),
            absent: None,
            missing_pods: MissingPods::default(),
            link: Link::None,
            busy: BTreeMap::new(),
            backoff: Backoff::default(),
            failures: BTreeMap::new(),
            restarts: RestartBackoff::default(),
            ssh_secret_ready: false,
            runner_secret_ready: false,
            address: None,
            address_released: false,
            certificate: CertificateState::default(),
            claim: MigrationClaim::default(),
            suffix: String::new(),
            progress_at: Timestamp(0),
            resized_at: Timestamp(0),
            took_over_at: None,
            head_start: HeadStart::default(),
            ordering: Vec::new(),
            resize_unsure: Vec::new(),
            scaling_from: None,
            ordered_from: None,
            must_read_vm: false,
            read_at: Timestamp(0),
            reads_due: BTreeSet::new(),
            wake_at: None,
            reported: BTreeSet::new(),
            problems: Vec::new(),
            events: VecDeque::new(),
            stages: StageWatch::default(),
        };
        core.next_suffix();
        core
    }

    /// The VM as last seen.
    #[must_use]
    pub fn vm(&self) -> Option<&VirtualMachine> {
        self.vm.as_ref()
    }

    /// The pod to whose runner the shell should hold a link, if any.
    #[must_use]
    pub fn link_target(&self) -> Option<&str> {
        let status = self.vm.as_ref()?.status.as_ref()?;
        let pod = self.pods.get(&status.pod_name)?;
        let node = pod.spec.node_name.as_str();
        let here = self
            .settings
            .local_node
            .as_deref()
            .is_none_or(|local| local == node);
        let lives = matches!(status.phase, VmPhase::Pending) || status.phase.is_alive();
        let reachable = !self.settings.runners_at_pods || self.link_address().is_some();
        (lives && here && reachable && !node.is_empty() && !pod.is_terminal())
            .then_some(status.pod_name.as_str())
    }

    /// Address of the runner of that pod; `None` if it has a socket on this machine, or no address
    /// so far.
    #[must_use]
    pub fn link_address(&self) -> Option<PodRunner> {
        if !self.settings.runners_at_pods {
            return None;
        }
        let vm = self.vm.as_ref()?;
        let pod = self.pods.get(&vm.status.as_ref()?.pod_name)?;
        runner_address(vm, pod)
    }

    /// The next event to publish.
    pub fn poll_event(&mut self) -> Option<VmEvent> {
        self.events.pop_front()
    }

    /// Removes and returns the finished stages of resizes.
    pub fn take_stages(&mut self) -> Vec<StageRecord> {
        self.stages.take()
    }

    pub(super) fn push_event(&mut self, event: VmEvent) {
        if self.events.len() == EVENTS_LIMIT {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    pub(super) fn next_suffix(&mut self) {
        self.suffix = suffix(&mut self.seed);
    }

    /// Whether `status.podName` is this pod.
    pub(super) fn is_its_pod(&self, name: &str) -> bool {
        let status = self.vm.as_ref().and_then(|vm| vm.status.as_ref());
        status.is_some_and(|status| status.pod_name == name)
    }
}
