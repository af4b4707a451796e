//! Watches the VM objects. Records when a size was seen, and plays the controller, which copies the
//! wanted size into the status.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures::StreamExt as _;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::runtime::watcher::{self, Event, watcher};
use protocol::units::MilliCpu;
use protocol::vm::VirtualMachine;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};

/// Compute unit, milli-CPU.
const UNIT_MILLI_CPU: u32 = 250;
/// Status patches under way at once.
const WORKERS: usize = 8;
/// Pause after a failed watch.
const RETRY: Duration = Duration::from_millis(200);
/// Changes that wait for a worker; more than there are VMs.
const QUEUE: usize = 4096;

/// A size of a VM object and when it was first seen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub units: u32,
    pub at: Instant,
}

/// The sizes of all VMs.
#[derive(Clone, Default)]
pub(super) struct Sizes {
    known: Arc<Mutex<BTreeMap<String, Seen>>>,
    changed: Arc<Notify>,
}

impl Sizes {
    /// The newest size of a VM.
    pub(super) fn of(&self, vm: &str) -> Option<Seen> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(vm).copied()
    }

    fn note(&self, vm: &str, units: u32) -> bool {
        let at = Instant::now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let old = known.get(vm).map(|seen| seen.units);
        if old != Some(units) {
            known.insert(vm.to_owned(), Seen { units, at });
        }
        drop(known);
        self.changed.notify_waiters();
        old != Some(units)
    }

    /// Waits until every VM is as wanted; the time at which the last one became so.
    pub(super) async fn until(
        &self,
        what: &str,
        vms: &[String],
        patience: Duration,
        is_so: impl Fn(u32) -> bool,
    ) -> Result<Instant> {
        let deadline = Instant::now() + patience;
        loop {
            let changed = self.changed.notified();
            let seen: Vec<Option<Seen>> = vms.iter().map(|vm| self.of(vm)).collect();
            let missing = seen
                .iter()
                .filter(|seen| !seen.is_some_and(|seen| is_so(seen.units)))
                .count();
            if missing == 0 {
                let last = seen.iter().flatten().map(|seen| seen.at).max();
                return Ok(last.unwrap_or_else(Instant::now));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if tokio::time::timeout(left, changed).await.is_err() {
                bail!(
                    "{what}: {missing} of {} VMs not within {patience:?}",
                    vms.len()
                );
            }
        }
    }

    /// Follows until dropped with the runtime.
    pub(super) fn follow(&self, api: Api<DynamicObject>) {
        let sizes = self.clone();
        let workers: Vec<mpsc::Sender<(String, Value)>> = (0..WORKERS)
            .map(|_| {
                let (to, from) = mpsc::channel(QUEUE);
                tokio::spawn(write_status(api.clone(), from));
                to
            })
            .collect();
        tokio::spawn(async move {
            let mut events = std::pin::pin!(watcher(api, watcher::Config::default()));
            while let Some(event) = events.next().await {
                let object = match event {
                    Ok(Event::Apply(object) | Event::InitApply(object)) => object,
                    Ok(_) => continue,
                    Err(_) => {
                        // A client whose runtime ends fails at once, for ever.
                        tokio::time::sleep(RETRY).await;
                        continue;
                    }
                };
                let name = object.metadata.name.clone().unwrap_or_default();
                let Some((units, status)) = read(&object) else {
                    continue;
                };
                let is_new = sizes.note(&name, units);
                // Always the same worker for a VM, so that its changes stay in order.
                let worker = name.bytes().map(usize::from).sum::<usize>() % WORKERS;
                if is_new && workers[worker].send((name, status)).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// The wanted size of an object in units, and the status of a VM that has it.
fn read(object: &DynamicObject) -> Option<(u32, Value)> {
    let vm: VirtualMachine = serde_json::from_value(serde_json::to_value(object).ok()?).ok()?;
    let MilliCpu(milli) = vm.spec.guest.cpus.r#use;
    let slots = vm.spec.guest.memory_slots.r#use;
    let status = json!({
        "cpus": MilliCpu(milli).to_quantity_string(),
        "memorySize": format!("{slots}Gi"),
        "currentRevision": vm.spec.target_revision,
    });
    Some((milli / UNIT_MILLI_CPU, status))
}

async fn write_status(api: Api<DynamicObject>, mut changes: mpsc::Receiver<(String, Value)>) {
    while let Some((name, status)) = changes.recv().await {
        let patch = Patch::Merge(json!({ "status": status }));
        // The next change writes again; a lost status changes no figure.
        let _ = api
            .patch_status(&name, &PatchParams::default(), &patch)
            .await;
    }
}
