//! `bellows vmset upgrade` and `undo`.

use clap::Args;
use serde_json::json;

use super::orders::{self, SetOrder, set_version};
use super::wait::{WaitArgs, until, until_whole};
use crate::actions;
use crate::args::SetArgs;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::terminal::out;

/// Longest time until the controller has numbered a template, seconds.
const NUMBERED_WITHIN_S: u64 = 30;

/// Bring the members to the newest template.
///
/// One member after the other is replaced, each when the one before is ready. The upgrade stops at
/// the first member that does not come up in time. Members' disks go with them.
#[derive(Debug, Clone, Args)]
pub(crate) struct UpgradeArgs {
    #[command(flatten)]
    set: SetArgs,
    /// Put this image into the template first
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Why; it stands in the history of one machine
    #[arg(long, value_name = "TEXT", value_parser = actions::reason)]
    reason: Option<String>,
    #[command(flatten)]
    wait: WaitArgs,
}

/// Take an upgrade back.
///
/// One that has not ended is taken back to the version that new members get. After a whole upgrade
/// the members get the version before it. They are replaced as by an upgrade.
#[derive(Debug, Clone, Args)]
pub(crate) struct UndoArgs {
    #[command(flatten)]
    set: SetArgs,
    /// Why; it stands in the history of one machine
    #[arg(long, value_name = "TEXT", value_parser = actions::reason)]
    reason: Option<String>,
    #[command(flatten)]
    wait: WaitArgs,
}

pub(super) async fn upgrade(context: &Context, args: &UpgradeArgs) -> Outcome {
    let api = context.api().await?;
    let order = SetOrder::new(args.set.key(), args.reason.as_deref());
    if let Some(image) = &args.image {
        let disk = json!({"rootDisk": {"image": image}});
        let patch = json!({"spec": {"template": {"spec": {"guest": disk}}}});
        let action = ("vmset image", image.clone());
        order.patch(context, &api, action, patch).await?;
    }
    let key = args.set.key();
    let view = until(&api, key, NUMBERED_WITHIN_S, |view| {
        Ok(view.newest.is_some())
    })
    .await?;
    let to = view.newest.unwrap_or(0);
    if view.desired_version == Some(to) && view.version == Some(to) {
        let what = format!(
            "VM set {}/{} has its newest version {to} already",
            key.0, key.1
        );
        return Err(Fail::not_so(what)
            .fix("change its template first: --image IMAGE, or kubectl edit vmset"));
    }
    let action = ("vmset upgrade", "the newest version");
    let lines = set_version(context, &api, &order, action, to).await?;
    lines.iter().for_each(|line| out(line));
    if args.wait.is_wanted() {
        return until_whole(&api, key, &args.wait).await;
    }
    Ok(())
}

pub(super) async fn undo(context: &Context, args: &UndoArgs) -> Outcome {
    let order = SetOrder::new(args.set.key(), args.reason.as_deref());
    let lines = orders::undo(context, &order).await?;
    lines.iter().for_each(|line| out(line));
    if args.wait.is_wanted() {
        let api = context.api().await?;
        return until_whole(&api, args.set.key(), &args.wait).await;
    }
    Ok(())
}
