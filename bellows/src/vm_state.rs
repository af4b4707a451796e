//! State of a VM as its object shows it.

use std::time::Duration;

use serde_json::Value;

use crate::api::{Api, Kind};
use crate::fail::{Fail, Outcome};
use crate::progress::Progress;
use crate::terminal::out;

/// Interval at which a wait reads the object.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(300);

pub(crate) async fn wait_until_running(
    api: &Api,
    namespace: &str,
    name: &str,
    timeout_s: u64,
) -> Outcome {
    let mut progress = Progress::new();
    loop {
        let vm = api.get(Kind::Vm, namespace, name).await?;
        let phase = vm["status"]["phase"].as_str().unwrap_or_default();
        match phase {
            "Running" => {
                progress.clear();
                let address = vm["status"]["podIP"].as_str().unwrap_or_default();
                out(&format!("VM {namespace}/{name} runs at {address}"));
                return Ok(());
            }
            "Failed" | "Succeeded" if vm["spec"]["restartPolicy"] == "Never" => {
                return Err(
                    Fail::not_so(format!("VM {namespace}/{name} ended: {phase}")).fix(format!(
                        "see its last words: bellows console {namespace}/{name} --log"
                    )),
                );
            }
            _ => {}
        }
        if progress.elapsed().as_secs() >= timeout_s {
            return Err(Fail::try_again(format!(
                "VM {namespace}/{name} is {phase:?} after {timeout_s} s"
            ))
            .fix(format!(
                "see what it does: bellows console {namespace}/{name} --log, and bellows status"
            )));
        }
        progress.say(&format!(
            "waiting for {namespace}/{name}: {}",
            if phase.is_empty() { "New" } else { phase }
        ));
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Whether the root disk lives as long as the VM.
pub(crate) fn has_persistent_disk(vm: &Value) -> bool {
    vm["spec"]["guest"]["rootDisk"]["persistent"] == true
}
