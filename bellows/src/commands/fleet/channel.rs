//! `bellows fleet channel`: names in repositories of releases, and what they said last.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use protocol::fleet::{ChannelSpec, ChannelTrust, FleetKind, GROUP, KEY_REFRESH, VERSION};
use serde_json::{Value, json};

use super::args::{ListArgs, ReasonArgs};
use super::start::action;
use crate::actions;
use crate::api::Kind;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::output::{Format, Table, print_value};
use crate::plugin;
use crate::terminal::{err, out};

pub(super) const CHANNEL: Kind = Kind::Fleet(FleetKind::Channel);

/// Channels: names in repositories of releases, which environments follow.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ChannelCommand {
    /// Make a channel object for a name in a repository
    Add(AddArgs),
    /// List the channels with their versions
    List(ListArgs),
    /// One channel: what it says, since when, and whether it was verified
    Show(ShowArgs),
    /// Let the fleet read a channel at once
    Refresh(RefreshArgs),
    /// Delete a channel object; environments keep their versions
    Delete(RefreshArgs),
}

/// A channel object by name.
#[derive(Debug, Clone, Args)]
pub(super) struct ChannelArgs {
    /// The channel object, as NAME or NAMESPACE/NAME
    #[arg(value_name = "CHANNEL")]
    channel: String,
    /// Namespace of a channel given by its name alone
    #[arg(short, long, default_value_t = plugin::namespace(), value_name = "NAMESPACE")]
    namespace: String,
}

impl ChannelArgs {
    /// Namespace and name of the object.
    pub(super) fn key(&self) -> (&str, &str) {
        let both = self.channel.split_once('/');
        both.unwrap_or((&self.namespace, &self.channel))
    }
}

/// Reason to believe a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TrustArg {
    /// Signatures that lead to a root.
    Tuf,
    /// A folder of the same user on this machine, without signatures.
    Local,
}

/// A new channel object.
#[derive(Debug, Clone, Args)]
pub(crate) struct AddArgs {
    #[command(flatten)]
    channel: ChannelArgs,
    /// Base of the repository: https://…, or file:///… on one machine
    #[arg(long, value_name = "URL")]
    url: String,
    /// Name of the channel in the repository [default: the name of the object]
    #[arg(long, value_name = "NAME")]
    of: Option<String>,
    /// Why the repository is believed
    #[arg(long, value_enum, default_value = "tuf", value_name = "TRUST")]
    trust: TrustArg,
    /// File of the repository's root, metadata/1.root.json, from its publisher
    #[arg(long, value_name = "FILE", required_if_eq("trust", "tuf"))]
    root: Option<PathBuf>,
    /// Time between two readings
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    poll: u32,
    /// Print the object as YAML, checked by the server, and make nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    reason: ReasonArgs,
}

/// A channel to print.
#[derive(Debug, Clone, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    channel: ChannelArgs,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// A channel to read or to delete.
#[derive(Debug, Clone, Args)]
pub(crate) struct RefreshArgs {
    #[command(flatten)]
    channel: ChannelArgs,
    #[command(flatten)]
    reason: ReasonArgs,
}

pub(super) async fn run(context: &Context, command: &ChannelCommand) -> Outcome {
    match command {
        ChannelCommand::Add(args) => add(context, args).await,
        ChannelCommand::List(args) => list(context, args).await,
        ChannelCommand::Show(args) => show(context, args).await,
        ChannelCommand::Refresh(args) => refresh(context, args).await,
        ChannelCommand::Delete(args) => delete(context, args).await,
    }
}

async fn add(context: &Context, args: &AddArgs) -> Outcome {
    let (namespace, name) = args.channel.key();
    let trust = match args.trust {
        TrustArg::Tuf => ChannelTrust::Tuf,
        TrustArg::Local => ChannelTrust::Local,
    };
    if trust == ChannelTrust::Local && context.asks_cluster() {
        return Err(Fail::usage("--trust local has no signatures")
            .rule("a cluster takes signed releases only")
            .fix("publish with keys, and give the root: --trust tuf --root FILE"));
    }
    let spec = ChannelSpec {
        url: args.url.clone(),
        name: args.of.clone().unwrap_or_else(|| name.to_owned()),
        trust,
        root: match &args.root {
            Some(file) => std::fs::read_to_string(file).map_err(|error| {
                Fail::usage(format!("--root {}: {error}", file.display()))
                    .rule("it is the file metadata/1.root.json of the repository")
                    .fix("get it from the publisher, by a way that you trust")
            })?,
            None => String::new(),
        },
        poll_seconds: args.poll,
        grace_seconds: 604_800,
    };
    let object = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": FleetKind::Channel.as_str(),
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    });
    let api = context.api().await?;
    let checked = api.create(CHANNEL, namespace, name, &object, true).await?;
    if args.dry_run {
        return print_value(Format::Yaml, &checked);
    }
    let reason = args.reason.reason.as_deref();
    let action = action("channel add", (namespace, name), &args.url, reason);
    let made = api.create(CHANNEL, namespace, name, &object, false);
    actions::recorded(context, action, made).await?;
    out(&format!("fleet channel {namespace}/{name} made"));
    err(&format!(
        "no environment follows it; see what it says: bellows fleet channel show {name} -n \
         {namespace}; follow it: bellows fleet env set ENV --channel {name}"
    ));
    Ok(())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

/// `yes`, or the reason of a condition that does not hold.
fn verified(object: &Value, name: &str) -> String {
    let all = object["status"]["conditions"].as_array();
    let one = all.and_then(|all| all.iter().find(|one| one["type"] == name));
    match one {
        Some(one) if one["status"] == "True" => "yes".to_owned(),
        Some(one) => text(&one["reason"]),
        None => "-".to_owned(),
    }
}

fn table(objects: &[Value]) -> Table {
    let header = [
        "NAMESPACE",
        "NAME",
        "CHANNEL",
        "VERSION",
        "CRITICAL",
        "VERIFIED",
        "ADOPTED",
    ];
    let mut table = Table::new(&header);
    for object in objects {
        let (metadata, spec, status) = (&object["metadata"], &object["spec"], &object["status"]);
        let critical = if status["critical"] == true {
            "yes"
        } else {
            "no"
        };
        table.row(vec![
            text(&metadata["namespace"]).into(),
            text(&metadata["name"]).into(),
            text(&spec["name"]).into(),
            text(&status["version"]).into(),
            critical.into(),
            verified(object, "Verified").into(),
            verified(object, "Adopted").into(),
        ]);
    }
    table
}

async fn list(context: &Context, args: &ListArgs) -> Outcome {
    let api = context.api().await?;
    let objects = api.list(CHANNEL, args.namespace.chosen()).await?;
    if matches!(args.output, Format::Json | Format::Yaml) {
        return print_value(args.output, &json!({"items": objects}));
    }
    if objects.is_empty() {
        err("no channel: bellows fleet channel add makes one");
        return Ok(());
    }
    table(&objects).print(context.paint());
    Ok(())
}

async fn show(context: &Context, args: &ShowArgs) -> Outcome {
    let api = context.api().await?;
    let (namespace, name) = args.channel.key();
    let object = api.get(CHANNEL, namespace, name).await?;
    if matches!(args.output, Format::Json | Format::Yaml) {
        return print_value(args.output, &object);
    }
    table(std::slice::from_ref(&object)).print(context.paint());
    let status = &object["status"];
    out("");
    out(&format!("repository: {}", text(&object["spec"]["url"])));
    out(&format!("fetched: {}", text(&status["fetchedAt"])));
    out(&format!("fresh until: {}", text(&status["freshUntil"])));
    for one in status["conditions"].as_array().into_iter().flatten() {
        if let Some(message) = one["message"].as_str() {
            out(&format!("{}: {message}", text(&one["type"])));
        }
    }
    for one in status["served"].as_array().into_iter().flatten().rev() {
        let (from, to) = (text(&one["from"]), text(&one["to"]));
        out(&format!(
            "served {} from {from} to {to}",
            text(&one["version"])
        ));
    }
    Ok(())
}

async fn refresh(context: &Context, args: &RefreshArgs) -> Outcome {
    let api = context.api().await?;
    let (namespace, name) = args.channel.key();
    let object = api.get(CHANNEL, namespace, name).await?;
    let before = object["metadata"]["annotations"][KEY_REFRESH].as_str();
    let count = before.and_then(|it| it.parse::<u64>().ok()).unwrap_or(0);
    let next = count.wrapping_add(1).to_string();
    let patch = json!({"metadata": {"annotations": {KEY_REFRESH: next}}});
    let reason = args.reason.reason.as_deref();
    let action = action("channel refresh", (namespace, name), "", reason);
    let written = api.merge(CHANNEL, namespace, name, &patch);
    actions::recorded(context, action, written).await?;
    out(&format!(
        "fleet channel {namespace}/{name} is read within 5 s"
    ));
    Ok(())
}

async fn delete(context: &Context, args: &RefreshArgs) -> Outcome {
    let api = context.api().await?;
    let (namespace, name) = args.channel.key();
    let reason = args.reason.reason.as_deref();
    let action = action("channel delete", (namespace, name), "", reason);
    let deleted = api.delete(CHANNEL, namespace, name);
    actions::recorded(context, action, deleted).await?;
    out(&format!(
        "fleet channel {namespace}/{name} deleted; environments keep their versions"
    ));
    Ok(())
}
