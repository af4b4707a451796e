//! The facts that a plan for a VM rests on.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use protocol::object::Pod;
use protocol::runner::RunnerState;
use protocol::time::Timestamp;
use protocol::units::Resources;
use protocol::vm::VirtualMachine;

use super::certificate::state::CertificateState;
use super::head_start::HeadStart;
use super::kind::Kind;
use super::metadata::PatchOp;
use super::moment::Moment;
use super::problem::Problem;
use super::settings::Settings;

/// The pod `status.podName`, as far as known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PodView<'a> {
    /// Nothing: it must be read.
    Unknown,
    /// The API server reported that the pod does not exist.
    Absent,
    /// The pod as last seen.
    Present(&'a Pod),
}

/// The runner of that pod, as far as known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RunnerView<'a> {
    /// No link is held: no pod, not bound, or on another machine.
    NoLink,
    /// The connection to the runner is down.
    Silent {
        /// When the link was first found down. It stays the same over all errors that follow.
        since: Timestamp,
        /// Text of the last error on the link.
        error: &'a str,
    },
    /// State that the runner reported last; the link has not failed since.
    Known(&'a RunnerState),
}

/// All that a plan rests on.
#[derive(Debug, Clone, Copy)]
pub struct PlanInput<'a> {
    /// Settings of the controller.
    pub settings: &'a Settings,
    /// The VM as the API server stores it.
    pub vm: &'a VirtualMachine,
    /// View of the pod that `status.podName` names.
    pub pod: PodView<'a>,
    /// Every known pod of the VM, by name.
    pub pods: &'a BTreeMap<String, Pod>,
    /// The runner of the pod `status.podName`.
    pub runner: RunnerView<'a>,
    /// Last failure of each kind of action that keeps failing.
    pub failures: &'a BTreeMap<Kind, Problem>,
    /// Whether the SSH secret is known to exist.
    pub ssh_secret_ready: bool,
    /// Whether the token for the VM's runners is known to exist.
    pub runner_secret_ready: bool,
    /// The address of the overlay that the VM is known to hold, and its mask.
    pub address: Option<(Ipv4Addr, Ipv4Addr)>,
    /// Whether it is known to hold none any more.
    pub address_released: bool,
    /// Objects of the guest's certificate, as last read.
    pub certificate: &'a CertificateState,
    /// When to check that the migration exists which claims the VM; `None` once it is known not to
    /// exist.
    pub check_claim_at: Option<Timestamp>,
    /// Five characters for the next pod name.
    pub suffix: &'a str,
    /// Not before this may a finished VM be started again.
    pub restart_at: Timestamp,
    /// When the size in the spec was first seen.
    pub wanted_since: Timestamp,
    /// When progress of a resize was last written.
    pub progress_at: Timestamp,
    /// When the pod's requests were last changed.
    pub resized_at: Timestamp,
    /// When the VM was first seen, if it had a pod of an earlier controller by then.
    pub took_over_at: Option<Timestamp>,
    /// CPUs that the guest starts ahead of their order.
    pub head_start: &'a HeadStart,
    /// Sizes of orders that are in flight to the runner of a pod, or whose outcome is unknown.
    pub ordering: &'a [(String, Resources)],
    /// Change of the pod's requests that is in flight.
    pub resizing: Option<&'a [PatchOp]>,
    /// Changes of the pod's requests whose outcome is unknown.
    pub resize_unsure: &'a [Vec<PatchOp>],
    /// The size the guest had when the resize under way began.
    pub scaling_from: Option<Resources>,
    /// Time of this plan, monotonic and calendar.
    pub at: Moment,
}
