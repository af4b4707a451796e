//! How a QEMU is built, told by the runner that has it to the one that is to build its like.

use std::path::PathBuf;

use protocol::runner::SizeOrder;
use serde::{Deserialize, Serialize};

use crate::config::Accel;
use crate::core::disks::{Drive, DriveKind};
use crate::core::guestd_key::GuestdKey;
use crate::core::shape::Shape;
use crate::core::sizer::CpuSlot;

/// A CPU that was plugged after the start, or on the command line in removable form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PluggedCpu {
    /// QEMU's type of the CPU device, the `driver` of `device_add`.
    pub driver: String,
    /// Id of the device, by which QEMU can unplug it.
    pub id: String,
    /// Properties that name its place.
    pub props: std::collections::BTreeMap<String, i64>,
}

/// Where the source's disk is, for a target that may have the same file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// The machine's boot: a path means something within one only.
    pub host_boot_id: String,
    /// The writable layer.
    pub path: PathBuf,
    /// Its device number.
    pub device: u64,
    /// Inode number of the file. With the device number it shows a target whether its file is the
    /// same.
    pub inode: u64,
    /// Size in bytes that the guest sees.
    pub bytes: u64,
    /// The image under it, by the name of its directory in the store, which is its digest.
    pub image: String,
}

/// Everything a target must know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// QEMU's version at the source. An older QEMU cannot receive the guest.
    pub qemu: String,
    /// Machine type with its version, `pc-q35-10.0`.
    pub machine: String,
    /// Accelerator that the guest runs with. A target that uses another refuses the guest.
    pub accel: Accel,
    /// How it was built at its start.
    pub shape: Shape,
    /// CPUs beyond those that cannot be unplugged.
    pub cpus: Vec<PluggedCpu>,
    /// Address of the network device.
    pub mac: String,
    /// It is connected by a bridge, not by QEMU's user network.
    #[serde(default)]
    pub bridged: bool,
    /// It is connected by passt, not by QEMU's user network. The user network has a section of its
    /// own in what is migrated, so the target must have the same.
    #[serde(default)]
    pub passt: bool,
    /// Queues of each device that is an interface of the pod's.
    #[serde(default = "one_queue")]
    pub queues: u32,
    /// Address of the one in the overlay network, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlay_mac: Option<String>,
    /// The kernel command line it booted with: a table of the machine has its length.
    pub cmdline: String,
    /// The order in force.
    pub order: Option<SizeOrder>,
    /// Milliseconds the guest took to boot.
    pub boot_ms: Option<u64>,
    /// Location and size of the root disk at the source.
    pub disk: Disk,
    /// The drives beside it, in order.
    #[serde(default)]
    pub drives: Vec<DriveThere>,
    /// The runner has the key that all of the VM's have, to encrypt what it sends.
    #[serde(default)]
    pub encrypts: bool,
    /// The key of its daemon, which stays that of its boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guestd_key: Option<GuestdKey>,
    /// The runner connects to the sockets of a target on its machine.
    #[serde(default)]
    pub dials_sockets: bool,
}

/// What a guest has whose runner does not say.
const fn one_queue() -> u32 {
    1
}

/// A drive of the source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriveThere {
    /// What it is.
    pub drive: Drive,
    /// Where it is there.
    pub path: PathBuf,
    /// Its device number.
    pub device: u64,
    /// Inode number of the file at the source.
    pub inode: u64,
    /// SHA-256 of one of files: the target must make the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// A guest that was told to come, as a runner writes it down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrival {
    /// Order to receive the guest.
    pub order: protocol::migration::IncomingOrder,
    /// Whether the disk is the source's own file.
    pub shares_disk: bool,
    /// QEMU was told to listen.
    pub listening: bool,
    /// The guest was told to run.
    pub begun: bool,
    /// It did. From then on it is a guest like any other, that may be stopped for other reasons.
    #[serde(default)]
    pub ran: bool,
}

/// Why a guest cannot come here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The manifest is not one.
    #[error("the source's description is not understood: {0}")]
    Manifest(String),
    /// A text of the manifest would be more than one value on the command line of QEMU, or leave
    /// the directory.
    #[error(
        "the source's description is refused: {value:?} of {member} is not {rule}. The runner it comes from is not one of ours"
    )]
    Text {
        /// Where it is.
        member: &'static str,
        /// Its first 100 characters.
        value: String,
        /// What it must be.
        rule: &'static str,
    },
    /// QEMU here is older.
    #[error("QEMU {here} here is older than {there} at the source")]
    Older {
        /// Version of the target's QEMU.
        here: String,
        /// Version of the source's QEMU.
        there: String,
    },
    /// The accelerator is not to be had.
    #[error("the guest runs with {there}, and here is only {here}")]
    Accel {
        /// Accelerator that the target uses.
        here: &'static str,
        /// Accelerator that the guest runs with.
        there: &'static str,
    },
    /// Drives the guest writes are on another machine.
    #[error(
        "the guest writes to {0}, and a disk other than its root disk is not copied to another machine: \
         end the VM there and start it here"
    )]
    Written(String),
    /// Disks on claims are one pod's at a time.
    #[error(
        "the VM has disks on claims, which one pod writes at a time: delete its pod, and it starts on a node where they can be mounted"
    )]
    Claims,
    /// Files have changed since the guest started.
    #[error(
        "the files of {0} are others here than those the guest has: a secret or config map has changed since it started"
    )]
    Files(String),
    /// It cannot be made.
    #[error("{0}")]
    Drives(String),
    /// The source would have to dial a port that every user of the machine may dial.
    #[error(
        "the guest's runner is an older one, which sends a guest only to ports that every user of this machine may dial: \
         restart the guest, and try again"
    )]
    NoSockets,
    /// There is no overlay network here.
    #[error(
        "the guest has an interface in the overlay network, and the pod here has none: give its VM an address there, by the controller's options, and try again"
    )]
    NoOverlay,
    /// The pod here has no passt.
    #[error(
        "the guest is connected by passt, and here guests are connected by QEMU's user network: \
         start bellows up with --guest-network=passt"
    )]
    NoPasst,
    /// The image is another.
    #[error("image {here} here is not the guest's, {there}")]
    Image {
        /// Digest of the target's image, by the name of its directory.
        here: String,
        /// Digest of the image under the guest's disk, from the manifest.
        there: String,
    },
}

/// Major and minor number of `10.0.2`; a text that is none is older than all.
#[must_use]
pub fn version(text: &str) -> (u32, u32) {
    let mut parts = text.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// Refuses a text that does not follow its rule.
fn check_text(
    member: &'static str,
    text: &str,
    rule: (&'static str, fn(&str) -> bool),
) -> Result<(), Unfit> {
    let (rule, holds) = rule;
    if holds(text) {
        return Ok(());
    }
    Err(Unfit::Text {
        member,
        value: text.chars().take(100).collect(),
        rule,
    })
}

/// Names of machines, devices, their properties and files.
const WORD: (&str, fn(&str) -> bool) = ("a word of letters, digits, '.', '_' and '-'", |text| {
    let is_of = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !text.is_empty() && text.bytes().all(is_of)
});

const ADDRESS: (&str, fn(&str) -> bool) = ("a hardware address", |text| {
    let is_pair = |pair: &str| pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.split(':').count() == 6 && text.split(':').all(is_pair)
});

impl Manifest {
    /// Whether each text that becomes a part of an option of QEMU, or of the name of a file, is one
    /// value there. The manifest is written by another node's runner, and that node may have been
    /// taken over.
    ///
    /// # Errors
    /// [`Unfit::Text`] for the first that is not.
    pub fn check(&self) -> Result<(), Unfit> {
        check_text("machine", &self.machine, WORD)?;
        check_text("mac", &self.mac, ADDRESS)?;
        if let Some(address) = &self.overlay_mac {
            check_text("overlay_mac", address, ADDRESS)?;
        }
        for cpu in &self.cpus {
            check_text("cpus", &cpu.driver, WORD)?;
            check_text("cpus", &cpu.id, WORD)?;
            for name in cpu.props.keys() {
                check_text("cpus", name, WORD)?;
            }
        }
        for there in &self.drives {
            check_text("drives", &there.drive.id, WORD)?;
        }
        Ok(())
    }

    /// Whether a QEMU of this version may take the guest: it knows the machine type if it is no
    /// older. Bug-fix releases of one minor version take each other's guests.
    ///
    /// # Errors
    /// [`Unfit::Older`].
    pub fn fits(&self, here: &str) -> Result<(), Unfit> {
        if version(here) < version(&self.qemu) {
            return Err(Unfit::Older {
                here: here.to_owned(),
                there: self.qemu.clone(),
            });
        }
        Ok(())
    }

    /// Whether its drives can be had where the source's files are not: those of files are made
    /// anew, what the guest writes is lost.
    ///
    /// # Errors
    /// [`Unfit::Written`] with all that cannot.
    pub fn drives_come(&self) -> Result<(), Unfit> {
        let drives = self.drives.iter().map(|there| &there.drive);
        let written = drives.filter(|drive| drive.kind != DriveKind::Files);
        let names: Vec<String> = written.map(Drive::spoken).collect();
        if names.is_empty() {
            Ok(())
        } else {
            Err(Unfit::Written(names.join(" and ")))
        }
    }
}

impl PluggedCpu {
    /// The CPU in a slot, if it is one that can be unplugged.
    #[must_use]
    pub fn of(slot: &CpuSlot) -> Option<Self> {
        Some(Self {
            driver: slot.driver.clone(),
            id: slot.removable()?.to_owned(),
            props: slot.props.clone(),
        })
    }

    /// The device on a command line.
    #[must_use]
    pub fn device(&self) -> String {
        let mut text = format!("{},id={}", self.driver, self.id);
        for (key, value) in &self.props {
            text.push_str(&format!(",{key}={value}"));
        }
        text
    }
}
