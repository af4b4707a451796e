//! Disks of a VM on PersistentVolumeClaims, as controller and runner read them from its spec.

use serde_json::Value;

use crate::vm::VmSpec;

/// Environment of the container of a runner: the namespace of its VM. Only pods with disks on
/// claims have it.
pub const POD_NAMESPACE: &str = "K8S_POD_NAMESPACE";
/// Environment of the same container: the uid of its VM, which the records of disks on claims hold.
pub const VM_UID: &str = "VM_UID";
/// Environment of the same container: the value of
/// [`crate::annotations::ANNOTATION_USE_DISK`], if the VM has it.
pub const USE_DISK: &str = "VM_USE_DISK";
/// Directory of that container in which each claim has a directory of its own.
pub const CLAIMS_DIR: &str = "/vm/claims";
/// The volume of the root disk. Admission reserves the name.
const ROOT_VOLUME: &str = "rootdisk";
/// The drive of the root disk.
pub const ROOT_DRIVE: &str = "root";
/// The begin of the drive of another disk. Its name follows.
pub const DISK_DRIVE: &str = "disk-";

/// A disk on a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedDisk {
    /// The volume of the pod.
    pub volume: String,
    /// The drive of QEMU, which is also the directory of the claim below [`CLAIMS_DIR`].
    pub drive: String,
    /// The claim.
    pub claim: String,
}

/// The disks on claims, the root disk first.
#[must_use]
pub fn claimed_disks(spec: &VmSpec) -> Vec<ClaimedDisk> {
    let root = spec.guest.root_disk.persistent_volume_claim.as_ref();
    let root = root.map(|claim| ClaimedDisk {
        volume: ROOT_VOLUME.to_owned(),
        drive: ROOT_DRIVE.to_owned(),
        claim: claim.claim_name.clone(),
    });
    let others = spec.disks.iter().filter_map(|disk| {
        let claim = disk.persistent_volume_claim.as_ref()?;
        let name = claim.get("claimName").and_then(Value::as_str);
        Some(ClaimedDisk {
            volume: disk.name.clone(),
            drive: format!("{DISK_DRIVE}{}", disk.name),
            claim: name.unwrap_or_default().to_owned(),
        })
    });
    root.into_iter().chain(others).collect()
}

/// The claims of those disks among `names` that are on one; of all disks if `names` is empty.
#[must_use]
pub fn claims_among(spec: &VmSpec, names: &[String]) -> Vec<String> {
    let disks = claimed_disks(spec).into_iter();
    let disks = disks.filter(|disk| names.is_empty() || names.contains(&disk.volume));
    disks.map(|disk| disk.claim).collect()
}

/// Whether the VM has a disk that two pods must not write at a time.
#[must_use]
pub fn keeps_a_disk(spec: &VmSpec) -> bool {
    spec.guest.root_disk.persistent || !claimed_disks(spec).is_empty()
}
