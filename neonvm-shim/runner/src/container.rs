//! The runner as process 1 of a pod's container: it takes the arguments of NeonVM's runner
//! (docs/compatibility/neonvm.md §3.1) and the programs of its image.
//!
//! ```text
//! /vm/images/rootdisk.qcow2   the guest's disk, from the init container; only a layer over it is written
//! /vm/images/run/             the runner's directory
//! /vm/kernel/                 manifest.json of a guest image, and the kernel and initial RAM disk it names
//! /vm/ssh/authorized_keys     keys that open the guest
//! /vm/mounts/                 the pod's volumes, each where it is mounted in the guest
//! /vm/claims/                 the VM's persistent disks, each on a claim of its own
//! /vm/control/token           token of the controller's orders at the pod's address
//! /vm/control/keys.psk        key that encrypts migrations between the VM's runners
//! /vm/control/monitor.token   token of the agent at the guest's monitor
//! /opt/qemu/bin/              QEMU
//! ```
//!
//! The guest's ports appear at the pod's address by a bridge and the kernel's translation, or,
//! where the controller says so, by QEMU's user network, as on one machine.

use std::fs::{File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use daemon_kit::exit::Exit;
use protocol::claims::{CLAIMS_DIR, POD_NAMESPACE, USE_DISK, VM_UID, claimed_disks};
use protocol::disk_cache::DiskCacheError;
use protocol::image::{ImageContent, ImageManifest, MANIFEST_FILE, MANIFEST_FORMAT};
use protocol::migration::{PSK_FILE, RECEIVE_MIGRATION};
use protocol::runner::{
    CPU_QUOTA_PERCENT, ExitReport, GUEST_NETWORK, GUEST_NETWORKS, MONITOR_OPEN, MONITOR_TOKEN,
    RUNNER_MONITOR,
};
use protocol::vm::{CpuScalingMode, VmSpec};
use tokio_util::sync::CancellationToken;

use crate::cli::run_detached;
use crate::config::{
    AccelChoice, BootImage, CONFIG_FORMAT, Claims, GuestNetwork, OverlayNic, Programs, Resolver,
    RunnerConfig,
};
use crate::core::overlay::{self, OverlayProblem};
use crate::core::paths::Paths;
use crate::core::vm_args::{
    DISK_CACHE, VmArgsError, argument, disk_cache, is_set, vm_spec, vm_status,
};
use crate::node::images;
use crate::shell::input::OnCancel;
use crate::shell::record::{RecordError, private_dir, read_json, write_json};

/// Directory of the kernel unless an argument names another.
const KERNEL: &str = "vm/kernel";
const MOUNTS: &str = "vm/mounts";
const TERMINATION: &str = "dev/termination-log";
/// Token that authenticates the controller.
const TOKEN: &str = "vm/control/token";
/// Directory of the key that the VM's runners share.
const KEYS: &str = "vm/control";
/// Kernel command line of a guest image made for NeonVM, with the image's own kernel.
const FOREIGN_CMDLINE: &str = "panic=-1 init=/neonvm/bin/init loglevel=6 root=/dev/vda rw console=ttyS0 \
                               memhp_default_state=online";
/// First bytes of a disk in QEMU's own format.
const QCOW2_MAGIC: [u8; 4] = *b"QFI\xfb";
/// Value by which a NeonVM controller tells runners to leave cgroups alone, and the quota it means
/// otherwise.
const SKIP_CGROUP: &str = "skip-cgroup-management";
const THEIR_QUOTA_PERCENT: u32 = 400;
const EVERYBODY_READS: u32 = 0o444;
/// Part of the pod's grace period that the runner keeps for its own end, in ms.
const OWN_END_MS: u64 = 500;

/// Errors before a container's VM is started.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// The argument `-vmspec` is missing or malformed.
    #[error(transparent)]
    Spec(#[from] VmArgsError),
    /// The overlay network of spec and status is not valid.
    #[error(transparent)]
    Overlay(#[from] OverlayProblem),
    /// The argument `-cpu-scaling-mode` is neither `QmpScaling` nor `SysfsScaling`.
    #[error("-cpu-scaling-mode is {0:?}, not QmpScaling or SysfsScaling")]
    Mode(String),
    /// The argument `-qemu-disk-cache-settings` is not valid.
    #[error("-{DISK_CACHE} is not understood")]
    DiskCache(#[from] DiskCacheError),
    /// The CPU quota in the environment is not a percentage.
    #[error("{CPU_QUOTA_PERCENT} is {0:?}, not a number of per cent, or 0 for none")]
    Quota(String),
    /// The guest network in the environment is not a known one.
    #[error("{GUEST_NETWORK} is {0:?}, not one of {GUEST_NETWORKS:?}")]
    Network(String),
    /// The spec asks for a persistent root disk, and the pod has no volume for it.
    #[error(
        "spec.guest.rootDisk.persistent: the pod has no volume for the root disk, and without one the disk goes with the pod; \
         name a claim for it in spec.guest.rootDisk.persistentVolumeClaim, or make the VM without persistent"
    )]
    NoDiskVolume,
    /// The spec names a claim for a disk that is not persistent.
    #[error(
        "spec.guest.rootDisk.persistentVolumeClaim takes spec.guest.rootDisk.persistent: true; \
         make the VM with both, or without both"
    )]
    NotPersistent,
    /// The pod does not name the VM's uid, which disks on claims need.
    #[error(
        "the pod has no {VM_UID}, which identifies the owner of disks on claims: use a controller of this version"
    )]
    NoUid,
    /// A file of the image or of an init container cannot be read.
    #[error("cannot read {0}")]
    Read(PathBuf, #[source] io::Error),
    /// The guest's disk has no size, or not the format of its name.
    #[error("{0} is not a disk in qcow2 format")]
    Disk(PathBuf),
    /// The manifest beside the kernel is missing or malformed.
    #[error("{0} does not describe a guest")]
    Manifest(PathBuf, #[source] Option<serde_json::Error>),
    /// The pod has no IPv4 address, or, with a source, looking for one failed.
    #[error("the pod has no IPv4 address")]
    Address(#[source] Option<io::Error>),
    /// A file of the runner's directory, or the directory itself, cannot be written.
    #[error("cannot write the runner's directory")]
    Directory(#[from] RecordError),
}

/// Facts about the pod that its container learns from environment and network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFacts {
    /// Namespace of the pod. Empty if the environment does not name it.
    pub namespace: String,
    /// Name of the pod: `K8S_POD_NAME`, else the host's name; empty if neither is known.
    pub name: String,
    /// IPv4 address of the pod. Ports of the guest appear there.
    pub address: Ipv4Addr,
    /// Whether the runner waits for an incoming migration.
    pub receives: bool,
    /// CPU quota of QEMU in per cent of its limit, as text from the environment.
    pub quota: Option<String>,
    /// Kind of the guest's network, as text from the environment.
    pub network: Option<String>,
    /// Whether the guest's monitor accepts any agent, without a token.
    pub monitor_is_open: bool,
    /// Uid of the VM. Only pods of VMs with disks on claims have it.
    pub vm_uid: Option<String>,
    /// Value of the VM's annotation about the disks of an earlier VM.
    pub use_disk: Option<String>,
}

impl PodFacts {
    /// Reads the environment and finds the pod's address.
    ///
    /// # Errors
    /// [`ContainerError::Address`].
    pub fn find() -> Result<Self, ContainerError> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let host = nix::unistd::gethostname().ok();
        let host = host.and_then(|name| name.into_string().ok());
        Ok(Self {
            namespace: variable(POD_NAMESPACE).unwrap_or_else(|| "unknown".to_owned()),
            name: variable("K8S_POD_NAME").or(host).unwrap_or_default(),
            address: own_address()?,
            receives: variable(RECEIVE_MIGRATION).is_some_and(|text| text == "true"),
            quota: variable(CPU_QUOTA_PERCENT),
            network: variable(GUEST_NETWORK),
            monitor_is_open: variable(RUNNER_MONITOR).is_some_and(|text| text == MONITOR_OPEN),
            vm_uid: variable(VM_UID),
            use_disk: variable(USE_DISK),
        })
    }

    fn vm(&self) -> &str {
        self.name
            .rsplit_once('-')
            .map_or(self.name.as_str(), |(vm, _)| vm)
    }
}

/// Address of the default route. Nothing is sent: connecting a datagram socket only looks the route
/// up.
fn own_address() -> Result<Ipv4Addr, ContainerError> {
    let ask = || -> io::Result<IpAddr> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        // A documentation address, which only the default route covers.
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        Ok(socket.local_addr()?.ip())
    };
    match ask() {
        Ok(IpAddr::V4(address)) if !address.is_loopback() => Ok(address),
        Ok(_) => Err(ContainerError::Address(None)),
        Err(error) => Err(ContainerError::Address(Some(error))),
    }
}

/// Whether a command line is that of NeonVM's runner. `args` begins with the program's name.
#[must_use]
pub fn is_container(args: &[String]) -> bool {
    argument(args, "vmspec").is_some()
}

/// Runs the VM of a container to its end. On SIGTERM the guest gets what the pod's grace leaves.
pub async fn run(args: &[String], cancel: CancellationToken) -> ExitCode {
    let root = Path::new("/");
    let prepared = PodFacts::find().and_then(|pod| {
        let config = config(root, args, &pod)?;
        let dir = root.join("vm/images/run");
        private_dir(&dir).map_err(|error| RecordError::Write(dir.display().to_string(), error))?;
        write_json(&Paths::new(&dir).config(), &config)?;
        write_monitor_token(root, &dir, &pod)?;
        let_read(&config.image);
        Ok((dir, config))
    });
    match prepared {
        Ok((dir, config)) => {
            let grace = config.spec.termination_grace_period_seconds;
            let grace = u64::try_from(grace).unwrap_or(0).saturating_mul(1000);
            let grace_ms = grace.saturating_sub(OWN_END_MS);
            let code = run_detached(&dir, OnCancel::Stop { grace_ms }, cancel).await;
            say_why(&dir, &root.join(TERMINATION));
            code
        }
        Err(problem) => {
            tracing::error!(error = daemon_kit::chain(&problem), "cannot run");
            Exit::Config.into()
        }
    }
}

/// Writes the token of the guest's monitor into the runner's directory, or removes that of an
/// earlier container of the pod. Secrets older than this token lack it.
///
/// # Errors
/// [`ContainerError`].
pub fn write_monitor_token(root: &Path, dir: &Path, pod: &PodFacts) -> Result<(), ContainerError> {
    let given = root.join(KEYS).join(MONITOR_TOKEN);
    let token = match std::fs::read(&given) {
        _ if pod.monitor_is_open => None,
        Ok(token) => Some(token),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(ContainerError::Read(given, error)),
    };
    let path = Paths::new(dir).monitor_token();
    let written = match token {
        Some(token) => daemon_kit::durable::replace(&path, &token),
        None => match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
    };
    let failed = |error| RecordError::Write(path.display().to_string(), error);
    Ok(written.map_err(failed)?)
}

/// Makes files of init containers readable for QEMU, which has no privileges.
fn let_read(image: &BootImage) {
    for file in [&image.root_disk, &image.kernel] {
        let mode = std::fs::metadata(file).map(|file| file.permissions().mode());
        let Some(mode) = mode
            .ok()
            .filter(|mode| mode & EVERYBODY_READS != EVERYBODY_READS)
        else {
            continue;
        };
        let mode = Permissions::from_mode(mode | EVERYBODY_READS);
        if let Err(error) = std::fs::set_permissions(file, mode) {
            // If another user owns the file, QEMU reports that it cannot read it.
            tracing::warn!(file = %file.display(), %error, "failed to make a file readable");
        }
    }
}

/// Writes the reason of a failure to the pod's termination message, for people and for the
/// controller.
fn say_why(dir: &Path, termination: &Path) {
    let report: Option<ExitReport> = read_json(&Paths::new(dir).exit()).ok().flatten();
    let Some(report) = report.filter(|report| !report.success) else {
        return;
    };
    // Only the kubelet's runtime creates the file. Without it nobody reads the message.
    let file = File::options().write(true).truncate(true).open(termination);
    let written = file.and_then(|mut file| file.write_all(report.message.as_bytes()));
    if let Err(error) = written {
        tracing::debug!(%error, "failed to write the termination message");
    }
}

/// Builds the runner's configuration from a container's arguments and the files below `root`.
///
/// # Errors
/// [`ContainerError`].
pub fn config(
    root: &Path,
    args: &[String],
    pod: &PodFacts,
) -> Result<RunnerConfig, ContainerError> {
    let mut spec = vm_spec(args)?;
    fill(&mut spec, args)?;
    let claims = claims(root, &spec, pod)?;
    let overlay = overlay_nic(&spec, args)?;
    let image = boot_image(root, args)?;
    let quota = quota_percent(args, pod.quota.as_deref())?;
    let disk_cache = disk_cache(args)?;
    let network = guest_network(root, pod.network.as_deref())?;
    let keys = root.join("vm/ssh/authorized_keys");
    let program = |name: &str| root.join("opt/qemu/bin").join(name);
    Ok(RunnerConfig {
        format: CONFIG_FORMAT,
        namespace: pod.namespace.clone(),
        vm: pod.vm().to_owned(),
        pod: pod.name.clone(),
        spec,
        pod_ip: pod.address,
        programs: Programs {
            qemu_system: program("qemu-system-x86_64"),
            qemu_img: program("qemu-img"),
        },
        image,
        accel: AccelChoice::Auto,
        disk_cache,
        root_overlay: None,
        claims,
        knowledge_dir: root.join("vm/images/known"),
        cpu_quota_percent: quota.unwrap_or(100),
        // The kubelet has put this process into the container's group, whose limits hold for QEMU
        // too.
        cgroup_parent: None,
        cgroup_in_own: quota.is_some(),
        tells_guest: true,
        // A vsock device would need a device file of the node.
        vsock_cid: None,
        overlay,
        network,
        walls: None,
        ssh_public_key: std::fs::read_to_string(keys).ok(),
        mounts: Some(root.join(MOUNTS)),
        control_token: Some(root.join(TOKEN)).filter(|file| file.exists()),
        migration_keys: Some(root.join(KEYS)).filter(|dir| dir.join(PSK_FILE).exists()),
        runs_init_script: true,
        receive: pod.receives,
    })
}

fn claims(root: &Path, spec: &VmSpec, pod: &PodFacts) -> Result<Option<Claims>, ContainerError> {
    let disk = &spec.guest.root_disk;
    match (disk.persistent, &disk.persistent_volume_claim) {
        (true, None) => return Err(ContainerError::NoDiskVolume),
        (false, Some(_)) => return Err(ContainerError::NotPersistent),
        _ => {}
    }
    if claimed_disks(spec).is_empty() {
        return Ok(None);
    }
    Ok(Some(Claims {
        dir: root.join(CLAIMS_DIR.trim_start_matches('/')),
        vm_uid: pod.vm_uid.clone().ok_or(ContainerError::NoUid)?,
        use_disk: pod.use_disk.clone(),
    }))
}

/// The controller's arguments fill in what the spec leaves open.
fn fill(spec: &mut VmSpec, args: &[String]) -> Result<(), ContainerError> {
    if spec.cpu_scaling_mode.is_none() {
        spec.cpu_scaling_mode = match argument(args, "cpu-scaling-mode") {
            None => None,
            Some("QmpScaling") => Some(CpuScalingMode::QmpScaling),
            Some("SysfsScaling") => Some(CpuScalingMode::SysfsScaling),
            Some(other) => return Err(ContainerError::Mode(other.to_owned())),
        };
    }
    if spec.guest.memhp_auto_movable_ratio.is_none() {
        let ratio = argument(args, "memhp-auto-movable-ratio");
        spec.guest.memhp_auto_movable_ratio = ratio.map(str::to_owned);
    }
    Ok(())
}

/// CPU quota of QEMU in per cent of its limit: from the environment of our controller's pods, else
/// as NeonVM's runner decides. `None` is no quota.
fn quota_percent(args: &[String], said: Option<&str>) -> Result<Option<u32>, ContainerError> {
    let Some(said) = said else {
        return Ok((!is_set(args, SKIP_CGROUP)).then_some(THEIR_QUOTA_PERCENT));
    };
    let percent: u32 = said
        .parse()
        .map_err(|_| ContainerError::Quota(said.to_owned()))?;
    Ok(Some(percent).filter(|percent| *percent > 0))
}

/// Kind of the guest's network: from the environment of our controller's pods, else as NeonVM's
/// runner decides.
fn guest_network(root: &Path, said: Option<&str>) -> Result<GuestNetwork, ContainerError> {
    let [bridge, user] = GUEST_NETWORKS;
    let bridged = match said.unwrap_or(bridge) {
        said if said == bridge => true,
        said if said == user => false,
        other => return Err(ContainerError::Network(other.to_owned())),
    };
    // A pod without the file resolves no names, and neither does its guest.
    let resolver = std::fs::read_to_string(root.join("etc/resolv.conf")).unwrap_or_default();
    Ok(GuestNetwork {
        bridged,
        vhost: root.join("dev/vhost-net").exists(),
        resolver: Resolver::of(&resolver),
        hosts: Some(root.join("etc/hosts")),
    })
}

/// The guest's interface in the overlay, with the address from the status. Without an address the
/// VM runs without it, and the controller says so in the VM's condition.
fn overlay_nic(spec: &VmSpec, args: &[String]) -> Result<Option<OverlayNic>, ContainerError> {
    if !overlay::is_wanted(spec) {
        return Ok(None);
    }
    let nic = overlay::nic(spec, &vm_status(args)?)?;
    if nic.is_none() {
        tracing::warn!("spec.extraNetwork is enabled and the VM has no address there");
    }
    Ok(nic)
}

/// The disk of the pod with a kernel: the one that an argument names, else the one of the runner's
/// image.
fn boot_image(root: &Path, args: &[String]) -> Result<BootImage, ContainerError> {
    let root_disk = root.join("vm/images/rootdisk.qcow2");
    let mut image = match argument(args, "kernelpath") {
        Some(kernel) => foreign_kernel(root, kernel),
        None => own_kernel(&root.join(KERNEL))?,
    };
    image.root_disk_bytes = disk_bytes(&root_disk)?;
    image.root_disk = root_disk;
    "qcow2".clone_into(&mut image.root_disk_format);
    Ok(image)
}

fn foreign_kernel(root: &Path, kernel: &str) -> BootImage {
    BootImage {
        kernel: root.join(kernel.trim_start_matches('/')),
        kernel_version: String::new(),
        initrd: None,
        root_disk: PathBuf::new(),
        root_disk_format: String::new(),
        root_disk_bytes: 0,
        cmdline: FOREIGN_CMDLINE.to_owned(),
        cmdline_tcg: String::new(),
        ports: Vec::new(),
    }
}

fn own_kernel(dir: &Path) -> Result<BootImage, ContainerError> {
    let path = dir.join(MANIFEST_FILE);
    let bytes = std::fs::read(&path).map_err(|error| ContainerError::Read(path.clone(), error))?;
    let manifest: ImageManifest = serde_json::from_slice(&bytes)
        .map_err(|error| ContainerError::Manifest(path.clone(), Some(error)))?;
    let guest = match manifest.content {
        ImageContent::Guest(guest) if manifest.format == MANIFEST_FORMAT => guest,
        _ => return Err(ContainerError::Manifest(path, None)),
    };
    Ok(images::boot_image(dir, guest))
}

/// Size that a guest sees of a qcow2 disk: a big-endian u64 at byte 24.
fn disk_bytes(path: &Path) -> Result<u64, ContainerError> {
    let mut header = [0; 32];
    File::open(path)
        .and_then(|mut file| file.read_exact(&mut header))
        .map_err(|error| ContainerError::Read(path.to_owned(), error))?;
    let (magic, size) = (&header[..4], &header[24..]);
    if magic != QCOW2_MAGIC {
        return Err(ContainerError::Disk(path.to_owned()));
    }
    let size = size
        .iter()
        .fold(0, |sum, byte| (sum << 8) | u64::from(*byte));
    Ok(size)
}

#[cfg(test)]
mod tests;
