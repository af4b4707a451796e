//! Drives, watched directories and settings that a VM's spec gives its guest
//! (docs/compatibility/neonvm.md §3.3).
//!
//! ```text
//! spec ──> plan ──┬──> drives of QEMU, in order: runtime, keys, swap, disks ──> made by the shell
//!                 ├──> the runtime drive's files, by which the guest mounts the rest (`runtime`)
//!                 └──> directories that are pushed into the guest and kept fresh (`sync`)
//! ```
//!
//! The guest finds each drive by its label. A spec that cannot be carried out is refused before
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

/// Label of the drive with the guest's instructions.
pub const RUNTIME_LABEL: &str = "vmruntime";
/// File on the runtime drive with the token that agents show to the guest's monitor. Only root of
/// the guest reads it.
pub const MONITOR_TOKEN: &str = "monitor.token";
/// Names of a drive's files that only root of the guest may read.
#[must_use]
pub fn private_files(label: &str) -> &'static [&'static str] {
    match label {
        RUNTIME_LABEL => &[runtime::GUESTD_KEY, MONITOR_TOKEN],
        _ => &[],
    }
}

/// Id and label of the drive with ssh keys.
pub const KEYS: &str = "ssh-authorized-keys";
/// Id and label of the swap drive.
pub const SWAP: &str = "swapdisk";
/// Prefix of the ids of the spec's disks: QEMU takes no id that begins with a digit.
const DISK_ID: &str = "disk-";
/// Where TLS files appear in a guest unless `spec.tls.mountPath` says otherwise.
pub const TLS_PATH: &str = "/var/tls";
/// Longest label of a file system of ext4.
const EXT4_LABEL_BYTES: usize = 16;
/// Smallest file system and smallest swap, in bytes.
const MIN_BYTES: u64 = 8 << 20;

/// A drive of QEMU other than the root disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drive {
    /// QEMU id of the drive, and the stem of its file's name.
    pub id: String,
    /// Format and cache behaviour of the drive's file.
    pub kind: DriveKind,
}

/// How the guest uses a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriveKind {
    /// A file system of files; read-only.
    Files,
    /// A writable disk that keeps freed blocks.
    Blocks,
    /// A writable disk that returns freed blocks to the host.
    FreedBlocks,
    /// A writable disk on a claim, which outlives the pod ([`crate::core::claims`]).
    Claimed,
}

impl Drive {
    fn new(id: impl Into<String>, kind: DriveKind) -> Self {
        Self {
            id: id.into(),
            kind,
        }
    }

    /// Name of the drive's file in the runner's directory.
    #[must_use]
    pub fn file(&self) -> String {
        let ending = match self.kind {
            DriveKind::Files => "iso",
            DriveKind::Blocks | DriveKind::FreedBlocks => "qcow2",
            DriveKind::Claimed => "raw",
        };
        format!("{}.{ending}", self.id)
    }

    /// Name of a drive in the spec, by its id. Drives of the runner have reserved names.
    #[must_use]
    pub fn name_of(id: &str) -> &str {
        id.strip_prefix(DISK_ID).unwrap_or(id)
    }

    /// Name of a drive in messages to the author of the spec.
    #[must_use]
    pub fn spoken(&self) -> String {
        match self.id.strip_prefix(DISK_ID) {
            Some(name) => format!("disk {name:?}"),
            None if self.id == SWAP => "its swap".to_owned(),
            None => self.id.clone(),
        }
    }

    /// Options for QEMU's `-drive`, without file and id.
    #[must_use]
    pub fn options(&self, cache: DiskCache) -> String {
        match self.kind {
            DriveKind::Files => "format=raw,readonly=on".to_owned(),
            // It does not outlive its pod, even where the root disk does.
            DriveKind::Blocks => format!("format=qcow2,{cache}"),
            DriveKind::FreedBlocks => format!("format=qcow2,{cache},discard=unmap"),
            DriveKind::Claimed => claimed_options(cache),
        }
    }
}

/// Source of a drive's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Files with these contents, by file name.
    Files(BTreeMap<String, Vec<u8>>),
    /// Files of the volume at this mount path in the guest.
    Volume(String),
    /// Swap of this many bytes.
    Swap(u64),
    /// An empty file system in the runner's directory.
    Empty {
        /// Size of the drive in bytes.
        bytes: u64,
        /// Whether the file system has project quotas.
        quotas: bool,
    },
    /// A file system on a claim. It is empty when the claim is first used.
    Claimed {
        /// Size in bytes that the spec asks for.
        bytes: u64,
    },
}

/// A drive and how to make it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// Id and kind of the drive, which decide QEMU's options.
    pub drive: Drive,
    /// Name of the drive in messages to the user.
    pub name: String,
    /// File system label by which the guest finds the drive.
    pub label: String,
    /// Content that the shell writes to the drive.
    pub content: Content,
}

/// A disk of the spec after validation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestDisk {
    /// Name of the disk in the VM's spec. No other disk of the VM has it.
    pub name: String,
    /// Absolute mount path in the guest.
    pub path: String,
    /// Kind of the disk, with its parameters.
    pub what: What,
}

/// Kinds of disks in a spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A file system on a drive of its own, empty at first.
    Empty {
        /// Size in bytes from the spec, at least `MIN_BYTES`.
        bytes: u64,
        /// Whether freed blocks are returned to the host.
        discard: bool,
        /// Whether the file system has project quotas.
        quotas: bool,
    },
    /// Files of a config map or secret, on a read-only drive.
    Files,
    /// Files of a config map or secret that are pushed into the guest and kept current.
    Watched,
    /// A tmpfs in the guest's memory.
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

/// Drives and watched directories of a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Drives in the order of QEMU's command line.
    pub drives: Vec<Planned>,
    /// Mount paths of directories whose files are kept current.
    pub watched: Vec<String>,
}

impl Plan {
    /// Adds the token of the guest's monitor to the runtime drive. `None` changes nothing.
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

/// Errors of a spec's disks, swap, variables or settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiskProblem {
    /// A disk of the spec is not valid.
    #[error("disk {name:?}: {problem}")]
    Disk {
        /// Name of the disk, cut to a length that a message can hold.
        name: String,
        /// Rule that the disk breaks.
        problem: Problem,
    },
    /// The spec has this number of disks, which is more than `MAX_DISKS`.
    #[error("spec.disks has {0} disks: {MAX_DISKS} are the most")]
    TooMany(usize),
    /// The size of the swap is not valid.
    #[error("spec.guest.settings.swap: {0}")]
    Swap(Problem),
    /// The name of a variable is not valid in a shell.
    #[error(
        "spec.guest.env: {0:?} is not a name a shell takes: letters, digits and _ make one, a digit not first"
    )]
    Variable(String),
    /// The text of this setting contains a zero byte.
    #[error("spec.guest.{0} holds a zero byte")]
    Zero(&'static str),
    /// A sysctl setting has more than one line.
    #[error("spec.guest.settings.sysctl: {0:?} is more than one line")]
    Sysctl(String),
}

/// Rules that a disk of a spec can break.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The disk's name breaks `DISK_NAME_RULE`.
    #[error("{DISK_NAME_RULE}")]
    Name,
    /// The name is reserved for a drive of the runner.
    #[error("this name is taken by the VM itself, choose another")]
    Reserved,
    /// Another disk has the same name.
    #[error("another disk has this name, give each its own")]
    Twice,
    /// The disk's `mountPath` is this one and breaks `MOUNT_PATH_RULE`.
    #[error("mountPath {0:?} {MOUNT_PATH_RULE}")]
    Path(String),
    /// Another disk has this `mountPath`.
    #[error("disk {0:?} has the same mountPath, give each its own")]
    SamePath(String),
    /// The size is not a quantity.
    #[error("its size {0} is not a size such as 1Gi")]
    Size(String),
    /// The size in bytes is below the minimum.
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

/// Validates the disks of a spec, its TLS files included.
///
/// # Errors
/// [`DiskProblem`] for the first invalid disk.
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

/// Where several sources are set, an empty disk wins over files, and files over memory, as in
/// NeonVM.
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

/// Size of the VM's swap in bytes, a multiple of a page.
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

/// Label of an empty file system: the name, or a prefix with a hash where the name is too long.
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
    // A name contains no tilde, so a shortened label never equals a name.
    format!("{}~{hash:08x}", &name[..EXT4_LABEL_BYTES - 9])
}

/// Plans the drives and watched directories of a spec, with the ssh key and the key of the guest's
/// daemon.
///
/// # Errors
/// [`DiskProblem`] for the first invalid part of the spec.
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
