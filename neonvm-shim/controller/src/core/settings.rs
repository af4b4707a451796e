//! The operator's choices for pods and phases.

use protocol::disk_cache::DiskCache;
use protocol::runner::GUEST_NETWORKS;
use protocol::time::Span;
use protocol::vm::CpuScalingMode;
use serde::Serialize;

use super::overlay::Overlay;

/// Bytes a slot size must be a multiple of, again checked before a pod is made
/// (docs/compatibility/neonvm.md §1.3).
pub const SLOT_ALIGNMENT_BYTES: u64 = protocol::vm::MEMORY_BLOCK_BYTES;

/// A resize that takes no longer is written once, at its end. Each write costs CPU time that the
/// guest needs for the resize. This is long enough for a gibibyte to come online on a busy machine,
/// and short enough that the status shows longer resizes while they run.
const QUICK: Span = Span::from_millis(250);

/// How the two terms of ours join the node affinity of a VM's spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AffinityStyle {
    /// One more term beside the user's. Terms are OR-ed by Kubernetes, so a user's own term is
    /// weakened; kept for clusters that relied on it.
    Appended,
    /// Into each of the user's terms, so that both hold.
    Joined,
}

/// How a guest's first device is connected to its pod, by a runner of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum GuestNetwork {
    /// A bridge in the pod. The node's kernel translates addresses, and needs nf_tables for it.
    Bridge,
    /// QEMU's user network: TCP and UDP only, without a bridge.
    User,
}

impl GuestNetwork {
    /// Value of the runner's environment variable.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        let [bridge, user] = GUEST_NETWORKS;
        match self {
            Self::Bridge => bridge,
            Self::User => user,
        }
    }
}

/// Namespace and name of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SecretName {
    /// The controller needs rights on secrets there.
    pub namespace: String,
    /// Agents mount the secret by this name.
    pub name: String,
}

impl std::str::FromStr for SecretName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, name))
                if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
            {
                Ok(Self {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                })
            }
            _ => Err("must be NAMESPACE/NAME"),
        }
    }
}

/// Settings of the controller's core. Two presets: [`Settings::one_machine`] and
/// [`Settings::cluster`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// Written into VMs that name no mode.
    pub default_cpu_scaling_mode: CpuScalingMode,
    /// Image of the runner container, unless `spec.runnerImage` says otherwise.
    pub runner_image: String,
    /// Images and repositories of runners that take orders in the clear, if `spec.runnerImage`
    /// names them. All other runners that the controller starts are reached by TLS alone.
    pub plain_runner_images: Vec<String>,
    /// `-memhp-auto-movable-ratio` of runners.
    pub memhp_auto_movable_ratio: String,
    /// `-qemu-disk-cache-settings` of runners.
    pub qemu_disk_cache: DiskCache,
    /// Passes `-skip-cgroup-management` and leaves the cgroup mount out.
    pub skip_cgroup_management: bool,
    /// CPU time of the node that QEMU may use, in per cent of the VM's milli-CPU. Our runner
    /// enforces it in the pod's own cgroup. `None` sets no variable for the runner.
    pub cpu_quota_percent: Option<u32>,
    /// How guests are connected to their pods; `None` sets no variable for the runner.
    pub guest_network: Option<GuestNetwork>,
    /// Runner pods have no privileges, so that namespaces of Pod Security level `baseline` admit
    /// them: QEMU's own network, and a limit of the container in place of the quota. A VM's core
    /// sets it when the API server refuses the pod for its privileges.
    pub unprivileged_pods: bool,
    /// Passes `-use-virtio-console` to runners.
    pub use_virtio_console: bool,
    /// A VM is restarted only once its old pod is gone.
    pub at_most_one_pod: bool,
    /// Runner pods request the device plugin's `neonvm/vhost-net` and `neonvm/kvm`.
    pub device_limits: bool,
    /// Runner pods request the sizes of their VMs, and are resized in place with them.
    pub true_requests: bool,
    /// Seconds before the first readiness probe: a floor of the boot time seen.
    pub readiness_initial_delay_s: u32,
    /// API servers keep the field managers of VMs and runner pods, though no client applies parts
    /// of them.
    pub keep_field_owners: bool,
    /// A resize that is quicker than this is not shown as phase Scaling, and a quick shrink is not
    /// shown on the pod before its end.
    pub quick: Span,
    /// How node affinity is joined.
    pub affinity: AffinityStyle,
    /// Scheduler of VMs that name none; `None` leaves the choice to the cluster.
    pub default_scheduler: Option<String>,
    /// The addresses of the overlay; `None`: VMs get none.
    pub overlay: Option<Overlay>,
    /// `namespace/name` of the network attachment of VMs with `extraNetwork.enable`.
    pub network_attachment: Option<String>,
    /// Runners are reached at their pods' addresses, not by sockets of this machine.
    pub runners_at_pods: bool,
    /// The secret of the key from which the tokens of guests' monitors are derived; `None`: guests
    /// get none.
    pub monitor_key: Option<SecretName>,
    /// Only runners of pods bound to this node are reachable by their control socket; `None`: all
    /// are.
    pub local_node: Option<String>,
}

impl Settings {
    /// For `bellows up`: runners are processes beside us, no device plugin, no probe delay, one pod
    /// at a time, and no scheduler but ours, so that a VM that names none is not left waiting for
    /// one.
    #[must_use]
    pub fn one_machine() -> Self {
        Self {
            default_cpu_scaling_mode: CpuScalingMode::QmpScaling,
            runner_image: "bellows/runner".into(),
            plain_runner_images: Vec::new(),
            memhp_auto_movable_ratio: "401".into(),
            qemu_disk_cache: DiskCache::OURS,
            skip_cgroup_management: false,
            cpu_quota_percent: None,
            guest_network: None,
            unprivileged_pods: false,
            use_virtio_console: true,
            at_most_one_pod: true,
            device_limits: false,
            true_requests: false,
            readiness_initial_delay_s: 0,
            keep_field_owners: false,
            quick: QUICK,
            affinity: AffinityStyle::Joined,
            default_scheduler: Some("autoscale-scheduler".into()),
            overlay: None,
            network_attachment: None,
            runners_at_pods: false,
            monitor_key: None,
            local_node: None,
        }
    }

    /// For a cluster: the settings of the deployed controller, with a strict quota of CPU time.
    #[must_use]
    pub fn cluster(runner_image: &str) -> Self {
        Self {
            runner_image: runner_image.into(),
            skip_cgroup_management: true,
            cpu_quota_percent: Some(100),
            guest_network: Some(GuestNetwork::Bridge),
            at_most_one_pod: false,
            device_limits: true,
            readiness_initial_delay_s: 5,
            affinity: AffinityStyle::Appended,
            default_scheduler: None,
            runners_at_pods: true,
            ..Self::one_machine()
        }
    }
    /// These settings, for pods without privileges.
    #[must_use]
    pub fn unprivileged(&self) -> Self {
        Self {
            unprivileged_pods: true,
            guest_network: self.guest_network.map(|_| GuestNetwork::User),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clusters rely on it. On one machine a term of the author's must hold.
    #[test]
    fn affinity_of_a_vm_is_weakened_only_in_a_cluster() {
        let cluster = Settings::cluster("r:1");
        assert_eq!(cluster.affinity, AffinityStyle::Appended);
        assert_eq!(cluster.unprivileged().affinity, AffinityStyle::Appended);
        assert_eq!(Settings::one_machine().affinity, AffinityStyle::Joined);
    }
}
