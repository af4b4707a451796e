//! `bellows fleet rollout`: a version, from its file to a deployment.

use clap::{Args, Subcommand};
use fleet_store::deployment_object;
use protocol::fleet::{DeploymentKind, DeploymentSpec};
use protocol::parts::PartName;

use super::args::{ReasonArgs, SpecArgs, TimesArgs, VersionArgs};
use super::define::Definition;
use super::runners::{self, RunnerArgs};
use super::start::{KeyArgs, Start, action, begin};
use super::watch::{WatchArgs, follow};
use crate::actions;
use crate::context::Context;
use crate::fail::Outcome;
use crate::output::{Format, print_value};
use crate::plugin;
use crate::terminal::out;

/// Roll a version of a part out to running guests, or move guests to new runners.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum RolloutCommand {
    /// `vm-monitor`, which talks to the agent
    Monitor(Box<RolloutArgs>),
    /// `neonvmd`, which talks to the runner
    Guestd(Box<RolloutArgs>),
    /// Move guests to runners of this bellows, on one machine
    Runner(RunnerArgs),
}

/// Roll a version of a part out to running guests.
///
/// Makes or changes the environment, keeps its revision and starts a deployment. Guests change one
/// after the other, each on trial. A bad version is taken back.
#[derive(Debug, Clone, Args)]
pub(crate) struct RolloutArgs {
    #[command(flatten)]
    version: VersionArgs,
    /// Environment to use or make [default: the name of the part]
    #[arg(long, value_name = "ENV")]
    name: Option<String>,
    /// Namespace of the environment and its VMs
    #[arg(short, long, default_value_t = plugin::namespace(), value_name = "NAMESPACE")]
    namespace: String,
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    watch: WatchArgs,
    /// Check everything, print the objects as YAML and change nothing but the kept program
    #[arg(long)]
    dry_run: bool,
}

pub(super) async fn rollout(context: &Context, command: &RolloutCommand) -> Outcome {
    match command {
        RolloutCommand::Monitor(args) => of_part(context, PartName::Monitor, args).await,
        RolloutCommand::Guestd(args) => of_part(context, PartName::Guestd, args).await,
        // Its state is large, and most commands do not need it.
        RolloutCommand::Runner(args) => Box::pin(runners::rollout(context, args)).await,
    }
}

async fn of_part(context: &Context, part: PartName, args: &RolloutArgs) -> Outcome {
    let api = context.api().await?;
    let name = args.name.as_deref().unwrap_or_else(|| part.as_str());
    let key = (args.namespace.as_str(), name);
    let definition = Definition {
        key,
        part: Some(part),
        version: Some(&args.version),
        channel: None,
        spec: &args.spec,
        kind: None,
        times: &TimesArgs::default(),
    };
    let draft = definition.draft(context, &api).await?;
    let reason = args.reason.reason.as_deref();
    let id = args.key.id.as_deref();
    if args.dry_run {
        let (mut objects, revision) = draft.objects();
        let spec = DeploymentSpec {
            reason: reason.unwrap_or_default().to_owned(),
            ..DeploymentSpec::new(name, revision, DeploymentKind::User)
        };
        let of_revision = format!("{}-1", spec.revision);
        let named = id.unwrap_or(&of_revision);
        objects.push(deployment_object(key.0, named, &spec));
        return print_value(Format::Yaml, &objects);
    }
    let rolling = async {
        let defined = draft.write(&api, key).await?;
        let how = if defined.is_reused {
            "is reused"
        } else {
            "made"
        };
        out(&format!(
            "revision {}/{} {how}: {} {}",
            key.0,
            defined.revision,
            part.as_str(),
            defined.data.resolved.version
        ));
        let start = Start {
            key,
            revision: &defined.revision,
            id,
            reason,
        };
        begin(&api, &start).await
    };
    let action = action("rollout", key, &args.version.to, reason);
    let deployment = actions::recorded(context, action, rolling).await?;
    follow(&api, (key.0, &deployment), &args.watch).await
}
