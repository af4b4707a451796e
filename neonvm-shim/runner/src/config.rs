//! `config.json` of a runner's directory: everything a runner needs to know, written by who starts
//! it.

mod claims;
mod walls;

use std::net::Ipv4Addr;
use std::path::PathBuf;

use protocol::disk_cache::DiskCache;
use protocol::vm::VmSpec;
use serde::{Deserialize, Serialize};

pub use claims::Claims;
pub use walls::Walls;

/// Version of the file's format.
pub const CONFIG_FORMAT: u32 = 1;

/// What a runner runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunnerConfig {
    /// Version of the file's format. Whoever writes the file sets [`CONFIG_FORMAT`].
    pub format: u32,
    /// Namespace of VM and pod.
    pub namespace: String,
    /// The VM's name.
    pub vm: String,
    /// The pod's name.
    pub pod: String,
    /// The VM's spec when the pod was made. `use` in it is the size to boot with.
    pub spec: VmSpec,
    /// The VM's own address; ports of the guest appear here.
    pub pod_ip: Ipv4Addr,
    /// Programs that the runner executes for the VM.
    pub programs: Programs,
    /// What to boot.
    pub image: BootImage,
    /// Accelerator to run the VM with; a spec without `enableAcceleration` takes TCG instead. The
    /// runner resolves `auto` when it starts QEMU.
    pub accel: AccelChoice,
    /// How QEMU caches what the guest writes.
    #[serde(default, skip_serializing_if = "is_ours")]
    pub disk_cache: DiskCache,
    /// Absolute path of a root disk that stays when this directory goes; `None`: `root.qcow2` in
    /// this directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_overlay: Option<PathBuf>,
    /// Where the VM's claims are, of a VM with disks on claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims: Option<Claims>,
    /// What this machine learned about KVM and about guest kernels is kept in this directory.
    pub knowledge_dir: PathBuf,
    /// CPU quota of QEMU in per cent of the VM's milli-CPU: 100 is strict, 400 is what NeonVM's
    /// runner uses.
    pub cpu_quota_percent: u32,
    /// Cgroup under which QEMU gets one of its own; `None` leaves QEMU where the runner is, without
    /// a quota.
    pub cgroup_parent: Option<String>,
    /// QEMU gets a cgroup in the one the runner is in, as its container shows it; `cgroup_parent`
    /// is not looked at then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cgroup_in_own: bool,
    /// What the guest writes to its console and its log goes to our standard output, too, which is
    /// the log of a pod.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tells_guest: bool,
    /// Number of the guest's vsock device; none without.
    #[serde(default)]
    pub vsock_cid: Option<u32>,
    /// The guest's second interface, in the overlay network; none without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlay: Option<OverlayNic>,
    /// How the guest's first device is connected.
    #[serde(default, skip_serializing_if = "GuestNetwork::is_default")]
    pub network: GuestNetwork,
    /// How QEMU is kept from this machine. Without it QEMU has the runner's user and namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walls: Option<Walls>,
    /// A line of `authorized_keys` to be let into the guest by ssh.
    pub ssh_public_key: Option<String>,
    /// Where the pod's volumes are, each where it is mounted in the guest; `mounts` in the runner's
    /// directory unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mounts: Option<PathBuf>,
    /// File with the token that whoever gives orders at the pod's address must show. Without one no
    /// orders are taken there but those that NeonVM's runner takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_token: Option<PathBuf>,
    /// Directory with the key ([`protocol::migration::PSK_FILE`]) that all runners of the VM have:
    /// what moves the guest is encrypted by it. Without one, or with a peer without one, it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_keys: Option<PathBuf>,
    /// `spec.initScript` is run here before anything else. Only in a pod's container: elsewhere it
    /// would be run as who runs the node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub runs_init_script: bool,
    /// Boot nothing: wait for a guest that runs elsewhere.
    #[serde(default)]
    pub receive: bool,
}

/// For the file alone: older runners do not know the member.
fn is_ours(cache: &DiskCache) -> bool {
    *cache == DiskCache::OURS
}

/// How a guest's first device is connected to its pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestNetwork {
    /// A guest that boots here is connected by a bridge, else by QEMU's user network. One that
    /// comes is connected as where it booted.
    #[serde(default)]
    pub bridged: bool,
    /// The kernel's own side of a virtio device may be had, which the guest's packets take without
    /// QEMU.
    #[serde(default)]
    pub vhost: bool,
    /// Who knows names, for a guest behind a bridge.
    #[serde(default)]
    pub resolver: Resolver,
    /// The file that the guest's name is told in.
    #[serde(default)]
    pub hosts: Option<PathBuf>,
}

impl GuestNetwork {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What `resolv.conf` says.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resolver {
    /// Servers, the first first.
    pub servers: Vec<Ipv4Addr>,
    /// Domains that names are looked for in.
    pub search: Vec<String>,
}

/// The guest's place in the overlay network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverlayNic {
    /// The interface here that is in it, as `net1`.
    pub interface: String,
    /// The guest's address there.
    pub address: Ipv4Addr,
    /// Network mask of that address, from the VM's status.
    pub mask: Ipv4Addr,
}

/// Programs a runner executes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Programs {
    /// Path of `qemu-system-x86_64`, which runs the guest.
    pub qemu_system: PathBuf,
    /// Path of `qemu-img`, which makes and grows disks.
    pub qemu_img: PathBuf,
}

/// A bootable image, resolved to files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootImage {
    /// The guest's kernel, in bzImage format.
    pub kernel: PathBuf,
    /// Its release, if known: what is learned about it is remembered under this name.
    pub kernel_version: String,
    /// Initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// Root disk; never written.
    pub root_disk: PathBuf,
    /// `raw` or `qcow2`.
    pub root_disk_format: String,
    /// Its size in bytes.
    pub root_disk_bytes: u64,
    /// Kernel command line.
    pub cmdline: String,
    /// What to append to it under TCG.
    pub cmdline_tcg: String,
    /// TCP ports somebody listens on.
    pub ports: Vec<u16>,
}

/// Which accelerator to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum AccelChoice {
    /// KVM if a probe guest boots with it, else TCG.
    #[default]
    Auto,
    /// KVM, whatever the probe says.
    Kvm,
    /// TCG, without a probe.
    Tcg,
}

/// The accelerator in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accel {
    /// The processor's own virtualisation.
    Kvm,
    /// Translation in software, one thread per vCPU.
    Tcg,
}

impl Accel {
    /// `"kvm"` or `"tcg"`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

impl RunnerConfig {
    /// How QEMU caches the root disk. On a disk that stays, a guest's flush reaches the host's
    /// disk.
    #[must_use]
    pub fn root_disk_cache(&self) -> DiskCache {
        DiskCache {
            no_flush: self.disk_cache.no_flush && self.root_overlay.is_none(),
            ..self.disk_cache
        }
    }

    /// Whether the root disk lies on a claim.
    #[must_use]
    pub fn root_is_claimed(&self) -> bool {
        let claim = &self.spec.guest.root_disk.persistent_volume_claim;
        self.claims.is_some() && claim.is_some()
    }

    /// `namespace/name` of the VM.
    #[must_use]
    pub fn vm_key(&self) -> String {
        format!("{}/{}", self.namespace, self.vm)
    }
}
