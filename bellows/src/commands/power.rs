//! `bellows vm stop`, `start` and `restart`. A VM that is stopped has no pod, and keeps its object
//! and its disk.

use clap::Args;
use protocol::annotations::{ANNOTATION_POWER_STATE, POWER_STOPPED};
use serde_json::{Value, json};

use crate::api::{Api, Kind};
use crate::args::VmArgs;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::progress::Progress;
use crate::terminal::out;
use crate::vm_state::{POLL_INTERVAL, has_persistent_disk, wait_until_running};

/// A VM, and how long to wait for it.
#[derive(Debug, Clone, Args)]
pub(crate) struct StartArgs {
    #[command(flatten)]
    vm: VmArgs,
    /// Do not wait
    #[arg(long)]
    no_wait: bool,
    /// Give up waiting after this many seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
}

/// Power a VM off; its object and its disk stay, and it stays off until `vm start`.
#[derive(Debug, Clone, Args)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    to: StartArgs,
    /// Stop also a VM whose disk goes with its guest
    #[arg(short, long)]
    yes: bool,
}

/// Powers a VM off and waits until its pod is gone.
pub(crate) async fn stop(context: &Context, args: &StopArgs) -> Outcome {
    let api = context.api().await?;
    let (namespace, name) = args.to.vm.key();
    switch_off(&api, args).await?;
    if args.to.no_wait {
        out(&format!("VM {namespace}/{name} is being stopped"));
    } else {
        out(&format!(
            "VM {namespace}/{name} is stopped; start it again: bellows vm start {namespace}/{name}"
        ));
    }
    Ok(())
}

pub(crate) async fn start(context: &Context, args: &StartArgs) -> Outcome {
    let api = context.api().await?;
    switch_on(&api, args).await
}

/// Stops the VM, then starts it.
pub(crate) async fn restart(context: &Context, args: &StopArgs) -> Outcome {
    let api = context.api().await?;
    let waits = StopArgs {
        to: StartArgs {
            no_wait: false,
            ..args.to.clone()
        },
        ..args.clone()
    };
    switch_off(&api, &waits).await?;
    switch_on(&api, &args.to).await
}

async fn switch_off(api: &Api, args: &StopArgs) -> Outcome {
    let (namespace, name) = args.to.vm.key();
    let vm = api.get(Kind::Vm, namespace, name).await?;
    if !has_persistent_disk(&vm) && !args.yes {
        return Err(Fail::usage(format!(
            "VM {namespace}/{name} has a disk that is lost when its guest ends"
        ))
        .rule("only a VM with rootDisk.persistent keeps what is on its root disk")
        .fix(format!(
            "stop it all the same: bellows vm stop {namespace}/{name} --yes"
        )));
    }
    annotate(api, namespace, name, &json!(POWER_STOPPED)).await?;
    if args.to.no_wait {
        return Ok(());
    }
    let mut progress = Progress::new();
    while !is_stopped(&api.get(Kind::Vm, namespace, name).await?) {
        if progress.elapsed().as_secs() >= args.to.timeout {
            return Err(Fail::try_again(format!(
                "VM {namespace}/{name} is not off after {} s",
                args.to.timeout
            ))
            .rule("its guest gets terminationGracePeriodSeconds to power off and is ended then")
            .fix("see whether controller and node are ready: bellows status"));
        }
        progress.say(&format!("waiting for {namespace}/{name} to power off"));
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    progress.clear();
    Ok(())
}

async fn switch_on(api: &Api, args: &StartArgs) -> Outcome {
    let (namespace, name) = args.vm.key();
    annotate(api, namespace, name, &Value::Null).await?;
    if args.no_wait {
        out(&format!("VM {namespace}/{name} is being started"));
        return Ok(());
    }
    wait_until_running(api, namespace, name, args.timeout).await
}

async fn annotate(api: &Api, namespace: &str, name: &str, state: &Value) -> Outcome {
    let patch = json!({"metadata": {"annotations": {ANNOTATION_POWER_STATE: state}}});
    api.merge(Kind::Vm, namespace, name, &patch).await.map(drop)
}

/// Whether the VM has the condition that it is off on request.
pub(crate) fn is_stopped(vm: &Value) -> bool {
    let conditions = vm["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|one| one["type"] == "Stopped" && one["status"] == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vm_with_the_condition_stopped_is_stopped() {
        let vm = |status: &str| json!({"status": {"conditions": [{"type": "Stopped", "status": status}]}});
        assert!(is_stopped(&vm("True")));
        assert!(!is_stopped(&vm("False")));
        assert!(!is_stopped(&json!({})));
    }
}
