//! The controller's process: the two shipped cores of each VM, fed as their shells feed them.

mod movers;
mod vms;
mod watches;

use std::collections::BTreeMap;

use neonvm_controller::core::{VmCore, migration};
use serde::de::DeserializeOwned;
use serde_json::Value;

#[derive(Default)]
pub(crate) struct ControllerPart {
    epoch: u64,
    /// Place in the record of changes.
    seen: usize,
    vms: BTreeMap<usize, VmCore>,
    movers: BTreeMap<usize, migration::MigrationCore>,
    /// Migrations known, with their VM: a mover lives as long as there are any.
    moves: BTreeMap<String, usize>,
}

fn read<T: DeserializeOwned>(value: &Value) -> Option<Box<T>> {
    serde_json::from_value(value.clone()).ok().map(Box::new)
}
