//! The size wanted now, `use` of CPU and memory slots: what it is where a writer leaves it out, and
//! who makes it smaller.
//!
//! A manifest that is applied again says the size of the day it was written. Handed to the guest,
//! it would take memory away that the guest's monitor never agreed to give back. So a `use` that is
//! left out stays as stored, and of an autoscaled VM only the agent, which asks the monitor first,
//! writes a smaller one.

use serde_json::Value;

use super::members::{at, at_mut};
use crate::annotations::{ANNOTATION_BOUNDS, LABEL_ENABLED};
use crate::units::MilliCpu;

/// Account of the agent in a cluster, of the deployed one and of ours.
pub const AGENT_ACCOUNT: &str = "system:serviceaccount:kube-system:autoscaler-agent";
/// Name under which the agent writes fields (`fieldManager`). It tells the agent apart where all
/// writers have one account, as on one machine, and where the agent has an account of another name.
pub const AGENT_FIELD_MANAGER: &str = "autoscaler-agent";

/// Parts of a VM's guest that have `min`, `use` and `max`.
const SIZED: [&str; 2] = ["cpus", "memorySlots"];

/// Sender of a change to a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// The agent. The monitor has agreed to what it takes away.
    Agent,
    /// Any other sender.
    Other,
}

impl Writer {
    /// The writer by its account, where accounts differ, and by its field manager, where it named
    /// one.
    #[must_use]
    pub fn of(account: Option<&str>, field_manager: Option<&str>) -> Self {
        if account == Some(AGENT_ACCOUNT) || field_manager == Some(AGENT_FIELD_MANAGER) {
            Self::Agent
        } else {
            Self::Other
        }
    }
}

/// Completes `use` of a normalised new state. A new object that leaves it out gets `min`; a change
/// that leaves it out gets the stored value. A smaller value by another writer than the agent is
/// replaced by the stored one where the VM is autoscaled; each gives a warning for its writer. A
/// stored value above `max` gives way, because it breaks a rule.
pub fn settle_size(
    kind: &str,
    old: Option<&Value>,
    writer: Writer,
    new: &mut Value,
) -> Vec<String> {
    if kind != "VirtualMachine" {
        return Vec::new();
    }
    let is_autoscaled = new["metadata"]["labels"][LABEL_ENABLED] == "true";
    let is_held = is_autoscaled && writer == Writer::Other;
    let mut warnings = Vec::new();
    for part in SIZED {
        let path = format!("spec.guest.{part}");
        let stored = old.map_or(&Value::Null, |old| &at(old, &path)["use"]);
        let Some(size) = at_mut(new, &path).filter(|size| size.is_object()) else {
            continue;
        };
        if size["use"].is_null() {
            let first = if stored.is_null() {
                &size["min"]
            } else {
                stored
            };
            let first = first.clone();
            if !first.is_null() {
                size["use"] = first;
            }
        } else if is_held && is_shrink(stored, size) {
            warnings.push(format!(
                ".{path}.use stays {stored}: the VM is autoscaled, and only its agent makes it \
                 smaller, after the guest's monitor agreed. Leave `use` out; bound the size by the \
                 annotation {ANNOTATION_BOUNDS}"
            ));
            size["use"] = stored.clone();
        }
    }
    warnings
}

/// Whether a size is smaller than the stored one, which its own bounds would still allow.
fn is_shrink(stored: &Value, size: &Value) -> bool {
    let amounts = [&size["use"], stored, &size["max"]].map(amount);
    matches!(amounts, [Some(new), Some(stored), Some(max)] if new < stored && stored <= max)
}

/// CPU and slots alike: only amounts of one part are compared.
fn amount(value: &Value) -> Option<u32> {
    MilliCpu::from_json(value).ok().map(|amount| amount.0)
}

#[cfg(test)]
mod tests;
