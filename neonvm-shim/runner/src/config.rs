//! `config.json` of a runner's directory: the complete configuration of one runner. The program
//! that starts the runner writes it.

mod claims;
mod walls;

use std::net::Ipv4Addr;
use std::path::PathBuf;

use protocol::disk_cache::DiskCache;
use protocol::vm::VmSpec;
use serde::{Deserialize, Serialize};

pub use claims::Claims;
pub use walls::Walls;

/// The only format of `config.json` that this version reads.
pub const CONFIG_FORMAT: u32 = 1;

/// Content of `config.json`: one VM and how to run it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunnerConfig {
    /// Version of the file's format. The runner refuses any value but [`CONFIG_FORMAT`].
    pub format: u32,
    /// Namespace of both the VM and its pod.
    pub namespace: String,
    /// Name of the VM, without its namespace.
    pub vm: String,
    /// Name of the pod, without its namespace.
    pub pod: String,
    /// The VM's spec when the pod was made. `use` in it is the size to boot with.
    pub spec: VmSpec,
    /// Address of the pod. Ports of the guest are served here.
    pub pod_ip: Ipv4Addr,
    /// Programs that the runner executes for the VM.
    pub programs: Programs,
    /// Kernel, root disk and ports of the image to boot.
    pub image: BootImage,
    /// Accelerator to run the VM with; a spec without `enableAcceleration` takes TCG instead. The
    /// runner resolves `auto` when it starts QEMU.
    pub accel: AccelChoice,
    /// Cache mode of the guest's disks.
    #[serde(default, skip_serializing_if = "is_ours")]
    pub disk_cache: DiskCache,
    /// Absolute path of a root disk that outlives this directory. `None` is `root.qcow2` in this
    /// directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_overlay: Option<PathBuf>,
    /// The VM's claims, if it has disks on claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims: Option<Claims>,
    /// Directory of what this machine has learned about KVM and about guest kernels.
    pub knowledge_dir: PathBuf,
    /// CPU quota of QEMU in per cent of the VM's milli-CPU: 100 is strict, 400 is what NeonVM's
    /// runner uses.
    pub cpu_quota_percent: u32,
    /// Parent of QEMU's cgroup. `None` leaves QEMU in the runner's cgroup, without a quota.
    pub cgroup_parent: Option<String>,
    /// QEMU's cgroup is made below the runner's own, as its container shows it. `cgroup_parent` is
    /// then ignored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cgroup_in_own: bool,
    /// The runner copies the guest's console and log to its standard output, which is the log of a
    /// pod.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tells_guest: bool,
    /// Context id of the guest's vsock device. `None` is no device.
    #[serde(default)]
    pub vsock_cid: Option<u32>,
    /// The guest's second interface, in the overlay network. `None` is no interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlay: Option<OverlayNic>,
    /// How the guest's first device is connected.
    #[serde(default, skip_serializing_if = "GuestNetwork::is_default")]
    pub network: GuestNetwork,
    /// Isolation of QEMU from this machine. Without it QEMU has the runner's user and namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walls: Option<Walls>,
    /// A line of `authorized_keys` that lets its owner into the guest by ssh.
    pub ssh_public_key: Option<String>,
    /// Directory of the pod's volumes, each at its mount path in the guest. The default is `mounts`
    /// in the runner's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mounts: Option<PathBuf>,
    /// File with the token that orders at the pod's address must carry. Without one the runner
    /// takes only the orders of NeonVM's runner there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_token: Option<PathBuf>,
    /// Directory with the key ([`protocol::migration::PSK_FILE`]) that all runners of the VM share.
    /// It encrypts migrations. Migrations are in the clear if either end has no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_keys: Option<PathBuf>,
    /// Runs `spec.initScript` here before anything else. Only in a pod's container: elsewhere the
    /// script would run as the user of the node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub runs_init_script: bool,
    /// Starts no guest, and waits for an incoming migration.
    #[serde(default)]
    pub receive: bool,
}

/// Older runners reject an unknown member, so the default is not written.
fn is_ours(cache: &DiskCache) -> bool {
    *cache == DiskCache::OURS
}

/// Connection of a guest's first device to its pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestNetwork {
    /// Connects a guest that boots here by a bridge, else by QEMU's user network. A migrated guest
    /// keeps the connection it booted with.
    #[serde(default)]
    pub bridged: bool,
    /// Allows vhost: the kernel serves the virtio device, so packets bypass QEMU.
    #[serde(default)]
    pub vhost: bool,
    /// Name servers of a guest behind a bridge.
    #[serde(default)]
    pub resolver: Resolver,
    /// Hosts file that gets a line with the guest's name.
    #[serde(default)]
    pub hosts: Option<PathBuf>,
}

impl GuestNetwork {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Servers and domains of `resolv.conf`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resolver {
    /// Addresses of name servers, in the order of the file.
    pub servers: Vec<Ipv4Addr>,
    /// Search domains, in the order of the file.
    pub search: Vec<String>,
}

/// The guest's interface in the overlay network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverlayNic {
    /// Interface of the pod that is in the overlay, such as `net1`.
    pub interface: String,
    /// Address of the guest's interface.
    pub address: Ipv4Addr,
    /// Network mask of that address, from the VM's status.
    pub mask: Ipv4Addr,
}

/// Paths of the programs that a runner executes.
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
    /// Kernel release. Empty if unknown: then nothing about the kernel is remembered.
    pub kernel_version: String,
    /// Initial RAM disk of the kernel, if it needs one.
    pub initrd: Option<PathBuf>,
    /// Path of the root disk. It is never written: the guest writes to a layer over it.
    pub root_disk: PathBuf,
    /// Format of the root disk's file: `raw` or `qcow2`.
    pub root_disk_format: String,
    /// Size of the root disk in bytes.
    pub root_disk_bytes: u64,
    /// Kernel command line of the image, without what the runner adds.
    pub cmdline: String,
    /// Words that are appended to `cmdline` under TCG.
    pub cmdline_tcg: String,
    /// TCP ports on which programs of the image listen.
    pub ports: Vec<u16>,
}

/// Accelerator that a configuration asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum AccelChoice {
    /// KVM if a probe guest boots with it, else TCG.
    #[default]
    Auto,
    /// KVM. No probe runs.
    Kvm,
    /// TCG. No probe runs.
    Tcg,
}

/// Accelerator that a QEMU runs with, once [`AccelChoice`] is resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accel {
    /// Hardware virtualisation by the host's kernel.
    Kvm,
    /// Software translation, one thread per vCPU.
    Tcg,
}

impl Accel {
    /// Name in QEMU's options and in logs: `"kvm"` or `"tcg"`.
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

    /// Whether the root disk is on a claim.
    #[must_use]
    pub fn root_is_claimed(&self) -> bool {
        let claim = &self.spec.guest.root_disk.persistent_volume_claim;
        self.claims.is_some() && claim.is_some()
    }

    /// Key of the VM, `namespace/name`.
    #[must_use]
    pub fn vm_key(&self) -> String {
        format!("{}/{}", self.namespace, self.vm)
    }
}
