//! Disks of a VM on PersistentVolumeClaims, as controller and runner read them from the spec.

use serde_json::Value;

use crate::vm::VmSpec;

/// Environment of a runner's container: the namespace of the VM. Only pods with disks on claims
/// have it.
pub const POD_NAMESPACE: &str = "K8S_POD_NAMESPACE";
/// Environment of the same container: the uid of the VM. Records of disks on claims hold it.
pub const VM_UID: &str = "VM_UID";
/// Environment of the same container: the value of [`crate::annotations::ANNOTATION_USE_DISK`].
/// Absent if the VM has no such annotation.
pub const USE_DISK: &str = "VM_USE_DISK";
/// Directory of that container with one subdirectory for each claim.
pub const CLAIMS_DIR: &str = "/vm/claims";
/// Name of the root disk's volume. Admission reserves it.
const ROOT_VOLUME: &str = "rootdisk";
/// Name of the root disk's QEMU drive.
pub const ROOT_DRIVE: &str = "root";
/// Prefix of the QEMU drive of another disk. The name of the disk follows.
pub const DISK_DRIVE: &str = "disk-";

/// A disk of a VM on a PersistentVolumeClaim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedDisk {
    /// Name of the volume in the pod.
    pub volume: String,
    /// Name of the QEMU drive, and of the claim's directory below [`CLAIMS_DIR`].
    pub drive: String,
    /// Name of the PersistentVolumeClaim, in the namespace of the VM. Empty if a disk names none.
    pub claim: String,
}

/// The VM's disks on claims: the root disk first, then the others in the order of the spec.
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

/// Names of the claims below the disks in `names`. An empty `names` selects all disks.
#[must_use]
pub fn claims_among(spec: &VmSpec, names: &[String]) -> Vec<String> {
    let disks = claimed_disks(spec).into_iter();
    let disks = disks.filter(|disk| names.is_empty() || names.contains(&disk.volume));
    disks.map(|disk| disk.claim).collect()
}

/// Whether two pods must never write a disk of this VM at the same time.
#[must_use]
pub fn keeps_a_disk(spec: &VmSpec) -> bool {
    spec.guest.root_disk.persistent || !claimed_disks(spec).is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec() -> VmSpec {
        let spec = json!({
            "guest": {
                "cpus": {"min": 1, "use": 1, "max": 1},
                "memorySlotSize": "1Gi",
                "memorySlots": {"min": 1, "use": 1, "max": 1},
                "rootDisk": {"image": "i"},
            },
            "disks": [
                {"name": "cache", "mountPath": "/c", "emptyDisk": {"size": "1Gi"}},
                {"name": "data", "mountPath": "/d", "persistentVolumeClaim": {"claimName": "pvc-1"}},
                {"name": "logs", "mountPath": "/l", "persistentVolumeClaim": {"claimName": "pvc-2"}},
            ],
        });
        serde_json::from_value(spec).expect("a spec")
    }

    #[test]
    fn claims_of_named_disks_are_listed_and_of_all_without_a_name() {
        let among = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            claims_among(&spec(), &names)
        };
        assert_eq!(among(&[]), ["pvc-1", "pvc-2"]);
        assert_eq!(among(&["logs", "cache"]), ["pvc-2"]);
        assert!(among(&["cache"]).is_empty());
    }

    #[test]
    fn disk_on_a_claim_has_a_drive_of_its_name() {
        let disks = claimed_disks(&spec());
        let drives: Vec<&str> = disks.iter().map(|disk| disk.drive.as_str()).collect();
        assert_eq!(drives, ["disk-data", "disk-logs"]);
    }

    #[test]
    fn disk_is_kept_if_it_is_on_a_claim_or_a_persistent_root() {
        let mut spec = spec();
        assert!(keeps_a_disk(&spec));
        spec.disks.truncate(1);
        assert!(!keeps_a_disk(&spec));
        spec.guest.root_disk.persistent = true;
        assert!(keeps_a_disk(&spec));
    }
}
