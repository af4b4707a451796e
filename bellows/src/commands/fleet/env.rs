//! `bellows fleet env`: environments.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::args::{
    EnvArgs, EnvType, ListArgs, Part, ReasonArgs, SpecArgs, TimesArgs, VersionArgs, version,
};
use super::define::{Defined, Definition};
use super::objects::{
    ENVIRONMENT, deployments_of, get_env, list_deployments, list_envs, revisions_of,
};
use super::show::{ShowArgs, show};
use super::start::action;
use crate::actions;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::output::{Format, print_value};
use crate::terminal::{ask, can_ask, err, out};
use crate::view::fleet::{EnvView, env_table, running};

/// Environments: which VMs a part's versions are for, and how they are rolled out.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum EnvCommand {
    /// List the environments
    List(ListArgs),
    /// One environment with its revisions
    Show(ShowArgs),
    /// Make an environment and its first revision; no guest changes
    Create(Box<CreateArgs>),
    /// Change an environment and keep its next revision; no guest changes
    Set(Box<SetArgs>),
    /// Compare a revision with the environment, or with another revision
    Diff(DiffArgs),
    /// Delete an environment with its revisions; guests keep their programs
    Delete(DeleteArgs),
}

/// Origin of the versions of an environment.
#[derive(Debug, Clone, Args)]
struct OriginArgs {
    /// Version to run, as 1.2.3
    #[arg(long, value_name = "VERSION", value_parser = version)]
    to: Option<String>,
    /// File of the program [default: the one that a revision of this version names]
    #[arg(long, value_name = "FILE", requires = "to")]
    program: Option<std::path::PathBuf>,
    /// Channel object of the namespace whose version the environment follows from now on
    #[arg(long, value_name = "CHANNEL", conflicts_with = "to")]
    channel: Option<String>,
}

impl OriginArgs {
    fn version(&self) -> Option<VersionArgs> {
        let to = self.to.clone()?;
        let program = self.program.clone();
        Some(VersionArgs { to, program })
    }
}

/// A new environment.
#[derive(Debug, Clone, Args)]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    env: EnvArgs,
    /// Part that it is about
    #[arg(long, value_enum, value_name = "PART")]
    part: Part,
    /// Its type [default: service for a part of the control plane, else daemon]
    #[arg(long, value_enum, value_name = "TYPE")]
    r#type: Option<EnvType>,
    #[command(flatten)]
    times: TimesArgs,
    #[command(flatten)]
    origin: OriginArgs,
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    reason: ReasonArgs,
}

/// Changes of an environment. What is left out stays.
#[derive(Debug, Clone, Args)]
pub(crate) struct SetArgs {
    #[command(flatten)]
    env: EnvArgs,
    #[command(flatten)]
    times: TimesArgs,
    #[command(flatten)]
    origin: OriginArgs,
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    reason: ReasonArgs,
}

/// Two things to compare.
#[derive(Debug, Clone, Args)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    env: EnvArgs,
    /// Revision to compare from [default: the newest started one]
    #[arg(long, value_name = "REVISION")]
    from: Option<String>,
    /// Revision to compare with [default: the newest]
    #[arg(long, value_name = "REVISION")]
    to: Option<String>,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// An environment to delete.
#[derive(Debug, Clone, Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    env: EnvArgs,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    reason: ReasonArgs,
}

pub(super) async fn run(context: &Context, command: &EnvCommand) -> Outcome {
    match command {
        EnvCommand::List(args) => list(context, args).await,
        EnvCommand::Show(args) => show(context, args).await,
        EnvCommand::Create(args) => create(context, args).await,
        EnvCommand::Set(args) => set(context, args).await,
        EnvCommand::Diff(args) => diff(context, args).await,
        EnvCommand::Delete(args) => delete(context, args).await,
    }
}

async fn list(context: &Context, args: &ListArgs) -> Outcome {
    let api = context.api().await?;
    let namespace = args.namespace.chosen();
    let deployments = list_deployments(&api, namespace).await?;
    let envs = list_envs(&api, namespace).await?;
    let views: Vec<EnvView> = envs
        .iter()
        .map(|env| EnvView::of(env, &deployments))
        .collect();
    match args.output {
        Format::Json | Format::Yaml => print_value(args.output, &json!({"items": views})),
        Format::Table | Format::Wide if views.is_empty() => {
            err("no environment: bellows fleet rollout makes one");
            Ok(())
        }
        Format::Table | Format::Wide => {
            let wide = args.output == Format::Wide;
            env_table(&views, namespace.is_none(), wide).print(context.paint());
            Ok(())
        }
    }
}

async fn create(context: &Context, args: &CreateArgs) -> Outcome {
    args.times.check(args.r#type)?;
    let key = args.env.key();
    let api = context.api().await?;
    if list_envs(&api, Some(key.0))
        .await?
        .iter()
        .any(|one| one.name == key.1)
    {
        let what = format!("fleet environment {}/{} exists", key.0, key.1);
        return Err(Fail::not_so(what).fix(format!("change it: bellows fleet env set {}", key.1)));
    }
    let version = args.origin.version();
    let definition = Definition {
        key,
        part: Some(args.part.name()),
        version: version.as_ref(),
        channel: args.origin.channel.as_deref(),
        spec: &args.spec,
        kind: args.r#type.map(EnvType::name),
        times: &args.times,
    };
    if let Some(channel) = definition.channel {
        let object = definition.follower(&api).await?;
        let action = action("env create", key, channel, args.reason.reason.as_deref());
        let write = api.create(ENVIRONMENT, key.0, key.1, &object, false);
        actions::recorded(context, action, write).await?;
        out(&format!(
            "fleet environment {}/{} follows channel {channel}",
            key.0, key.1
        ));
        err("the channel's next version makes the first revision");
        return Ok(());
    }
    if version.is_none() {
        return Err(Fail::usage("the origin of its versions is missing")
            .fix("name one: --to VERSION --program FILE, or --channel CHANNEL"));
    }
    define(context, "env create", &definition, &args.reason).await
}

async fn set(context: &Context, args: &SetArgs) -> Outcome {
    let version = args.origin.version();
    let definition = Definition {
        key: args.env.key(),
        part: None,
        version: version.as_ref(),
        channel: args.origin.channel.as_deref(),
        spec: &args.spec,
        kind: None,
        times: &args.times,
    };
    define(context, "env set", &definition, &args.reason).await
}

async fn define(
    context: &Context,
    what: &str,
    definition: &Definition<'_>,
    reason: &ReasonArgs,
) -> Outcome {
    let api = context.api().await?;
    let key = definition.key;
    let draft = definition.draft(context, &api).await?;
    let to = draft.objects().1;
    let action = action(what, key, &to, reason.reason.as_deref());
    let defined: Defined = actions::recorded(context, action, draft.write(&api, key)).await?;
    out(&format!(
        "fleet environment {}/{} has revision {}: {}",
        key.0, key.1, defined.revision, defined.data.resolved.version
    ));
    err(&format!(
        "no guest changes; start it: bellows fleet start {} -n {} --revision {}",
        key.1, key.0, defined.revision
    ));
    Ok(())
}

/// A member that differs.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
struct Difference {
    path: String,
    from: Value,
    to: Value,
}

fn differences(path: &str, from: &Value, to: &Value, all: &mut Vec<Difference>) {
    match (from, to) {
        (Value::Object(old), Value::Object(new)) => {
            let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                let path = format!("{path}.{name}");
                differences(&path, &from[name], &to[name], all);
            }
        }
        _ if from == to => {}
        _ => all.push(Difference {
            path: path.to_owned(),
            from: from.clone(),
            to: to.clone(),
        }),
    }
}

async fn diff(context: &Context, args: &DiffArgs) -> Outcome {
    let api = context.api().await?;
    let key = args.env.key();
    get_env(&api, key).await?;
    let revisions = revisions_of(&api, key).await?;
    let deployments = deployments_of(&api, key).await?;
    let started = deployments
        .iter()
        .find(|one| !one.spec.kind.is_of_monitor() && one.status.started_at.is_some());
    let from = args.from.clone();
    let from = from.or_else(|| started.map(|one| one.spec.revision.clone()));
    let newest = revisions.first().map(|one| one.name.clone());
    let to = args.to.clone().or(newest);
    let data = |name: &Option<String>| -> Outcome<Value> {
        let Some(name) = name else {
            return Ok(Value::Null);
        };
        let found = revisions.iter().find(|one| one.name == *name);
        let found = found.ok_or_else(|| {
            Fail::not_so(format!("{name} is no revision of {}/{}", key.0, key.1)).fix(format!(
                "see which there are: bellows fleet env show {}",
                key.1
            ))
        })?;
        Ok(json!(found.data))
    };
    let mut all = Vec::new();
    differences("", &data(&from)?, &data(&to)?, &mut all);
    if matches!(args.output, Format::Json | Format::Yaml) {
        let value = json!({"from": from, "to": to, "differences": all});
        return print_value(args.output, &value);
    }
    let shown = |name: &Option<String>| name.clone().unwrap_or_else(|| "nothing".to_owned());
    out(&format!("from {} to {}", shown(&from), shown(&to)));
    for one in all {
        out(&format!("{}: {} -> {}", one.path, one.from, one.to));
    }
    Ok(())
}

async fn delete(context: &Context, args: &DeleteArgs) -> Outcome {
    let api = context.api().await?;
    let key = args.env.key();
    let env = get_env(&api, key).await?;
    let shown = format!("fleet environment {}/{}", key.0, key.1);
    let deployments = deployments_of(&api, key).await?;
    if let Some(one) = running(&env, &deployments).filter(|one| !one.spec.kind.is_of_monitor()) {
        return Err(Fail::not_so(format!("{shown}: {} is not over", one.name))
            .rule("an environment is not deleted while a deployment of a person runs")
            .fix(format!(
                "end it first: bellows fleet stop {} -n {} --watch",
                key.1, key.0
            )));
    }
    if can_ask() && !args.yes && !ask(&format!("Delete {shown} with its revisions?")) {
        return Err(Fail::not_so(format!("{shown} is not deleted")));
    }
    let reason = args.reason.reason.as_deref();
    let action = action("env delete", key, "", reason);
    let deleted = api.delete(ENVIRONMENT, key.0, key.1);
    actions::recorded(context, action, deleted).await?;
    out(&format!("{shown} deleted; guests keep their programs"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: B11
    #[test]
    fn diff_names_each_member_that_differs() {
        let from = json!({"spec": {"a": 1, "b": {"c": 2}}, "old": 1});
        let to = json!({"spec": {"a": 1, "b": {"c": 3}}, "new": [1]});
        let mut all = Vec::new();
        differences("", &from, &to, &mut all);
        let paths: Vec<&str> = all.iter().map(|one| one.path.as_str()).collect();
        assert_eq!(paths, [".new", ".old", ".spec.b.c"]);
        differences("", &to, &to, &mut all);
        assert_eq!(all.len(), 3, "equal data has no difference");
    }
}
