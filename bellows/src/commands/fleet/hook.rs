//! `bellows fleet hook`: the answer of a hook, in an annotation of the deployment in progress.

use clap::{Args, ValueEnum};
use protocol::fleet::Hook;
use serde_json::json;

use super::args::{EnvArgs, ReasonArgs};
use super::objects::{DEPLOYMENT, deployments_of, get_env, revisions_of};
use super::start::action;
use crate::actions;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::terminal::out;
use crate::view::fleet::running;

/// Answer a hook of the deployment in progress.
///
/// A deployment asks the hooks that its revision names in rollout.hooks. A denial halts it, and
/// guests that it changed are taken back.
#[derive(Debug, Clone, Args)]
pub(crate) struct HookArgs {
    #[command(flatten)]
    env: EnvArgs,
    /// Name of the hook
    #[arg(value_name = "HOOK")]
    hook: String,
    /// What it says
    #[arg(value_enum, value_name = "ANSWER")]
    answer: HookResponse,
    #[command(flatten)]
    reason: ReasonArgs,
}

/// What a hook says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum HookResponse {
    /// The deployment goes on.
    Allow,
    /// The deployment halts.
    Deny,
}

impl HookResponse {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

pub(super) async fn answer(context: &Context, args: &HookArgs) -> Outcome {
    let api = context.api().await?;
    let key = args.env.key();
    let env = get_env(&api, key).await?;
    let deployments = deployments_of(&api, key).await?;
    let Some(deployment) = running(&env, &deployments) else {
        let what = format!("fleet environment {}/{} rolls nothing out", key.0, key.1);
        return Err(Fail::not_so(what)
            .rule("a hook answers the deployment in progress")
            .fix(format!(
                "see what was rolled out: bellows fleet history {}",
                key.1
            )));
    };
    let revisions = revisions_of(&api, key).await?;
    let revision = revisions
        .iter()
        .find(|one| one.name == deployment.spec.revision);
    let hooks = revision.map_or(&[][..], |one| &one.data.spec.rollout.hooks);
    let Some(hook) = hooks.iter().find(|hook| hook.name == args.hook) else {
        return Err(unknown(&args.hook, &deployment.spec.revision, hooks));
    };
    let reason = args.reason.reason.as_deref();
    let text = match (args.answer, reason) {
        (HookResponse::Deny, Some(reason)) => format!("deny: {reason}"),
        (answer, _) => answer.as_str().to_owned(),
    };
    let patch = json!({"metadata": {"annotations": {hook.key(): text}}});
    let to = format!("{} {}", hook.name, args.answer.as_str());
    let action = action("hook", (key.0, &deployment.name), &to, reason);
    let written = api.merge(DEPLOYMENT, key.0, &deployment.name, &patch);
    actions::recorded(context, action, written).await?;
    out(&format!(
        "fleet deployment {}/{}: hook {to}",
        key.0, deployment.name
    ));
    Ok(())
}

fn unknown(name: &str, revision: &str, hooks: &[Hook]) -> Fail {
    let names: Vec<&str> = hooks.iter().map(|hook| hook.name.as_str()).collect();
    let fix = match names.is_empty() {
        true => {
            "name hooks in rollout.hooks of the environment, and start its next revision".into()
        }
        false => format!("name one of these: {}", names.join(", ")),
    };
    Fail::not_so(format!("{name} is no hook of {revision}"))
        .rule("a deployment asks the hooks of its revision")
        .fix(fix)
}
