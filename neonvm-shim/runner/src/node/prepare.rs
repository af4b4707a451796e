//! Prepares a runner's directory from a pod.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use daemon_kit::bearer::VmKey;
use protocol::annotations::{
    ANNOTATION_MONITOR_OPEN, ANNOTATION_NETWORK, ANNOTATION_VSOCK_CID, NetworkError, VsockCidError,
    has_outside, vsock_cid,
};
use protocol::claims::claimed_disks;
use protocol::disk_cache::DiskCacheError;
use protocol::migration::RECEIVE_MIGRATION;
use protocol::object::Pod;
use protocol::vm::VmSpec;
use tokio::sync::Mutex;

use super::api::{PodId, ssh_key};
use super::host_wall;
use super::images::{ImageError, Store};
use super::params::{GuestWalls, NodeParams};
use super::pod_record::{PodRecord, StorePosition};
use super::root_disks::{self, DiskClaimError};
use super::users::UserAllocator;
use super::volumes::{self, VolumeError};
use crate::config::{CONFIG_FORMAT, GuestNetwork, RunnerConfig, Walls};
use crate::core::addresses::Addresses;
use crate::core::disks::{self, DiskProblem};
use crate::core::forwards::{self, UnknownProtocol};
use crate::core::paths::Paths;
use crate::core::pod::CONTAINER;
use crate::core::vm_args::{DISK_CACHE, VmArgsError, disk_cache, vm_spec};
use crate::shell::record::{RecordError, private_dir, read_json, write_json};

const VM_KIND: &str = "VirtualMachine";
/// Device file that QEMU opens for a vsock device.
const VHOST_VSOCK: &str = "/dev/vhost-vsock";

/// Errors that keep a pod from starting now.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrepareError {
    /// The pod has no runner container.
    #[error("the pod has no container {CONTAINER}")]
    NoContainer,
    #[error("the pod has no label vm.neon.tech/name")]
    NoVm,
    #[error(transparent)]
    Spec(#[from] VmArgsError),
    /// The spec has a script, which no container would confine here.
    #[error(
        "spec.initScript is run in a pod's container, and on one machine there is none around it: it would be run as who runs this node. \
         Make the VM without it, and do by hand, or in the image, what it does"
    )]
    InitScript,
    /// The spec has disks on claims.
    #[error(
        "persistentVolumeClaim is for clusters, and on one machine there are no claims: for the root disk \
         rootDisk.persistent: true is enough here, and another disk is an emptyDisk"
    )]
    Claims,
    /// The cache mode of disks is not valid.
    #[error("-{DISK_CACHE} is not understood")]
    DiskCache(#[from] DiskCacheError),
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The pod has no context id for its vsock device.
    #[error(transparent)]
    Vsock(#[from] VsockCidError),
    #[error(
        "the VM asks for a vsock device, and this node has no {VHOST_VSOCK}: load the module vhost_vsock, or take the annotation {ANNOTATION_VSOCK_CID} away"
    )]
    NoVsock,
    /// A port of the spec has a protocol that is not forwarded.
    #[error(transparent)]
    Port(#[from] UnknownProtocol),
    /// The disks of the spec are not valid.
    #[error(transparent)]
    Disks(#[from] DiskProblem),
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The persistent root disk cannot be used.
    #[error("the VM's root disk cannot be used")]
    RootDisk(#[from] DiskClaimError),
    #[error("all addresses of the instance's loopback block are taken")]
    NoAddress,
    /// The annotation of the guest's network is not valid.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The annotation asks for a network that QEMU's user network cannot provide.
    #[error(
        "the VM has annotation {ANNOTATION_NETWORK}, and guests here have QEMU's user network, which has no such \
         wall: start bellows up without --guest-network=user, or take the annotation away"
    )]
    NoWalls,
    /// Every user of the range belongs to a pod.
    #[error("all users of the instance's range are taken")]
    NoUser,
    #[error("cannot write the VM's directory")]
    Directory(#[from] RecordError),
}

impl PrepareError {
    /// Reason for the pod's status, in the kubelet's vocabulary.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Image(ImageError::Missing(_) | ImageError::Name(_)) => "ErrImageNeverPull",
            Self::Image(_) => "ImageInspectError",
            Self::NoContainer
            | Self::NoVm
            | Self::Spec(_)
            | Self::InitScript
            | Self::Claims
            | Self::DiskCache(_)
            | Self::Network(_)
            | Self::NoWalls
            | Self::Vsock(_)
            | Self::Port(_)
            | Self::Disks(_) => "CreateContainerConfigError",
            Self::Volume(_) | Self::RootDisk(_) => "FailedMount",
            Self::NoVsock | Self::NoAddress | Self::NoUser | Self::Directory(_) => {
                "CreateContainerError"
            }
        }
    }
}

/// Addresses of pods, shared by the workers and written at every change.
#[derive(Debug, Clone)]
pub(super) struct AddressAllocator {
    book: Arc<Mutex<Addresses>>,
    path: std::path::PathBuf,
}

impl AddressAllocator {
    /// Opens `addresses.json`. A file of another block is replaced by an empty one.
    pub(super) fn open(path: std::path::PathBuf, block: [u8; 2]) -> Result<Self, RecordError> {
        let book = read_json::<Addresses>(&path)?
            .filter(|book| book.block == block)
            .unwrap_or_else(|| Addresses::new(block));
        Ok(Self {
            book: Arc::new(Mutex::new(book)),
            path,
        })
    }

    async fn acquire(&self, pod: &str) -> Result<Ipv4Addr, PrepareError> {
        let mut book = self.book.lock().await;
        let ip = book.acquire(pod).ok_or(PrepareError::NoAddress)?;
        write_json(&self.path, &*book)?;
        Ok(ip)
    }

    pub(super) async fn release(&self, pod: &str) -> Result<(), RecordError> {
        let mut book = self.book.lock().await;
        book.release(pod);
        write_json(&self.path, &*book)
    }
}

/// Resolves images, address and disks, and writes the directory. `config.json` comes last, so that
/// a directory with it is complete.
pub(super) async fn prepare(
    params: &NodeParams,
    (addresses, users): (&AddressAllocator, Option<&UserAllocator>),
    pod: &Pod,
    id: &PodId,
    dir: &Path,
) -> Result<(), PrepareError> {
    let container = pod
        .spec
        .containers
        .iter()
        .find(|container| container.name == CONTAINER)
        .ok_or(PrepareError::NoContainer)?;
    let label = pod
        .metadata
        .labels
        .get(protocol::annotations::LABEL_VM_NAME);
    let vm = label.ok_or(PrepareError::NoVm)?.clone();
    let spec: VmSpec = vm_spec(&container.args)?;
    let disk_cache = disk_cache(&container.args)?;
    check(&spec)?;
    let vsock_cid = vsock_cid(&pod.metadata.annotations)?;
    if vsock_cid.is_some() && !Path::new(VHOST_VSOCK).exists() {
        return Err(PrepareError::NoVsock);
    }
    let store = Store::new(&params.store_dir);
    let receive = receives(container);
    let (image, root_overlay) = if spec.guest.root_disk.persistent {
        let claimed = root_disks::claim_for(params, (pod, id), (&vm, &spec), receive).await?;
        (claimed.image, Some(claimed.disk))
    } else {
        (store.guest(&spec.guest.root_disk.image)?, None)
    };
    let programs = match &params.programs {
        Some(programs) => programs.clone(),
        None => store.programs()?,
    };
    let pod_ip = addresses.acquire(&id.key()).await?;
    let vm_key = format!("{}/{vm}", id.namespace);
    let walls = walls(
        params,
        users,
        &vm_key,
        id,
        has_outside(&pod.metadata.annotations)?,
    )
    .await?;
    let keys = authorized_keys(params, &spec, &id.namespace, &vm).await;
    private_dir(dir).map_err(|error| RecordError::Write(dir.display().to_string(), error))?;
    let record = PodRecord {
        namespace: id.namespace.clone(),
        name: id.name.clone(),
        uid: id.uid.clone(),
        ip: pod_ip,
        grace_ms: grace_ms(pod),
        store: Some(StorePosition::of(&params.store_id, pod)),
    };
    record.write(dir)?;
    volumes::write_all(params, &id.namespace, pod, dir).await?;
    write_monitor_token(params, pod, &vm, dir)?;
    let config = RunnerConfig {
        format: CONFIG_FORMAT,
        namespace: id.namespace.clone(),
        vm,
        pod: id.name.clone(),
        spec,
        pod_ip,
        programs,
        image,
        accel: params.accel,
        disk_cache,
        root_overlay,
        claims: None,
        knowledge_dir: params.state_dir.clone(),
        cpu_quota_percent: params.cpu_quota_percent,
        cgroup_parent: params.cgroup_parent.clone(),
        cgroup_in_own: false,
        tells_guest: false,
        vsock_cid,
        // No network plugin gives a pod a second interface on one machine.
        overlay: None,
        network: GuestNetwork {
            resolver: host_wall::resolver(),
            ..GuestNetwork::default()
        },
        walls,
        ssh_public_key: keys,
        mounts: None,
        control_token: None,
        // Migrations use this machine's loopback device.
        migration_keys: None,
        runs_init_script: false,
        receive,
    };
    write_json(&Paths::new(dir).config(), &config)?;
    Ok(())
}

/// Isolation of a pod's QEMU.
async fn walls(
    params: &NodeParams,
    users: Option<&UserAllocator>,
    vm: &str,
    id: &PodId,
    outside: bool,
) -> Result<Option<Walls>, PrepareError> {
    if params.walls == GuestWalls::Open {
        return if outside {
            Ok(None)
        } else {
            Err(PrepareError::NoWalls)
        };
    }
    let passt = Store::new(&params.store_dir).program("passt")?;
    let user = match users {
        None => None,
        Some(users) => {
            let user = users.acquire(vm, &id.key(), outside).await?;
            Some(user.ok_or(PrepareError::NoUser)?)
        }
    };
    Ok(Some(Walls {
        user,
        passt,
        outside,
    }))
}

/// Whether a spec can be carried out on one machine.
fn check(spec: &VmSpec) -> Result<(), PrepareError> {
    if !spec.init_script.is_empty() {
        return Err(PrepareError::InitScript);
    }
    if !claimed_disks(spec).is_empty() {
        return Err(PrepareError::Claims);
    }
    forwards::check(spec)?;
    disks::plan(spec, None, None)?;
    Ok(())
}

/// Writes the token of the guest's monitor, or removes that of an earlier attempt. A VM whose
/// monitor accepts any agent gets none.
fn write_monitor_token(
    params: &NodeParams,
    pod: &Pod,
    vm: &str,
    dir: &Path,
) -> Result<(), RecordError> {
    let path = Paths::new(dir).monitor_token();
    let written = match monitor_token(params.monitor_key.as_ref(), pod, vm) {
        Some(token) => daemon_kit::durable::replace(&path, token.as_bytes()),
        None => match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
    };
    written.map_err(|error| RecordError::Write(path.display().to_string(), error))
}

fn monitor_token(key: Option<&VmKey>, pod: &Pod, vm: &str) -> Option<String> {
    let open = pod.metadata.annotations.get(ANNOTATION_MONITOR_OPEN);
    if open.is_some_and(|value| value == "true") {
        return None;
    }
    // The target of a migration also has the VM among its owners.
    let owner = pod.metadata.owner_of_kind(VM_KIND)?;
    Some(key?.token(&pod.metadata.namespace, vm, &owner.uid))
}

/// Whether the pod is the target of a migration.
fn receives(container: &protocol::object::Container) -> bool {
    let mut env = container.env.iter();
    env.any(|variable| variable.name == RECEIVE_MIGRATION && variable.value == "true")
}

async fn authorized_keys(
    params: &NodeParams,
    spec: &VmSpec,
    namespace: &str,
    vm: &str,
) -> Option<String> {
    if !spec.enable_ssh {
        return None;
    }
    let own = ssh_key(&params.client, namespace, vm).await;
    let keys: Vec<String> = [params.ssh_public_key.clone(), own]
        .into_iter()
        .flatten()
        .map(|key| key.trim().to_owned())
        .filter(|key| !key.is_empty())
        .collect();
    (!keys.is_empty()).then(|| keys.join("\n"))
}

/// Milliseconds that a pod's guest gets to power off.
pub(super) fn grace_ms(pod: &Pod) -> u64 {
    let seconds = pod.spec.termination_grace_period_seconds.unwrap_or(5);
    u64::try_from(seconds).unwrap_or(0).saturating_mul(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_gets_the_token_of_its_vm_unless_its_monitor_is_open() {
        let dir = tempfile::tempdir().expect("a directory");
        let key = VmKey::load_or_create(&dir.path().join("key")).expect("made");
        let owned = |kind: &str| protocol::object::OwnerReference {
            kind: kind.into(),
            uid: format!("uid of the {kind}"),
            ..Default::default()
        };
        let mut pod = Pod::default();
        pod.metadata.namespace = "default".into();
        pod.metadata.owner_references = vec![owned("VirtualMachineMigration"), owned(VM_KIND)];
        let token = key.token("default", "pg", "uid of the VirtualMachine");
        assert_eq!(monitor_token(Some(&key), &pod, "pg"), Some(token));
        assert_eq!(monitor_token(None, &pod, "pg"), None);
        let open = |value: &str| [(ANNOTATION_MONITOR_OPEN.to_owned(), value.to_owned())].into();
        pod.metadata.annotations = open("false");
        assert!(monitor_token(Some(&key), &pod, "pg").is_some());
        pod.metadata.annotations = open("true");
        assert_eq!(monitor_token(Some(&key), &pod, "pg"), None);
    }

    #[test]
    fn disk_on_a_claim_is_refused_on_one_machine_with_the_alternative() {
        let mut spec = VmSpec::default();
        spec.guest.root_disk.persistent = true;
        spec.guest.root_disk.persistent_volume_claim = Some(protocol::vm::ClaimRef::default());
        let refused = check(&spec).expect_err("there are no claims");
        assert_eq!(refused.reason(), "CreateContainerConfigError");
        let said = refused.to_string();
        assert!(
            said.contains("rootDisk.persistent: true is enough"),
            "{said}"
        );
    }

    #[test]
    fn port_with_an_unknown_protocol_keeps_the_pod_from_starting() {
        let mut spec = VmSpec::default();
        spec.guest.ports = vec![protocol::vm::Port {
            name: String::new(),
            port: 443,
            protocol: "QUIC".into(),
        }];
        let refused = check(&spec).expect_err("no network forwards it");
        assert_eq!(refused.reason(), "CreateContainerConfigError");
    }

    #[test]
    fn script_of_the_spec_is_refused_on_one_machine() {
        let mut spec = VmSpec::default();
        assert!(check(&spec).is_ok());
        spec.init_script = "true".into();
        let refused = check(&spec).expect_err("there is no container");
        assert_eq!(refused.reason(), "CreateContainerConfigError");
        let said = refused.to_string();
        let fix = "Make the VM without it, and do by hand, or in the image, what it does";
        assert!(
            said.starts_with("spec.initScript is run in a pod's container") && said.ends_with(fix),
            "{said}"
        );
    }
}
