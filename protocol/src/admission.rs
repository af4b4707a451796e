//! Admission of VM objects: the form they are kept in, and the rules a schema cannot say. Pure
//! functions over JSON.
//!
//! The same functions serve the embedded API server in the request path and a webhook in front of a
//! real one. Source: docs/compatibility/neonvm.md §1.1 (forms) and §1.9 (rules).

pub mod claims;
pub mod disks;
mod field_error;
mod kept;
mod members;
mod normalise;
mod ports;
mod ranges;
mod size;

use serde_json::Value;

use claims::check_claims;
pub use disks::RESERVED_DISK_NAMES;
use disks::check_disks;
pub use field_error::{FieldError, FieldErrorKind};
use kept::check_kept;
use members::{at, at_mut};
pub use normalise::normalise;
use ports::check_port_names;
pub use ports::warnings;
use ranges::check_ranges;
pub use size::{AGENT_ACCOUNT, AGENT_FIELD_MANAGER, Writer, settle_size};

use crate::quantity::Quantity;

/// Members of a VirtualMachine's spec that never change. A slot size changed under a running guest
/// would change its memory without a step, so it is fixed here too although the deployed webhook
/// lets it pass.
const IMMUTABLE: [&str; 17] = [
    "guest.cpus.min",
    "guest.cpus.max",
    "guest.memorySlotSize",
    "guest.memorySlots.min",
    "guest.memorySlots.max",
    "guest.rootDisk",
    "guest.command",
    "guest.args",
    "guest.env",
    "guest.ports",
    "guest.settings",
    "podResources",
    "initScript",
    "disks",
    "enableAcceleration",
    "enableSSH",
    "enableNetworkMonitoring",
];
/// Members that may go from absent to a value, never afterwards.
const SET_ONCE: [&str; 2] = ["targetArchitecture", "cpuScalingMode"];

/// Checks a new, normalised and defaulted object.
///
/// # Errors
/// Every broken rule, in the order the deployed webhook checks them.
pub fn validate_create(kind: &str, object: &Value) -> Result<(), Vec<FieldError>> {
    let mut errors = Vec::new();
    if kind == "VirtualMachine" {
        check_ranges(object, true, &mut errors);
        check_disks(object, &mut errors);
        check_claims(object, &mut errors);
        check_port_names(object, &mut errors);
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors)
    }
}

/// Checks a change between two normalised and defaulted states of an object.
///
/// # Errors
/// Every broken rule, in the order of the checks.
pub fn validate_update(kind: &str, old: &Value, new: &Value) -> Result<(), Vec<FieldError>> {
    let mut errors = Vec::new();
    match kind {
        "VirtualMachine" => {
            let grown = grown_disk(old, new);
            let old = grown.as_ref().unwrap_or(old);
            for member in IMMUTABLE {
                check_kept(old, new, &format!("spec.{member}"), false, &mut errors);
            }
            for member in SET_ONCE {
                check_kept(old, new, &format!("spec.{member}"), true, &mut errors);
            }
            check_ranges(new, false, &mut errors);
        }
        "VirtualMachineMigration" => check_kept(old, new, "spec", false, &mut errors),
        _ => {}
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors)
    }
}

/// The old object with the new size of a root disk that stays, where that is a growth: the one
/// change such a disk may see.
fn grown_disk(old: &Value, new: &Value) -> Option<Value> {
    const SIZE: &str = "spec.guest.rootDisk.size";
    let bytes = |object: &Value| Quantity::from_json(at(object, SIZE)).ok()?.as_u64();
    let stays = at(old, "spec.guest.rootDisk.persistent") == true;
    let grows = bytes(new)? > bytes(old).unwrap_or(0);
    if !stays || !grows {
        return None;
    }
    let mut grown = old.clone();
    at_mut(&mut grown, "spec.guest.rootDisk")?["size"] = at(new, SIZE).clone();
    Some(grown)
}

#[cfg(test)]
mod tests;
