//! `bellows fleet optout` and `optin`: whether a VM's guest takes part.

use clap::Args;
use protocol::fleet::KEY_ENROLLED;
use serde_json::{Value, json};

use super::args::ReasonArgs;
use super::start::action;
use crate::actions;
use crate::api::Kind;
use crate::args::VmArgs;
use crate::context::Context;
use crate::fail::Outcome;
use crate::terminal::out;

/// A VM, and why its guest stays out or takes part again.
#[derive(Debug, Clone, Args)]
pub(crate) struct EnrolArgs {
    #[command(flatten)]
    vm: VmArgs,
    #[command(flatten)]
    reason: ReasonArgs,
}

/// Writes the label of the VM. Without it the label of its namespace holds.
pub(super) async fn enrol(context: &Context, args: &EnrolArgs, takes_part: bool) -> Outcome {
    let api = context.api().await?;
    let (namespace, name) = args.vm.key();
    let label = if takes_part {
        Value::Null
    } else {
        json!("false")
    };
    let patch = json!({"metadata": {"labels": {KEY_ENROLLED: label}}});
    let what = if takes_part { "optin" } else { "optout" };
    let action = action(what, (namespace, name), "", args.reason.reason.as_deref());
    let written = api.merge(Kind::Vm, namespace, name, &patch);
    actions::recorded(context, action, written).await?;
    out(&if takes_part {
        format!("VM {namespace}/{name} takes part in rollouts")
    } else {
        format!("VM {namespace}/{name} keeps its programs: no rollout changes them")
    });
    Ok(())
}
