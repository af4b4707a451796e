//! The program's options. Names that the deployed controller has mean the same here.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use leader_election::LeaseName;
use leader_election::core::elect::{ElectRule, MIN_LEASE};
use protocol::disk_cache::DiskCache;
use protocol::time::{Span, WallTime};
use protocol::vm::CpuScalingMode;

use crate::Settings;
use crate::core::settings::{GuestNetwork, SecretName};

/// The Lease of the deployed controller: on one cluster only one of both kinds works.
pub const LEASE_NAME: &str = "a3b22509.neon.tech";
/// Longest Lease that is taken, seconds.
const MAX_LEASE_SECONDS: u64 = 3600;

/// Controller of VirtualMachine objects. Finds its API server by KUBECONFIG or, in a pod, by its
/// service account.
#[derive(Debug, Parser)]
#[command(name = "neonvm-controller", version = protocol::release::RELEASE)]
pub struct Args {
    /// Directory of the runners' sockets, `vms/<namespace>_<pod>/control.sock`. Unused in a
    /// cluster, where runners are reached at their pods' addresses.
    #[arg(long, default_value = "/var/lib/bellows")]
    pub state_dir: PathBuf,
    /// Address of / (state), /metrics, /healthz, /readyz and /debug/state. Port 0 selects a free
    /// port, which the log prints.
    #[arg(long, default_value = "127.0.0.1:7778")]
    pub listen: SocketAddr,
    /// Address of the admission webhook for VM objects, such as `0.0.0.0:9443` [default: no
    /// webhook]. Its service, its certificate's secret and its configurations have the names of the
    /// deployed controller, in this replica's namespace.
    #[arg(long, value_name = "ADDRESS")]
    pub webhook_listen: Option<SocketAddr>,
    /// VMs whose updates the webhook admits although they break a rule, separated by commas, each
    /// as NAMESPACE/NAME, or NAME in the namespace `default` [default: none]. Each such update gets
    /// a warning and an event SkippedValidation.
    #[arg(long, value_delimiter = ',', value_name = "VMS")]
    pub skip_update_validation_for: Vec<String>,
    /// Node whose runners this controller reaches [default: all nodes].
    #[arg(long)]
    pub node_name: Option<String>,
    /// CPU scaling mode of VMs without one in their spec: `QmpScaling` or `SysfsScaling`.
    #[arg(long, default_value = "QmpScaling", value_parser = mode)]
    pub default_cpu_scaling_mode: CpuScalingMode,
    /// Image of runner pods. It selects the settings for a cluster; without it, the settings are
    /// for one machine.
    #[arg(long, env = "VM_RUNNER_IMAGE")]
    pub runner_image: Option<String>,
    /// Runner images of `spec.runnerImage` that take orders in the clear, separated by commas, each
    /// as IMAGE or REPOSITORY [default: none]. All other runners are reached by TLS alone.
    #[arg(long, value_delimiter = ',', value_name = "IMAGES")]
    pub plain_runner_images: Vec<String>,
    /// Runner pods request no devices of a device plugin. Guests then run without KVM, unless
    /// something else gives the pods its device.
    #[arg(long)]
    pub no_device_limits: bool,
    /// Whether runner pods request the sizes of their VMs, divided by the over-commit factors, and
    /// are resized in place with them (Kubernetes 1.33 and later). Cluster autoscalers, other
    /// schedulers and quotas then count these sizes.
    #[arg(long, value_enum, default_value_t = TrueRequests::Off)]
    pub true_requests: TrueRequests,
    /// Keeps `managedFields` of VMs and runner pods. Without the option the controller clears them
    /// where no client uses server-side apply, because they cost nearly half of each write.
    #[arg(long)]
    pub keep_field_owners: bool,
    /// Runners write to no cgroup, so that guests have no quota of CPU time. Overrides
    /// `--runner-cpu-quota-percent`.
    #[arg(long)]
    pub disable_runner_cgroup: bool,
    /// Quota of CPU time of the guest of a runner pod, in per cent of the VM's CPUs; 0 means no
    /// quota. Applies in a cluster only.
    #[arg(long, default_value_t = 100, value_name = "PERCENT")]
    pub runner_cpu_quota_percent: u32,
    /// Connection of guests to the network of their runner pods. Guests that already run keep
    /// theirs.
    #[arg(long, value_enum, default_value_t = GuestNetwork::Bridge)]
    pub guest_network: GuestNetwork,
    /// Restarts a VM only after its old pod is gone. Always so on one machine.
    #[arg(long)]
    pub at_most_one_pod: bool,
    /// QEMU's cache of guest disks: `cache.writeback=`, `cache.direct=` and `cache.no-flush=`, each
    /// with on or off, or `cache=` with writeback, none, writethrough, directsync or unsafe. Guests
    /// that already run keep theirs.
    #[arg(long, default_value_t = DiskCache::OURS, value_name = "OPTIONS")]
    pub qemu_disk_cache_settings: DiskCache,
    /// Ratio of movable to kernel memory in guests, in per cent, the kernel parameter
    /// `memory_hotplug.auto_movable_ratio` [default: 401].
    #[arg(long)]
    pub memhp_auto_movable_ratio: Option<String>,
    /// Secret of the key from which the tokens of guests' monitors are derived [default: no
    /// tokens]. The controller creates a missing secret, and agents mount it. Without tokens a
    /// monitor accepts any agent.
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub monitor_key_secret: Option<SecretName>,
    /// Acts only while this replica holds a Lease. Several replicas need it.
    #[arg(long)]
    pub leader_elect: bool,
    /// Time from a leader's last renewal until another replica may replace it, such as `15s` or
    /// `1m`, from 4s to 3600s. The leader stops acting after three quarters of it, and tries to
    /// renew eight times in it.
    #[arg(long, default_value = "15s", value_parser = lease_duration, value_name = "DURATION")]
    pub leader_election_lease_duration: Span,
    /// Name of the network attachment whose configuration lists the overlay's address ranges
    /// [default: no overlay]. VMs with `extraNetwork` get one address each.
    #[arg(long, env = "NAD_IPAM_NAME", requires = "nad_ipam_namespace")]
    pub nad_ipam_name: Option<String>,
    /// Namespace of that network attachment and of the IPPools. Without it the overlay is off.
    #[arg(long, env = "NAD_IPAM_NAMESPACE")]
    pub nad_ipam_namespace: Option<String>,
    /// Name of the network attachment of runner pods whose VMs have `extraNetwork` [default: none].
    #[arg(long, env = "NAD_RUNNER_NAME", requires = "nad_runner_namespace")]
    pub nad_runner_name: Option<String>,
    /// Namespace of the network attachment of runner pods.
    #[arg(long, env = "NAD_RUNNER_NAMESPACE")]
    pub nad_runner_namespace: Option<String>,
    /// Name of the Lease.
    #[arg(long, default_value = LEASE_NAME)]
    pub lease_name: String,
    /// Namespace of the Lease [default: that of the service account or of the kubeconfig].
    #[arg(long)]
    pub lease_namespace: Option<String>,
}

/// When runner pods request what their VMs have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum TrueRequests {
    /// Never, as deployed.
    Off,
    /// Always, even if the API server cannot resize pods.
    On,
    /// If the API server can resize pods. The controller checks it once, at its start.
    Auto,
}

fn mode(text: &str) -> Result<CpuScalingMode, String> {
    serde_json::from_value(text.into()).map_err(|_| "QmpScaling or SysfsScaling".into())
}

/// Seconds and minutes as Go writes them.
fn lease_duration(text: &str) -> Result<Span, String> {
    let (number, unit) = match text.strip_suffix('m') {
        Some(minutes) => (minutes, 60),
        None => (text.strip_suffix('s').unwrap_or(text), 1),
    };
    let seconds = number.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    let least = MIN_LEASE.0 / 1_000_000;
    let seconds = seconds.filter(|seconds| (least..=MAX_LEASE_SECONDS).contains(seconds));
    let rule = || format!("must be from {least}s to {MAX_LEASE_SECONDS}s, as in 15s or 1m");
    seconds.map(Span::from_secs).ok_or_else(rule)
}

impl Args {
    /// Settings of the controller that the options determine. The API server determines the others.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let mut settings = match &self.runner_image {
            Some(image) => Settings::cluster(image),
            None => Settings::one_machine(),
        };
        settings.default_cpu_scaling_mode = self.default_cpu_scaling_mode;
        settings.local_node.clone_from(&self.node_name);
        settings.skip_cgroup_management |= self.disable_runner_cgroup;
        settings.cpu_quota_percent = settings
            .cpu_quota_percent
            .filter(|_| !self.disable_runner_cgroup)
            .map(|_| self.runner_cpu_quota_percent);
        settings.guest_network = settings.guest_network.map(|_| self.guest_network);
        settings.device_limits &= !self.no_device_limits;
        settings.true_requests = self.true_requests == TrueRequests::On;
        settings.keep_field_owners = self.keep_field_owners;
        settings
            .plain_runner_images
            .clone_from(&self.plain_runner_images);
        settings.at_most_one_pod |= self.at_most_one_pod;
        settings.qemu_disk_cache = self.qemu_disk_cache_settings;
        if let Some(ratio) = &self.memhp_auto_movable_ratio {
            settings.memhp_auto_movable_ratio.clone_from(ratio);
        }
        settings.monitor_key.clone_from(&self.monitor_key_secret);
        let runner = self.nad_runner_namespace.as_ref();
        settings.network_attachment = runner
            .zip(self.nad_runner_name.as_ref())
            .map(|(namespace, name)| format!("{namespace}/{name}"));
        settings
    }

    /// Namespace and name of the network attachment with the overlay's addresses.
    #[must_use]
    pub fn overlay(&self) -> Option<(&str, &str)> {
        let namespace = self.nad_ipam_namespace.as_deref()?;
        Some((namespace, self.nad_ipam_name.as_deref()?))
    }

    /// The Lease and the rule of its election, if there is one. `settle` is longer than a call to
    /// the API takes.
    ///
    /// # Errors
    /// When this machine's name cannot be read.
    pub fn election(
        &self,
        namespace: &str,
        settle: Span,
        now: WallTime,
    ) -> std::io::Result<Option<(LeaseName, ElectRule)>> {
        if !self.leader_elect {
            return Ok(None);
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
        let namespace = self.lease_namespace.as_deref().unwrap_or(namespace);
        let lease = LeaseName {
            namespace: namespace.to_owned(),
            name: self.lease_name.clone(),
        };
        let rule = ElectRule {
            // A later process of the same host gets another identity, because writes of the earlier
            // one may still be in flight.
            identity: format!("{}_{}-{:x}", host.trim(), std::process::id(), now.0),
            duration: self.leader_election_lease_duration,
            settle,
        };
        Ok(Some((lease, rule)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(options: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from([&["neonvm-controller"], options].concat())
    }

    #[test]
    fn election_is_held_only_with_leader_elect() {
        let election = |options: &[&str]| {
            let args = args(options).expect("parses");
            args.election("ns", Span::from_secs(2), WallTime(1))
                .expect("a host")
        };
        assert_eq!(election(&[]), None);
        let (lease, rule) = election(&["--leader-elect"]).expect("one");
        let expected = LeaseName {
            namespace: "ns".into(),
            name: "a3b22509.neon.tech".into(),
        };
        assert_eq!((lease, rule.duration), (expected, Span::from_secs(15)));
        let options = [
            "--leader-elect",
            "--leader-election-lease-duration=1m",
            "--lease-namespace=other",
        ];
        let (lease, rule) = election(&options).expect("one");
        assert_eq!(lease.namespace, "other");
        assert_eq!(rule.duration, Span::from_secs(60));
    }

    /// Requirement: N20
    #[test]
    fn cluster_runner_has_quota_unless_cgroups_are_disabled() {
        let percent =
            |options: &[&str]| args(options).expect("parses").settings().cpu_quota_percent;
        assert_eq!(percent(&[]), None);
        let image = "--runner-image=r:1";
        assert_eq!(percent(&[image]), Some(100));
        let option = "--runner-cpu-quota-percent=400";
        assert_eq!(percent(&[image, option]), Some(400));
        assert_eq!(percent(&[image, option, "--disable-runner-cgroup"]), None);
    }

    #[test]
    fn unknown_disk_cache_option_is_refused() {
        let cache = |options: &[&str]| args(options).map(|args| args.settings().qemu_disk_cache);
        assert_eq!(cache(&[]).expect("parses"), DiskCache::OURS);
        let deployed =
            "--qemu-disk-cache-settings=cache.writeback=on,cache.direct=on,cache.no-flush=on";
        assert!(cache(&[deployed]).expect("parses").direct);
        let error = cache(&["--qemu-disk-cache-settings=cache=none,file=x"]).expect_err("refused");
        assert!(
            error.to_string().contains("\"file=x\" is not one of"),
            "{error}"
        );
    }

    #[test]
    fn lease_outside_of_limits_is_refused() {
        for text in ["3s", "2h", "", "s", "-5s", "61m", "1.5s"] {
            let option = format!("--leader-election-lease-duration={text}");
            let error = args(&[&option]).expect_err(text);
            assert!(error.to_string().contains("from 4s to 3600s"), "{error}");
        }
    }
}
