//! What a VM's spec gives its guest beside CPUs and memory: drives, directories of files, settings
//! (docs/compatibility/neonvm.md §3.3).
//!
//! ```text
//! spec ──> plan ──┬──> drives of QEMU, in order: runtime, keys, swap, disks ──> made by the shell
//!                 ├──> the runtime drive's files, by which the guest mounts the rest (`runtime`)
//!                 └──> directories that are pushed into the guest and kept fresh (`sync`)
//! ```
//!
//! The guest finds each drive by its label. Whatever cannot be carried out is refused before
//! anything is made.

mod claimed;
pub mod iso;
pub mod runtime;
mod swap;
pub mod sync;

use std::collections::{BTreeMap, BTreeSet};

pub use claimed::claimed_options;
pub use protocol::admission::disks::MAX_DISKS;
use protocol::admission::disks::{DISK_NAME_RULE, MOUNT_PATH_RULE, is_disk_name, plain_mount_path};
use protocol::disk_cache::DiskCache;
use protocol::quantity::Quantity;
use protocol::vm::{Disk, VmSpec};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use swap::{SWAP_PAGE, swap_header};

use crate::core::guestd_key::GuestdKey;

/// Label of the drive that says what the guest is to do.
pub const RUNTIME_LABEL: &str = "vmruntime";
/// File on that drive with the token that an agent must show to the guest's monitor. Only root of
/// the guest reads it.
pub const MONITOR_TOKEN: &str = "monitor.token";
/// The files of a drive that only root of the guest may read.
#[must_use]
pub fn private_files(label: &str) -> &'static [&'static str] {
    match label {
        RUNTIME_LABEL => &[runtime::GUESTD_KEY, MONITOR_TOKEN],
        _ => &[],
    }
}

/// Id and label of the drive with the keys.
pub const KEYS: &str = "ssh-authorized-keys";
/// Id and label of the swap drive.
pub const SWAP: &str = "swapdisk";
/// What the id of a disk of the spec begins with, before its name: QEMU takes no id that begins
/// with a digit.
const DISK_ID: &str = "disk-";
/// Where TLS files appear in a guest unless `spec.tls.mountPath` says otherwise.
pub const TLS_PATH: &str = "/var/tls";
/// Longest label of a file system of ext4.
const EXT4_LABEL_BYTES: usize = 16;
/// Smallest file system and smallest swap that make sense.
const MIN_BYTES: u64 = 8 << 20;

/// A drive of QEMU beside the root disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drive {
    /// Its id in QEMU; its file is named after it.
    pub id: String,
    /// What is on it.
    pub kind: DriveKind,
}

/// What is on a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriveKind {
    /// Files, never written.
    Files,
    /// What the guest writes; freed blocks are kept.
    Blocks,
    /// The same; freed blocks are given back.
    FreedBlocks,
    /// The same on a claim, which outlives the pod ([`crate::core::claims`]).
    Claimed,
}

impl Drive {
    fn new(id: impl Into<String>, kind: DriveKind) -> Self {
        Self {
            id: id.into(),
            kind,
        }
    }

    /// Name of its file in the runner's directory.
    #[must_use]
    pub fn file(&self) -> String {
        let ending = match self.kind {
            DriveKind::Files => "iso",
            DriveKind::Blocks | DriveKind::FreedBlocks => "qcow2",
            DriveKind::Claimed => "raw",
        };
        format!("{}.{ending}", self.id)
    }

    /// The name that the spec has for a drive of this id, or that is reserved for it there.
    #[must_use]
    pub fn name_of(id: &str) -> &str {
        id.strip_prefix(DISK_ID).unwrap_or(id)
    }

    /// What it is to whoever wrote the spec.
    #[must_use]
    pub fn spoken(&self) -> String {
        match self.id.strip_prefix(DISK_ID) {
            Some(name) => format!("disk {name:?}"),
            None if self.id == SWAP => "its swap".to_owned(),
            None => self.id.clone(),
        }
    }

    /// How QEMU opens it.
    #[must_use]
    pub fn options(&self, cache: DiskCache) -> String {
        match self.kind {
            DriveKind::Files => "format=raw,readonly=on".to_owned(),
            // It does not outlive its pod, even where the root disk beside it does.
            DriveKind::Blocks => format!("format=qcow2,{cache}"),
            DriveKind::FreedBlocks => format!("format=qcow2,{cache},discard=unmap"),
            DriveKind::Claimed => claimed_options(cache),
        }
    }
}

/// What a drive is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Files with these contents, by file name.
    Files(BTreeMap<String, Vec<u8>>),
    /// The files of the volume that is mounted in the guest at this path.
    Volume(String),
    /// Swap of so many bytes.
    Swap(u64),
    /// An empty file system.
    Empty {
        /// Size of the drive in bytes.
        bytes: u64,
        /// With project quotas.
        quotas: bool,
    },
    /// A file system on a claim, empty when it is made.
    Claimed {
        /// Size in bytes that the spec asks for.
        bytes: u64,
    },
}

/// A drive and how to make it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// Id and kind of the drive, from which QEMU's options follow.
    pub drive: Drive,
    /// What the user calls it, for messages.
    pub name: String,
    /// The label the guest finds it by.
    pub label: String,
    /// What to put on it.
    pub content: Content,
}

/// A disk of the spec, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestDisk {
    /// Name of the disk in the VM's spec. No other disk of the VM has it.
    pub name: String,
    /// Where it is in the guest.
    pub path: String,
    /// What it is.
    pub what: What,
}

/// What a disk of the spec is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A file system of its own, empty at first.
    Empty {
        /// Size in bytes from the spec, at least `MIN_BYTES`.
        bytes: u64,
        /// Freed blocks are given back.
        discard: bool,
        /// With project quotas.
        quotas: bool,
    },
    /// Files of a config map or secret, on a drive.
    Files,
    /// The same, pushed into the guest and kept fresh.
    Watched,
    /// Memory of the guest.
    Memory {
        /// Most bytes that the files may take, at least `MIN_BYTES`.
        bytes: u64,
    },
    /// A file system of its own on a claim.
    Claimed {
        /// Size in bytes from the spec, at least `MIN_BYTES`.
        bytes: u64,
    },
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Drives in QEMU's order.
    pub drives: Vec<Planned>,
    /// Directories of the guest that are kept fresh.
    pub watched: Vec<String>,
}

impl Plan {
    /// Puts the token that the guest's monitor asks for on the runtime drive. Without one the drive
    /// is as it was.
    #[must_use]
    pub fn with_monitor_token(mut self, token: Option<&str>) -> Self {
        if let Some(token) = token {
            let mut drives = self.drives.iter_mut();
            let runtime = drives.find(|one| one.label == RUNTIME_LABEL);
            if let Some(Content::Files(files)) = runtime.map(|one| &mut one.content) {
                files.insert(MONITOR_TOKEN.to_owned(), format!("{token}\n").into_bytes());
            }
        }
        self
    }
}

/// A spec that cannot be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiskProblem {
    /// A disk of the VM is not valid.
    #[error("disk {name:?}: {problem}")]
    Disk {
        /// Its name, cut to what a message can hold.
        name: String,
        /// What is wrong and what would be right.
        problem: Problem,
    },
    /// The spec has this number of disks, which is more than `MAX_DISKS`.
    #[error("spec.disks has {0} disks: {MAX_DISKS} are the most")]
    TooMany(usize),
    /// The size of the swap is not valid.
    #[error("spec.guest.settings.swap: {0}")]
    Swap(Problem),
    /// A variable's name.
    #[error(
        "spec.guest.env: {0:?} is not a name a shell takes: letters, digits and _ make one, a digit not first"
    )]
    Variable(String),
    /// A text that no shell can hold.
    #[error("spec.guest.{0} holds a zero byte")]
    Zero(&'static str),
    /// More than one line where one is meant.
    #[error("spec.guest.settings.sysctl: {0:?} is more than one line")]
    Sysctl(String),
}

/// What is wrong with a disk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The disk's name breaks `DISK_NAME_RULE`.
    #[error("{DISK_NAME_RULE}")]
    Name,
    /// A name of ours.
    #[error("this name is taken by the VM itself, choose another")]
    Reserved,
    /// Twice the same.
    #[error("another disk has this name, give each its own")]
    Twice,
    /// The disk's `mountPath` is this one and breaks `MOUNT_PATH_RULE`.
    #[error("mountPath {0:?} {MOUNT_PATH_RULE}")]
    Path(String),
    /// Twice the same.
    #[error("disk {0:?} has the same mountPath, give each its own")]
    SamePath(String),
    /// A size that is none.
    #[error("its size {0} is not a size such as 1Gi")]
    Size(String),
    /// A size too small.
    #[error("its size {0} is less than 8Mi")]
    Small(u64),
    /// The disk names no source.
    #[error(
        "it has none of emptyDisk, configMap, secret, tmpfs and persistentVolumeClaim, say one"
    )]
    NoSource,
}

fn cut(text: &str) -> String {
    text.chars().take(64).collect()
}

/// Understands the disks of a spec, its TLS files among them.
///
/// # Errors
/// [`DiskProblem`] for the first disk that cannot be.
pub fn disks(spec: &VmSpec) -> Result<Vec<GuestDisk>, DiskProblem> {
    if spec.disks.len() > MAX_DISKS {
        return Err(DiskProblem::TooMany(spec.disks.len()));
    }
    let mut all: Vec<GuestDisk> = Vec::new();
    for disk in &spec.disks {
        let refused = |problem| DiskProblem::Disk {
            name: cut(&disk.name),
            problem,
        };
        if !is_disk_name(&disk.name) {
            return Err(refused(Problem::Name));
        }
        if protocol::admission::RESERVED_DISK_NAMES.contains(&disk.name.as_str())
            || disk.name == RUNTIME_LABEL
        {
            return Err(refused(Problem::Reserved));
        }
        if all.iter().any(|other| other.name == disk.name) {
            return Err(refused(Problem::Twice));
        }
        let what = what(disk).map_err(refused)?;
        add(&mut all, &disk.name, &disk.mount_path, what).map_err(refused)?;
    }
    if let Some(tls) = &spec.tls {
        let path = tls.get("mountPath").and_then(Value::as_str);
        let tls = add(&mut all, "tls", path.unwrap_or(TLS_PATH), What::Watched);
        tls.map_err(|problem| DiskProblem::Disk {
            name: "tls".to_owned(),
            problem,
        })?;
    }
    Ok(all)
}

fn add(all: &mut Vec<GuestDisk>, name: &str, path: &str, what: What) -> Result<(), Problem> {
    let path = plain_mount_path(path).ok_or_else(|| Problem::Path(cut(path)))?;
    if let Some(other) = all.iter().find(|other| other.path == path) {
        return Err(Problem::SamePath(other.name.clone()));
    }
    all.push(GuestDisk {
        name: name.to_owned(),
        path,
        what,
    });
    Ok(())
}

/// An empty disk wins over files, and files over memory, as in the deployed order.
fn what(disk: &Disk) -> Result<What, Problem> {
    let flag = |source: &Value, name: &str| source.get(name) == Some(&Value::Bool(true));
    if let Some(empty) = &disk.empty_disk {
        return Ok(What::Empty {
            bytes: size(empty)?,
            discard: flag(empty, "discard"),
            quotas: flag(empty, "enableQuotas"),
        });
    }
    if disk.config_map.is_some() || disk.secret.is_some() {
        return Ok(if disk.watch {
            What::Watched
        } else {
            What::Files
        });
    }
    if let Some(tmpfs) = &disk.tmpfs {
        let bytes = size(tmpfs)?;
        return Ok(What::Memory { bytes });
    }
    let claim = disk.persistent_volume_claim.as_ref();
    let bytes = size(claim.ok_or(Problem::NoSource)?)?;
    Ok(What::Claimed { bytes })
}

fn size(source: &Value) -> Result<u64, Problem> {
    let said = source.get("size").cloned().unwrap_or_default();
    let parsed = serde_json::from_value::<Quantity>(said.clone()).ok();
    let bytes = parsed.and_then(|size| size.as_u64());
    at_least(bytes.ok_or_else(|| Problem::Size(cut(&said.to_string())))?)
}

fn at_least(bytes: u64) -> Result<u64, Problem> {
    if bytes < MIN_BYTES {
        return Err(Problem::Small(bytes));
    }
    Ok(bytes)
}

/// The VM's swap, in whole pages.
///
/// # Errors
/// [`DiskProblem::Swap`].
pub fn swap_bytes(spec: &VmSpec) -> Result<Option<u64>, DiskProblem> {
    let settings = spec.guest.settings.as_ref();
    let Some(swap) = settings.and_then(|settings| settings.swap) else {
        return Ok(None);
    };
    let bytes = swap.as_u64().unwrap_or(0);
    let bytes = at_least(bytes).map_err(DiskProblem::Swap)?;
    Ok(Some(bytes - bytes % SWAP_PAGE))
}

/// The label of an empty file system, which can be shorter than a name.
#[must_use]
pub fn ext4_label(name: &str) -> String {
    use sha2::{Digest as _, Sha256};
    if name.len() <= EXT4_LABEL_BYTES {
        return name.to_owned();
    }
    let mut hash = 0_u32;
    for byte in Sha256::digest(name.as_bytes()).iter().take(4) {
        hash = (hash << 8) | u32::from(*byte);
    }
    // No name holds a tilde.
    format!("{}~{hash:08x}", &name[..EXT4_LABEL_BYTES - 9])
}

/// What to make and attach, and what to push, for a spec, the keys that open the guest and the key
/// of its daemon.
///
/// # Errors
/// [`DiskProblem`] for the first thing that cannot be.
pub fn plan(
    spec: &VmSpec,
    keys: Option<&str>,
    daemon: Option<&GuestdKey>,
) -> Result<Plan, DiskProblem> {
    let disks = disks(spec)?;
    let swap = swap_bytes(spec)?;
    let has_keys = keys.is_some();
    let runtime = runtime::files(&spec.guest, &disks, swap, has_keys, daemon)?;
    let files = |id: &str, label: &str, content| Planned {
        drive: Drive::new(id, DriveKind::Files),
        name: label.to_owned(),
        label: label.to_owned(),
        content,
    };
    let mut drives = vec![files("runtime", RUNTIME_LABEL, Content::Files(runtime))];
    if let Some(keys) = keys {
        let text = format!("{}\n", keys.trim_end());
        let content = BTreeMap::from([("authorized_keys".to_owned(), text.into_bytes())]);
        drives.push(files(KEYS, KEYS, Content::Files(content)));
    }
    if let Some(bytes) = swap {
        drives.push(Planned {
            drive: Drive::new(SWAP, DriveKind::FreedBlocks),
            name: SWAP.to_owned(),
            label: SWAP.to_owned(),
            content: Content::Swap(bytes),
        });
    }
    drives.extend(disks.iter().filter_map(drive_of));
    let watched = disks.iter().filter(|disk| disk.what == What::Watched);
    let plan = Plan {
        watched: watched.map(|disk| disk.path.clone()).collect(),
        drives,
    };
    let ids: BTreeSet<&str> = plan
        .drives
        .iter()
        .map(|one| one.drive.id.as_str())
        .collect();
    assert!(ids.len() == plan.drives.len(), "every drive has its own id");
    Ok(plan)
}

fn drive_of(disk: &GuestDisk) -> Option<Planned> {
    let id = format!("{DISK_ID}{}", disk.name);
    let (kind, label, content) = match disk.what {
        What::Empty {
            bytes,
            discard,
            quotas,
        } => (
            if discard {
                DriveKind::FreedBlocks
            } else {
                DriveKind::Blocks
            },
            ext4_label(&disk.name),
            Content::Empty { bytes, quotas },
        ),
        What::Files => (
            DriveKind::Files,
            disk.name.clone(),
            Content::Volume(disk.path.clone()),
        ),
        What::Claimed { bytes } => (
            DriveKind::Claimed,
            ext4_label(&disk.name),
            Content::Claimed { bytes },
        ),
        What::Watched | What::Memory { .. } => return None,
    };
    Some(Planned {
        drive: Drive::new(id, kind),
        name: disk.name.clone(),
        label,
        content,
    })
}

#[cfg(test)]
mod tests;
