//! Description of a QEMU, from the runner that owns it to the runner that builds an equal one.

use std::path::PathBuf;

use protocol::runner::SizeOrder;
use serde::{Deserialize, Serialize};

use crate::config::Accel;
use crate::core::disks::{Drive, DriveKind};
use crate::core::guestd_key::GuestdKey;
use crate::core::shape::Shape;
use crate::core::sizer::CpuSlot;

/// A CPU that can be unplugged: plugged after the start, or on the command line in removable form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PluggedCpu {
    /// QEMU's type of the CPU device, the `driver` of `device_add`.
    pub driver: String,
    /// Id of the device, by which QEMU can unplug it.
    pub id: String,
    /// Properties that identify its slot.
    pub props: std::collections::BTreeMap<String, i64>,
}

/// Location of the source's disk, by which a target may recognise the same file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Boot id of the source's machine. A path identifies a file only within one boot.
    pub host_boot_id: String,
    /// Path of the writable layer.
    pub path: PathBuf,
    /// Device number of the file.
    pub device: u64,
    /// Inode number of the file. With the device number it shows a target whether its file is the
    /// same.
    pub inode: u64,
    /// Size in bytes that the guest sees.
    pub bytes: u64,
    /// Digest of the base image: the name of its directory in the store.
    pub image: String,
}

/// Description of a QEMU and its guest for the target of a migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// QEMU's version at the source. An older QEMU cannot receive the guest.
    pub qemu: String,
    /// Machine type with its version, `pc-q35-10.0`.
    pub machine: String,
    /// Accelerator that the guest runs with. A target that uses another refuses the guest.
    pub accel: Accel,
    /// Shape of QEMU at its start.
    pub shape: Shape,
    /// CPUs of the guest that can be unplugged.
    pub cpus: Vec<PluggedCpu>,
    /// Hardware address of the guest's first device.
    pub mac: String,
    /// Whether a bridge connects the guest, and not QEMU's user network.
    #[serde(default)]
    pub bridged: bool,
    /// Whether passt connects the guest, and not QEMU's user network. The user network has a
    /// section of its own in the stream, so the target must have the same.
    #[serde(default)]
    pub passt: bool,
    /// Queues of each device that ends at an interface of the pod.
    #[serde(default = "one_queue")]
    pub queues: u32,
    /// Hardware address of the guest's overlay device, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlay_mac: Option<String>,
    /// Kernel command line that the guest booted with: the length of an ACPI table depends on it.
    pub cmdline: String,
    /// Size order in force at the source.
    pub order: Option<SizeOrder>,
    /// Milliseconds the guest took to boot.
    pub boot_ms: Option<u64>,
    /// Location and size of the root disk at the source.
    pub disk: Disk,
    /// Drives other than the root disk, in QEMU's order.
    #[serde(default)]
    pub drives: Vec<DriveThere>,
    /// Whether the runner has the key that the VM's runners share, and encrypts the stream.
    #[serde(default)]
    pub encrypts: bool,
    /// Key of the guest's daemon, fixed since its boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guestd_key: Option<GuestdKey>,
    /// Whether the runner can connect to the unix sockets of a target on its machine.
    #[serde(default)]
    pub dials_sockets: bool,
}

/// The default for manifests of older runners.
const fn one_queue() -> u32 {
    1
}

/// A drive of the source other than the root disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriveThere {
    /// Id and kind of the drive.
    pub drive: Drive,
    /// Path of the file at the source.
    pub path: PathBuf,
    /// Device number of the file at the source.
    pub device: u64,
    /// Inode number of the file at the source.
    pub inode: u64,
    /// SHA-256 of a drive of files: the target must build the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// A guest that was ordered to arrive, as in the runner's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrival {
    /// Order to receive the guest.
    pub order: protocol::migration::IncomingOrder,
    /// Whether source and target use the same file as root disk.
    pub shares_disk: bool,
    /// Whether QEMU was ordered to listen.
    pub listening: bool,
    /// Whether the order to run the guest was given.
    pub begun: bool,
    /// Whether the guest has run here. From then on it may be stopped for other reasons.
    #[serde(default)]
    pub ran: bool,
}

/// Errors that keep a guest from arriving here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The manifest cannot be parsed.
    #[error("the source's manifest is malformed: {0}")]
    Manifest(String),
    /// A text of the manifest would be more than one value on QEMU's command line, or would leave
    /// the runner's directory.
    #[error(
        "the source's description is refused: {value:?} of {member} is not {rule}. It was not written by a runner of this project"
    )]
    Text {
        /// Member of the manifest that has the text.
        member: &'static str,
        /// First 100 characters of the text.
        value: String,
        /// Rule that the text breaks.
        rule: &'static str,
    },
    /// The target's QEMU is older than the source's.
    #[error("QEMU {here} here is older than {there} at the source")]
    Older {
        /// Version of the target's QEMU.
        here: String,
        /// Version of the source's QEMU.
        there: String,
    },
    /// The target cannot use the guest's accelerator.
    #[error("the guest runs with {there}, and this node has only {here}")]
    Accel {
        /// Accelerator that the target uses.
        here: &'static str,
        /// Accelerator that the guest runs with.
        there: &'static str,
    },
    /// The guest writes to drives that are only on the source's machine.
    #[error(
        "the guest writes to {0}, and a disk other than its root disk is not copied to another machine: \
         end the VM there and start it here"
    )]
    Written(String),
    /// The VM has disks on claims, which only one pod may use at a time.
    #[error(
        "the VM has disks on claims, which one pod writes at a time: delete its pod, and it starts on a node where they can be mounted"
    )]
    Claims,
    /// The files of a drive have changed since the guest started.
    #[error(
        "the files of {0} differ from those of the guest: a secret or config map has changed since it started"
    )]
    Files(String),
    /// The drives cannot be made.
    #[error("{0}")]
    Drives(String),
    /// The source would have to connect to a TCP port that every user of the machine can reach.
    #[error(
        "the guest's runner is an older one, which sends a guest only to ports that every user of this machine may dial: \
         restart the guest, and try again"
    )]
    NoSockets,
    /// The target's pod has no interface in the overlay network.
    #[error(
        "the guest has an interface in the overlay network, and the pod here has none: give its VM an address there, by the controller's options, and try again"
    )]
    NoOverlay,
    /// The target's pod has no passt.
    #[error(
        "the guest is connected by passt, and here guests are connected by QEMU's user network: \
         start bellows up with --guest-network=passt"
    )]
    NoPasst,
    /// The target has another base image.
    #[error("image {here} here is not the guest's, {there}")]
    Image {
        /// Digest of the target's image, by the name of its directory.
        here: String,
        /// Digest of the image under the guest's disk, from the manifest.
        there: String,
    },
}

/// Major and minor number of a version such as `10.0.2`. A text without numbers is older than all.
#[must_use]
pub fn version(text: &str) -> (u32, u32) {
    let mut parts = text.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

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

/// Rule for names of machines, devices, their properties and files.
const WORD: (&str, fn(&str) -> bool) = ("a word of letters, digits, '.', '_' and '-'", |text| {
    let is_of = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !text.is_empty() && text.bytes().all(is_of)
});

const ADDRESS: (&str, fn(&str) -> bool) = ("a hardware address", |text| {
    let is_pair = |pair: &str| pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.split(':').count() == 6 && text.split(':').all(is_pair)
});

impl Manifest {
    /// Checks that each text which becomes part of a QEMU option or file name is one value there.
    /// The manifest comes from another node's runner, and that node may be compromised.
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

    /// Whether a QEMU of this version can receive the guest: it knows the machine type if it is not
    /// older. Bug-fix releases of one minor version receive each other's guests.
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

    /// Whether all drives can be had where the source's files are not: drives of files are built
    /// again, and the guest's writes are lost.
    ///
    /// # Errors
    /// [`Unfit::Written`] with all drives that cannot.
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
    /// The CPU in a slot, if it can be unplugged.
    #[must_use]
    pub fn of(slot: &CpuSlot) -> Option<Self> {
        Some(Self {
            driver: slot.driver.clone(),
            id: slot.removable()?.to_owned(),
            props: slot.props.clone(),
        })
    }

    /// Value of QEMU's `-device` for the CPU.
    #[must_use]
    pub fn device(&self) -> String {
        let mut text = format!("{},id={}", self.driver, self.id);
        for (key, value) in &self.props {
            text.push_str(&format!(",{key}={value}"));
        }
        text
    }
}
