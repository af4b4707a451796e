//! `bellows fleet`: versions of the programs in the guests, and their rollouts.
//!
//! The commands write objects that kubectl could write too. `bellows up` carries them out.

mod args;
mod channel;
mod define;
mod enrol;
mod env;
mod hook;
mod image;
mod instances;
mod moved;
mod objects;
mod parts;
mod plan;
mod preflight;
mod program;
mod publish;
mod release;
mod rollout;
mod runners;
mod show;
mod start;
#[cfg(test)]
mod tests;
mod watch;
mod why;
mod world;

use clap::{Args, Subcommand};
use serde_json::json;

use self::args::ListArgs;
use crate::context::Context;
use crate::fail::Outcome;
use crate::output::{Format, print_value};
use crate::terminal::{err, out};
use crate::view::fleet::{EnvView, env_table, progress_line, running};
use crate::view::parts as view;
pub(crate) use parts::add_monitor_versions;

/// Versions of the programs that run in the guests, and their rollouts.
///
/// Without a command it counts the guests by part and version, and shows each environment with its
/// deployment in progress. A part is a program of ours in the guest: the monitor or the guest's
/// daemon.
#[derive(Debug, Clone, Args)]
pub(crate) struct FleetArgs {
    #[command(subcommand)]
    command: Option<FleetCommand>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, Clone, Subcommand)]
enum FleetCommand {
    /// Roll a version of a part out to running guests
    #[command(subcommand)]
    Rollout(rollout::RolloutCommand),
    /// Bring the guests to a kept revision
    Start(start::StartArgs),
    /// End the deployment in progress
    Stop(start::StopArgs),
    /// Bring the guests back to an earlier revision
    Rollback(start::RollbackArgs),
    /// Answer a hook of the deployment in progress
    Hook(hook::HookArgs),
    /// What was rolled out in an environment, the newest first
    History(show::ShowArgs),
    /// Show who would change, in which order, and which gate would refuse; it changes nothing
    Plan(plan::PlanArgs),
    /// Why a guest runs the programs that it runs
    Why(why::WhyArgs),
    /// Environments: which VMs a part's versions are for
    #[command(subcommand)]
    Env(env::EnvCommand),
    /// Channels: names in repositories of releases, which environments follow
    #[command(subcommand)]
    Channel(channel::ChannelCommand),
    /// Releases in the repository of a channel
    #[command(subcommand)]
    Release(release::ReleaseCommand),
    /// Publish releases in a folder of signed files
    #[command(subcommand)]
    Publish(publish::PublishCommand),
    /// Check by hand that an image is signed by a key
    VerifyImage(image::VerifyImageArgs),
    /// Keep a VM out of rollouts
    Optout(enrol::EnrolArgs),
    /// Let a VM take part in rollouts again
    Optin(enrol::EnrolArgs),
    /// List each guest's parts: version, origin and progress of a change
    Instances(instances::InstancesArgs),
    /// Check that a control plane of a release understands all guests
    Preflight(preflight::PreflightArgs),
}

pub(crate) async fn run(context: &Context, args: &FleetArgs) -> Outcome {
    let Some(command) = &args.command else {
        return status(context, &args.list).await;
    };
    match command {
        FleetCommand::Rollout(args) => rollout::rollout(context, args).await,
        FleetCommand::Start(args) => start::start(context, args).await,
        FleetCommand::Stop(args) => start::stop(context, args).await,
        FleetCommand::Rollback(args) => start::rollback(context, args).await,
        FleetCommand::Hook(args) => hook::answer(context, args).await,
        FleetCommand::History(args) => show::history(context, args).await,
        FleetCommand::Plan(args) => plan::plan(context, args).await,
        FleetCommand::Why(args) => why::why(context, args).await,
        FleetCommand::Env(command) => env::run(context, command).await,
        FleetCommand::Channel(command) => channel::run(context, command).await,
        FleetCommand::Release(command) => release::run(context, command).await,
        FleetCommand::Publish(command) => publish::run(command).await,
        FleetCommand::VerifyImage(args) => image::verify(args),
        FleetCommand::Optout(args) => enrol::enrol(context, args, false).await,
        FleetCommand::Optin(args) => enrol::enrol(context, args, true).await,
        FleetCommand::Instances(args) => instances::instances(context, args).await,
        FleetCommand::Preflight(args) => preflight::preflight(context, args).await,
    }
}

/// Counts of versions, and each environment with its deployment.
async fn status(context: &Context, list: &ListArgs) -> Outcome {
    let counts = view::Counts::of(&parts::read(context, list).await?);
    let api = context.api().await?;
    let namespace = list.namespace.chosen();
    let envs = match objects::list_envs(&api, namespace).await {
        Ok(envs) => envs,
        // A cluster may lack the kinds, or a person the right to read them.
        Err(fail) if context.asks_cluster() => {
            err(&format!("warning: without environments: {}", fail.what()));
            Vec::new()
        }
        Err(fail) => return Err(fail),
    };
    let deployments = match envs.as_slice() {
        [] => Vec::new(),
        _ => objects::list_deployments(&api, namespace).await?,
    };
    let views = envs.iter().map(|env| EnvView::of(env, &deployments));
    let views: Vec<EnvView> = views.collect();
    let instances = objects::instances_if_readable(context, &api, namespace).await?;
    let moved = moved::MovedCounts::of(&instances);
    if matches!(list.output, Format::Json | Format::Yaml) {
        let mut value = json!(counts);
        value["environments"] = json!(views);
        value["runners"] = json!(moved);
        return print_value(list.output, &value);
    }
    counts.table().print(context.paint());
    if let Some(line) = moved.line() {
        out("");
        out(&line);
    }
    if views.is_empty() {
        return Ok(());
    }
    out("");
    let wide = list.output == Format::Wide;
    env_table(&views, namespace.is_none(), wide).print(context.paint());
    for one in envs.iter().filter_map(|env| running(env, &deployments)) {
        out(&progress_line(one));
    }
    Ok(())
}
