//! `bellows vm delete`: prints what is lost, deletes the VM and waits until it is gone.

use clap::Args;
use protocol::annotations::ANNOTATION_KEEP_DISK;
use serde_json::{Value, json};

use crate::api::{Api, Kind};
use crate::args::VmArgs;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::progress::Progress;
use crate::terminal::{ask, can_ask, err, out};
use crate::vm_state::{POLL_INTERVAL, has_persistent_disk};

/// Delete a VM and wait until it is gone. Its root disk goes with it.
#[derive(Debug, Clone, Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    vm: VmArgs,
    /// Keep the root disk; `vm create --use-disk` goes on with it
    #[arg(long)]
    keep_disk: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Do not wait
    #[arg(long)]
    no_wait: bool,
    /// Give up waiting after this many seconds
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    timeout: u64,
}

pub(crate) async fn delete(context: &Context, args: &DeleteArgs) -> Outcome {
    let (namespace, name) = args.vm.key();
    let api = context.api().await?;
    let vm = api.get(Kind::Vm, namespace, name).await?;
    let persists = has_persistent_disk(&vm);
    if args.keep_disk && !persists {
        return Err(Fail::usage(format!(
            "VM {namespace}/{name} has no disk that could be kept"
        ))
        .rule("only a VM with rootDisk.persistent has a disk that outlives its guest")
        .fix("delete it without --keep-disk"));
    }
    let loss = loss(namespace, name, &vm, args.keep_disk);
    if can_ask() && !args.yes {
        if !ask(&format!("{loss}. Delete the VM?")) {
            return Err(Fail::not_so(format!(
                "VM {namespace}/{name} is not deleted"
            )));
        }
    } else {
        err(&loss);
    }
    if args.keep_disk {
        let patch = json!({"metadata": {"annotations": {ANNOTATION_KEEP_DISK: "true"}}});
        api.merge(Kind::Vm, namespace, name, &patch).await?;
    }
    api.delete(Kind::Vm, namespace, name).await?;
    if args.no_wait {
        out(&format!("VM {namespace}/{name} is being deleted"));
        return Ok(());
    }
    wait_until_gone(&api, namespace, name, args.timeout).await?;
    out(&format!("VM {namespace}/{name} deleted"));
    if args.keep_disk {
        err(&format!(
            "its disk is kept; go on with it: bellows vm create {name} -n {namespace} --use-disk"
        ));
    }
    Ok(())
}

/// What a deletion removes, in one sentence.
fn loss(namespace: &str, name: &str, vm: &Value, keeps_disk: bool) -> String {
    let vm_name = format!("VM {namespace}/{name}");
    if keeps_disk {
        format!("{vm_name} goes and its root disk is kept")
    } else if let Some(claim) = root_claim(vm) {
        format!("{vm_name} goes, and its root disk stays on the claim {claim}")
    } else if has_persistent_disk(vm) {
        format!(
            "{vm_name} and its root disk go; the disk can be put back for a week from trash/ of the state directory"
        )
    } else {
        format!("{vm_name} goes with everything on its disks")
    }
}

/// Name of the claim that holds the root disk.
fn root_claim(vm: &Value) -> Option<&str> {
    vm["spec"]["guest"]["rootDisk"]["persistentVolumeClaim"]["claimName"].as_str()
}

async fn wait_until_gone(api: &Api, namespace: &str, name: &str, timeout_s: u64) -> Outcome {
    let mut progress = Progress::new();
    loop {
        match api.get(Kind::Vm, namespace, name).await {
            Ok(_) => {}
            Err(fail) if fail.exit() == daemon_kit::exit::Exit::NotSo => break,
            Err(fail) => return Err(fail),
        }
        if progress.elapsed().as_secs() >= timeout_s {
            return Err(Fail::try_again(format!(
                "VM {namespace}/{name} is still there after {timeout_s} s"
            ))
            .rule("its finalizers go when controller and node driver have seen the deletion")
            .fix("see whether both are ready: bellows status"));
        }
        progress.say(&format!("waiting for {namespace}/{name} to go"));
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    progress.clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletion_lists_the_loss_first() {
        let vm =
            |persistent: bool| json!({"spec": {"guest": {"rootDisk": {"persistent": persistent}}}});
        assert!(loss("a", "pg", &vm(true), false).contains("root disk go"));
        let mut claimed = vm(true);
        let claim = json!({"claimName": "pg-root"});
        claimed["spec"]["guest"]["rootDisk"]["persistentVolumeClaim"] = claim;
        assert!(loss("a", "pg", &claimed, false).contains("stays on the claim pg-root"));
        assert!(loss("a", "pg", &vm(true), true).contains("is kept"));
        assert!(loss("a", "pg", &vm(false), false).contains("everything on its disks"));
    }
}
