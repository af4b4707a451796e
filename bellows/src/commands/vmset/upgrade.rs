//! `bellows vmset upgrade` and `undo`.

use clap::Args;
use serde_json::{Value, json};

use super::view::SetView;
use super::wait::{WaitArgs, until, until_whole};
use crate::api::{Api, Kind};
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
    #[command(flatten)]
    wait: WaitArgs,
}

pub(super) async fn upgrade(context: &Context, args: &UpgradeArgs) -> Outcome {
    let api = context.api().await?;
    let key = args.set.key();
    if let Some(image) = &args.image {
        let disk = json!({"rootDisk": {"image": image}});
        let patch = json!({"spec": {"template": {"spec": {"guest": disk}}}});
        api.merge(Kind::VmSet, key.0, key.1, &patch).await?;
    }
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
    change(&api, key, to, &args.wait).await
}

pub(super) async fn undo(context: &Context, args: &UndoArgs) -> Outcome {
    let api = context.api().await?;
    let key = args.set.key();
    let set: Value = api.get(Kind::VmSet, key.0, key.1).await?;
    let Some(to) = version_before(&SetView::of(&set)) else {
        let what = format!("VM set {}/{} has no version to go back to", key.0, key.1);
        return Err(Fail::not_so(what).rule("an upgrade must have begun before"));
    };
    change(&api, key, to, &args.wait).await
}

/// Version that an undo goes back to.
fn version_before(view: &SetView) -> Option<u32> {
    if view.desired_version == view.version && view.upgrade.is_none() {
        view.previous
    } else {
        view.version
    }
}

async fn change(api: &Api, key: (&str, &str), to: u32, wait: &WaitArgs) -> Outcome {
    let patch = json!({"spec": {"version": to}});
    api.merge(Kind::VmSet, key.0, key.1, &patch).await?;
    out(&format!(
        "members of VM set {}/{} get version {to}, one after the other",
        key.0, key.1
    ));
    if wait.is_wanted() {
        return until_whole(api, key, wait).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: V16
    #[test]
    fn v16_undo_goes_back_to_what_members_had() {
        let view = |status: Value, version: u32| {
            SetView::of(&json!({"spec": {"version": version}, "status": status}))
        };
        let under_way = json!({"version": 1, "newest": 2, "upgrade": {"to": 2}});
        assert_eq!(version_before(&view(under_way, 2)), Some(1));
        let whole = json!({"version": 2, "previous": 1, "newest": 2});
        assert_eq!(version_before(&view(whole, 2)), Some(1));
        let first = json!({"version": 1, "newest": 1});
        assert_eq!(version_before(&view(first, 1)), None);
    }
}
