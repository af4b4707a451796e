//! Waits for a state of a set.

use clap::Args;
use serde_json::Value;

use super::view::SetView;
use crate::api::{Api, Kind};
use crate::fail::{Fail, Outcome};
use crate::progress::Progress;
use crate::terminal::out;
use crate::vm_state::POLL_INTERVAL;

/// Whether and how long to wait.
#[derive(Debug, Clone, Args)]
pub(super) struct WaitArgs {
    /// Wait until all members are up
    #[arg(long)]
    wait: bool,
    /// Give up waiting after this many seconds
    #[arg(
        long,
        default_value_t = 1800,
        value_name = "SECONDS",
        requires = "wait"
    )]
    timeout: u64,
}

impl WaitArgs {
    pub(super) fn is_wanted(&self) -> bool {
        self.wait
    }
}

/// Waits until every member is there, up and of the desired version.
pub(super) async fn until_whole(api: &Api, key: (&str, &str), args: &WaitArgs) -> Outcome {
    let (namespace, name) = key;
    let view = until(api, key, args.timeout, |view| match halted(view) {
        Some(fail) => Err(fail),
        None => Ok(view.is_whole()),
    })
    .await?;
    out(&format!(
        "VM set {namespace}/{name} has {} of {} members up, version {}",
        view.ready,
        view.replicas,
        view.version.unwrap_or(0)
    ));
    Ok(())
}

/// The failure of a command that waits for an upgrade which has halted.
fn halted(view: &SetView) -> Option<Fail> {
    let why = view.upgrade.as_ref()?.halted.as_ref()?;
    let (namespace, name) = (&view.namespace, &view.name);
    let fail = Fail::not_so(format!(
        "the upgrade of {namespace}/{name} has halted: {why}"
    ));
    Some(
        fail.rule("an upgrade stops at the first member that is not ready in time")
            .fix(format!(
                "take it back: bellows vmset undo {namespace}/{name}"
            )),
    )
}

/// Reads the set until `holds`.
pub(super) async fn until(
    api: &Api,
    (namespace, name): (&str, &str),
    timeout_s: u64,
    holds: impl Fn(&SetView) -> Outcome<bool>,
) -> Outcome<SetView> {
    let mut progress = Progress::new();
    loop {
        let set: Value = api.get(Kind::VmSet, namespace, name).await?;
        let view = SetView::of(&set);
        if view.is_observed && holds(&view)? {
            progress.clear();
            return Ok(view);
        }
        if progress.elapsed().as_secs() >= timeout_s {
            let what = format!(
                "VM set {namespace}/{name} has {} of {} members up after {timeout_s} s",
                view.ready, view.replicas
            );
            return Err(Fail::try_again(what).fix(format!(
                "see which are not: bellows vmset get {namespace}/{name}; and whether the controller runs: bellows status"
            )));
        }
        progress.say(&format!(
            "waiting for {namespace}/{name}: {} of {} members up",
            view.ready, view.replicas
        ));
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
