//! Objects to create so that a store has the objects of a running guest.

use std::path::Path;

use daemon_kit::http_client::over_unix;
use hyper::Method;
use protocol::annotations::ANNOTATION_ADOPTS;
use protocol::quantity::Quantity;
use protocol::runner::{RunnerPhase, RunnerState};
use protocol::units::{Bytes, MilliCpu};
use protocol::vm::{API_VERSION, VmSpec};
use serde_json::{Value, json};

use super::orphans::Orphan;
use super::saved::Saved;
use crate::config::RunnerConfig;
use crate::core::paths::Paths;
use crate::shell::record::{Record, read_json};

/// Longest wait for the runner's answer about its guest's size.
const ANSWER_LIMIT: std::time::Duration = std::time::Duration::from_secs(5);

/// Objects of one guest. The first pod of the VM adopts the guest.
#[derive(Debug, Clone, PartialEq)]
pub struct Adoption {
    /// Name of the VM, without its namespace.
    pub name: String,
    /// Object of the VM, with the size that the guest has now.
    pub vm: Value,
    /// Secrets that the VM owned or its pod mounts.
    pub secrets: Vec<Value>,
    /// Names of the secrets that the VM is to own.
    pub owned_secrets: Vec<String>,
    /// Config maps that its pod mounts.
    pub config_maps: Vec<Value>,
    /// Whether labels, annotations and secrets are lost: only the VM's spec was found.
    pub is_partial: bool,
}

/// Errors that keep a guest from being adopted.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// The configuration in this directory is missing or cannot be read.
    #[error("{0} holds no configuration of a VM that can be read")]
    NoConfig(String),
    /// The guest has ended, or its size is not known.
    #[error("the guest does not run")]
    NotRunning,
}

/// Builds the objects of an orphan.
///
/// # Errors
/// [`AdoptError`].
pub async fn adoption(state_dir: &Path, orphan: &Orphan) -> Result<Adoption, AdoptError> {
    let paths = Paths::new(&orphan.dir);
    let no_config = || AdoptError::NoConfig(orphan.dir.display().to_string());
    let config: Option<RunnerConfig> = read_json(&paths.config()).ok().flatten();
    let config = config.ok_or_else(no_config)?;
    let (cpu, memory) = size(&paths).await.ok_or(AdoptError::NotRunning)?;
    let saved = Saved::read(state_dir, &orphan.dir);
    let is_partial = saved.is_none();
    let saved = saved.unwrap_or_else(|| Saved {
        vm: json!({
            "apiVersion": API_VERSION,
            "kind": "VirtualMachine",
            "metadata": {"namespace": config.namespace, "name": config.vm},
            "spec": config.spec,
        }),
        secrets: Vec::new(),
        owned_secrets: Vec::new(),
        config_maps: Vec::new(),
    });
    Ok(Adoption {
        name: config.vm,
        vm: complete(saved.vm, &config.spec, orphan, cpu, memory),
        secrets: saved.secrets,
        owned_secrets: saved.owned_secrets,
        config_maps: saved.config_maps,
        is_partial,
    })
}

/// The guest's size: from its runner, else from the last order.
async fn size(paths: &Paths) -> Option<(MilliCpu, Bytes)> {
    let answer = over_unix(&paths.control(), Method::GET, "/v1/state", "", ANSWER_LIMIT).await;
    if let Ok(answer) = answer {
        let state: RunnerState = serde_json::from_slice(&answer).ok()?;
        let is_alive = state.phase != RunnerPhase::Exited;
        let memory = Bytes(state.memory.base.0 + state.memory.plugged.0);
        return is_alive.then_some((state.cpus.limit, memory));
    }
    let record: Record = read_json(&paths.record()).ok().flatten()?;
    let order = record.order.as_ref()?;
    let is_alive = record.qemu.as_ref().is_some_and(|qemu| qemu.is_alive());
    is_alive.then_some((order.cpu, order.memory))
}

/// The VM with its guest's size, and the annotation for its first pod.
fn complete(mut vm: Value, spec: &VmSpec, orphan: &Orphan, cpu: MilliCpu, memory: Bytes) -> Value {
    let guest = &spec.guest;
    let cpu = cpu.clamp(guest.cpus.min, guest.cpus.max);
    let slots = memory.0.div_ceil(guest.slot_bytes().max(1));
    let slots = i32::try_from(slots)
        .unwrap_or(i32::MAX)
        .clamp(guest.memory_slots.min, guest.memory_slots.max);
    vm["spec"]["guest"]["cpus"]["use"] = json!(Quantity::from_milli(u64::from(cpu.0)));
    vm["spec"]["guest"]["memorySlots"]["use"] = json!(slots);
    if let Some(spec) = vm["spec"].as_object_mut() {
        spec.remove("targetRevision");
    }
    vm["metadata"]["annotations"][ANNOTATION_ADOPTS] =
        json!(format!("{}/{}", orphan.pod, orphan.uid));
    vm
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adopted_vm_has_the_size_of_its_guest_within_its_bounds() {
        let guest = json!({"cpus": {"min": "250m", "use": "250m", "max": 2}, "memorySlotSize": "1Gi",
            "memorySlots": {"min": 1, "use": 1, "max": 4}, "rootDisk": {"image": "x"}});
        let spec: VmSpec = serde_json::from_value(json!({"guest": guest})).unwrap();
        let vm = json!({"metadata": {"name": "pg"}, "spec": {"guest": guest, "targetRevision": {"value": 3}}});
        let orphan = Orphan {
            namespace: "default".into(),
            vm: "pg".into(),
            pod: "pg-x".into(),
            uid: "u".into(),
            dir: "/s/vms/default_pg-x".into(),
        };
        let adopted =
            |cpu, gib| complete(vm.clone(), &spec, &orphan, MilliCpu(cpu), Bytes::gib(gib));
        let grown = adopted(1500, 3);
        assert_eq!(grown["spec"]["guest"]["cpus"]["use"], "1500m");
        assert_eq!(grown["spec"]["guest"]["memorySlots"]["use"], 3);
        assert_eq!(
            grown["metadata"]["annotations"][ANNOTATION_ADOPTS],
            "pg-x/u"
        );
        assert!(grown["spec"].get("targetRevision").is_none());
        let beyond = adopted(9000, 9);
        assert_eq!(beyond["spec"]["guest"]["cpus"]["use"], "2");
        assert_eq!(beyond["spec"]["guest"]["memorySlots"]["use"], 4);
    }
}
