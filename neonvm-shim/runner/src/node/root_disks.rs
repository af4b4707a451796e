//! Persistent root disks, in `disks/NAMESPACE_VM` of the state directory. A pod claims its VM's
//! disk, and only the deletion of the VM object releases it. The absence of an object proves
//! nothing, since the store may be another one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use protocol::annotations::{
    ANNOTATION_ADOPTS, ANNOTATION_KEEP_DISK, ANNOTATION_USE_DISK, FINALIZER_ROOT_DISK,
};
use protocol::object::Pod;
use protocol::time::WallTime;
use protocol::vm::{GROUP, VERSION, VmSpec};
use serde_json::json;
use tracing::info;

use super::api::{self, EventType, PodId};
use super::images::{ImageError, Store};
use super::params::NodeParams;
use super::trash::{move_aside, trash};
use crate::config::BootImage;
use crate::core::paths::Paths;
use crate::core::root_disk::{
    Claim, ClaimProblem, DISK_FILE, DISK_FORMAT, DiskRecord, Found, RECORD_FILE, claim,
};
use crate::shell::record::{RecordError, private_dir, read_json, write_json_durably};

/// Directory of all root disks, below the state directory.
const DISKS: &str = "disks";

/// Errors that keep a pod from its VM's disk.
#[derive(Debug, thiserror::Error)]
pub(super) enum DiskClaimError {
    #[error("cannot read the VM object, whose uid says whether the disk is its own")]
    Api(#[from] kube::Error),
    /// The API has no such VM.
    #[error("there is no VM {0}: its disk is left as it is")]
    NoVm(String),
    /// The pod belongs to an earlier VM of this name.
    #[error("the pod belongs to an earlier VM {0}")]
    OtherVm(String),
    /// The VM is being deleted.
    #[error("the VM {0} is being deleted")]
    Deleted(String),
    /// The disk's directory does not allow it.
    #[error("{dir}: {problem}")]
    Problem {
        /// Path of the disk's directory.
        dir: String,
        problem: ClaimProblem,
    },
    /// The pod is the target of a migration, and the disk is not here.
    #[error("{0}: the disk of the migrating guest is not here")]
    NothingToShare(String),
    /// The base image of the disk is gone.
    #[error(
        "the disk was made over image {image} with digest {digest}, which is not usable any more: put it back into the store"
    )]
    Image {
        image: String,
        digest: String,
        source: ImageError,
    },
    /// The image for a new disk cannot be used.
    #[error(transparent)]
    NewImage(#[from] ImageError),
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A file of the disk's directory cannot be read or written.
    #[error("cannot use {0}")]
    Place(String, #[source] io::Error),
}

/// A VM's disk and its base image.
pub(super) struct Claimed {
    pub(super) disk: PathBuf,
    pub(super) image: BootImage,
}

/// API of the VM objects in a namespace; in all namespaces with `None`.
pub(super) fn vms(client: &kube::Client, namespace: Option<&str>) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(GROUP, VERSION, "VirtualMachine");
    let resource = ApiResource::from_gvk(&kind);
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// Directory of a VM's disk. Neither part can contain an underscore.
pub(super) fn dir_of(state_dir: &Path, namespace: &str, vm: &str) -> PathBuf {
    state_dir.join(DISKS).join(format!("{namespace}_{vm}"))
}

/// Claims the VM's disk for a pod. The runner makes the disk itself.
pub(super) async fn claim_for(
    params: &NodeParams,
    (pod, id): (&Pod, &PodId),
    (vm, spec): (&str, &VmSpec),
    receives: bool,
) -> Result<Claimed, DiskClaimError> {
    let object = held_vm(params, pod, &id.namespace, vm).await?;
    let dir = dir_of(&params.state_dir, &id.namespace, vm);
    let shown = dir.display().to_string();
    let left: Option<DiskRecord> = read_json(&dir.join(RECORD_FILE))?;
    let found = Found {
        record: left.as_ref(),
        has_disk: dir.join(DISK_FILE).exists(),
    };
    let uid = object.metadata.uid.clone().unwrap_or_default();
    let adopts = annotation(&object, ANNOTATION_ADOPTS).map(|_| "true".to_owned());
    let use_disk = annotation(&object, ANNOTATION_USE_DISK).or(adopts);
    let claim =
        claim(found, &uid, use_disk.as_deref()).map_err(|problem| DiskClaimError::Problem {
            dir: shown.clone(),
            problem,
        })?;
    let record = match (claim, left) {
        (Claim::Own, Some(record)) => record,
        _ if receives => return Err(DiskClaimError::NothingToShare(shown)),
        (Claim::TakeOver, Some(left)) => take_over(params, id, &dir, left, &uid).await?,
        (_, left) => {
            if let Some(left) = left {
                replace(params, id, &dir, &left).await?;
            }
            begin(params, id, vm, &uid, spec, &dir)?
        }
    };
    Ok(Claimed {
        disk: dir.join(DISK_FILE),
        image: image_of(params, &record)?,
    })
}

/// Base image of a disk, by digest: its name may refer to another one at present.
fn image_of(params: &NodeParams, record: &DiskRecord) -> Result<BootImage, DiskClaimError> {
    let image = Store::new(&params.store_dir).guest_of(&record.image, &record.image_digest);
    image.map_err(|source| DiskClaimError::Image {
        image: record.image.clone(),
        digest: record.image_digest.clone(),
        source,
    })
}

/// Gives the disk of an earlier VM to the VM that asks for it.
async fn take_over(
    params: &NodeParams,
    id: &PodId,
    dir: &Path,
    left: DiskRecord,
    uid: &str,
) -> Result<DiskRecord, DiskClaimError> {
    let record = DiskRecord {
        vm_uid: uid.to_owned(),
        released: false,
        ..left
    };
    write_json_durably(&dir.join(RECORD_FILE), &record)?;
    let message = format!("the VM goes on with the disk in {}", dir.display());
    write_event(params, id, "RootDiskTakenOver", &message).await;
    Ok(record)
}

/// The pod's VM, with the finalizer by which this node releases the disk before the object goes.
async fn held_vm(
    params: &NodeParams,
    pod: &Pod,
    namespace: &str,
    name: &str,
) -> Result<DynamicObject, DiskClaimError> {
    let key = || format!("{namespace}/{name}");
    let vms = vms(&params.client, Some(namespace));
    let vm = vms.get_opt(name).await?;
    let vm = vm.ok_or_else(|| DiskClaimError::NoVm(key()))?;
    let uid = vm.metadata.uid.as_deref().unwrap_or_default();
    let mut owners = pod.metadata.owner_references.iter();
    if !owners.any(|owner| owner.uid == uid) {
        return Err(DiskClaimError::OtherVm(key()));
    }
    if vm.metadata.deletion_timestamp.is_some() {
        return Err(DiskClaimError::Deleted(key()));
    }
    let mut finalizers = vm.metadata.finalizers.clone().unwrap_or_default();
    if finalizers.iter().any(|one| one == FINALIZER_ROOT_DISK) {
        return Ok(vm);
    }
    finalizers.push(FINALIZER_ROOT_DISK.to_owned());
    let version = &vm.metadata.resource_version;
    let patch = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
    Ok(vms
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await?)
}

/// Moves the disk of an earlier VM with this name aside.
async fn replace(
    params: &NodeParams,
    id: &PodId,
    dir: &Path,
    left: &DiskRecord,
) -> Result<(), DiskClaimError> {
    let to = move_aside(&params.state_dir, dir, params.clock.wall())
        .map_err(|error| DiskClaimError::Place(dir.display().to_string(), error))?
        .unwrap_or_else(|| trash(&params.state_dir));
    let message = format!(
        "an earlier VM of this name (uid {}) had left its disk; it was moved to {} and this VM begins with a fresh one",
        left.vm_uid,
        to.display()
    );
    info!(pod = id.key(), message, "root disk moved aside");
    write_event(params, id, "RootDiskReplaced", &message).await;
    Ok(())
}

/// Records a disk that the runner is to make.
fn begin(
    params: &NodeParams,
    id: &PodId,
    vm: &str,
    uid: &str,
    spec: &VmSpec,
    dir: &Path,
) -> Result<DiskRecord, DiskClaimError> {
    let store = Store::new(&params.store_dir);
    let image = spec.guest.root_disk.image.clone();
    let digest = store.digest(&image)?;
    let bytes = spec.guest.root_disk.size;
    let record = DiskRecord {
        format: DISK_FORMAT,
        namespace: id.namespace.clone(),
        vm: vm.to_owned(),
        vm_uid: uid.to_owned(),
        image,
        image_digest: digest.as_str().to_owned(),
        whole: false,
        bytes: bytes.and_then(|size| size.as_u64()).unwrap_or(0),
        created: params.clock.wall(),
        made: false,
        released: false,
    };
    let place = |error| DiskClaimError::Place(dir.display().to_string(), error);
    private_dir(&params.state_dir.join(DISKS)).map_err(place)?;
    private_dir(dir).map_err(place)?;
    write_json_durably(&dir.join(RECORD_FILE), &record)?;
    daemon_kit::durable::sync_folder_of(dir).map_err(place)?;
    Ok(record)
}

async fn write_event(params: &NodeParams, id: &PodId, reason: &str, message: &str) {
    let wall = params.clock.wall();
    if let Err(error) =
        api::event(&params.client, id, EventType::Normal, reason, message, wall).await
    {
        tracing::warn!(error = daemon_kit::chain(&error), "event not written");
    }
}

fn annotation(vm: &DynamicObject, name: &str) -> Option<String> {
    vm.metadata.annotations.as_ref()?.get(name).cloned()
}

/// Result of releasing the disk of a deleted VM.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LetGo {
    /// A runner's directory still names the disk.
    InUse,
    /// The VM had no disk, or it belongs to another VM.
    Nothing,
    /// The disk stays at this path.
    Kept(PathBuf),
    /// The disk was moved to this path.
    Aside(PathBuf),
}

/// Releases the disk of a VM whose object is being deleted.
pub(super) fn let_go(
    state_dir: &Path,
    vms_dir: &Path,
    vm: &DynamicObject,
    now: WallTime,
) -> Result<LetGo, DiskClaimError> {
    let meta = &vm.metadata;
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    let (namespace, name, uid) = (part(&meta.namespace), part(&meta.name), part(&meta.uid));
    let dir = dir_of(state_dir, &namespace, &name);
    let record: Option<DiskRecord> = read_json(&dir.join(RECORD_FILE))?;
    let Some(record) = record.filter(|record| record.vm_uid == uid) else {
        return Ok(LetGo::Nothing);
    };
    if is_in_use(vms_dir, &dir.join(DISK_FILE)) {
        return Ok(LetGo::InUse);
    }
    if annotation(vm, ANNOTATION_KEEP_DISK).as_deref() == Some("true") {
        let record = DiskRecord {
            released: true,
            ..record
        };
        write_json_durably(&dir.join(RECORD_FILE), &record)?;
        return Ok(LetGo::Kept(dir));
    }
    let to = move_aside(state_dir, &dir, now)
        .map_err(|error| DiskClaimError::Place(dir.display().to_string(), error))?;
    Ok(to.map_or(LetGo::Nothing, LetGo::Aside))
}

/// Whether the directory of any runner names the disk. Such a directory goes when the runner's QEMU
/// has ended. Configurations are searched as text, so that those of other versions count too.
fn is_in_use(vms: &Path, disk: &Path) -> bool {
    let disk = disk.display().to_string();
    let entries = fs::read_dir(vms);
    entries.into_iter().flatten().flatten().any(|entry| {
        match fs::read_to_string(Paths::new(entry.path()).config()) {
            Ok(text) => text.contains(&disk),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    })
}

#[cfg(test)]
mod tests;
