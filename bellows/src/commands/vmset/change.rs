//! `bellows vmset scale` and `delete`.

use clap::Args;

use super::orders::{self, SetOrder};
use super::view::SetView;
use super::wait::{WaitArgs, until_whole};
use crate::actions;
use crate::api::Kind;
use crate::args::SetArgs;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::progress::Progress;
use crate::terminal::{ask, can_ask, err, out};
use crate::vm_state::POLL_INTERVAL;

/// Change the number of members.
///
/// New members get the lowest free numbers; those with the highest numbers go first, with their
/// disks. The set's rates bound the speed.
#[derive(Debug, Clone, Args)]
pub(crate) struct ScaleArgs {
    #[command(flatten)]
    set: SetArgs,
    /// Number of members
    #[arg(value_name = "COUNT")]
    replicas: u32,
    /// Why; it stands in the history of one machine
    #[arg(long, value_name = "TEXT", value_parser = actions::reason)]
    reason: Option<String>,
    #[command(flatten)]
    wait: WaitArgs,
}

/// Delete a set and its members. Their disks go with them.
#[derive(Debug, Clone, Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    set: SetArgs,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Do not wait until the members are gone
    #[arg(long)]
    no_wait: bool,
    /// Give up waiting after this many seconds
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    timeout: u64,
}

pub(super) async fn scale(context: &Context, args: &ScaleArgs) -> Outcome {
    let order = SetOrder::new(args.set.key(), args.reason.as_deref());
    let lines = orders::scale(context, &order, args.replicas).await?;
    lines.iter().for_each(|line| out(line));
    if args.wait.is_wanted() {
        let api = context.api().await?;
        return until_whole(&api, args.set.key(), &args.wait).await;
    }
    Ok(())
}

pub(super) async fn delete(context: &Context, args: &DeleteArgs) -> Outcome {
    let api = context.api().await?;
    let (namespace, name) = args.set.key();
    let set = api.get(Kind::VmSet, namespace, name).await?;
    let count = SetView::of(&set).members;
    let loss = format!("VM set {namespace}/{name} goes with its {count} members and their disks");
    if can_ask() && !args.yes {
        if !ask(&format!("{loss}. Delete the set?")) {
            let what = format!("VM set {namespace}/{name} is not deleted");
            return Err(Fail::not_so(what));
        }
    } else {
        err(&loss);
    }
    api.delete(Kind::VmSet, namespace, name).await?;
    if args.no_wait {
        out(&format!("VM set {namespace}/{name} is being deleted"));
        return Ok(());
    }
    let uid = set["metadata"]["uid"].as_str().unwrap_or_default();
    let query = format!("?labelSelector={}%3D{name}", protocol::policy::LABEL_SET);
    let mut progress = Progress::new();
    loop {
        let vms = api.list_by(Kind::Vm, Some(namespace), &query).await?;
        let owners = |vm: &serde_json::Value| vm["metadata"]["ownerReferences"].clone();
        let of_set = vms.iter().filter(|vm| {
            let owners = owners(vm);
            let mut owners = owners.as_array().into_iter().flatten();
            owners.any(|owner| owner["uid"] == uid)
        });
        let left = of_set.count();
        if left == 0 {
            progress.clear();
            out(&format!("VM set {namespace}/{name} deleted"));
            return Ok(());
        }
        if progress.elapsed().as_secs() >= args.timeout {
            let what = format!(
                "{left} members of {namespace}/{name} are still there after {} s",
                args.timeout
            );
            return Err(Fail::try_again(what)
                .rule("a member goes when controller and node driver have seen the deletion")
                .fix("see whether both are ready: bellows status"));
        }
        progress.say(&format!("waiting for {left} members to go"));
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
