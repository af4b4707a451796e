//! `bellows policy run`: asks a policy once, about the newest recorded state of a VM, or about sets
//! as they are.

use std::path::PathBuf;
use std::process::Command;

use agent::Replay;
use clap::Args;
use policy_contract::{FeedSource, Series, Spec};
use serde_json::json;

use super::{ask_sets, needs, object, pack, program};
use crate::commands::journal::{of_state, read};
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::terminal::out;

/// Ask a policy once about a VM, or about sets; nothing is done.
///
/// Prints the question and the answer. The question about a VM is built from the newest records of
/// the journal, the one about sets from the objects as they are.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    /// Source of the policy, Lua
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The VM, as NAME or NAMESPACE/NAME
    #[arg(long = "vm", value_name = "VM", required_unless_present = "sets")]
    vm: Option<String>,
    /// Ask a policy of sets about all sets of this namespace, without feeds and without a past
    #[arg(long, value_name = "NAMESPACE", conflicts_with = "vm")]
    sets: Option<String>,
    /// A number of the policy; may be given again
    #[arg(long = "params", value_name = "NAME=NUMBER", value_parser = object::parameter)]
    params: Vec<(String, f64)>,
    /// A series beyond load1, load5, used and cached; may be given again
    #[arg(long = "series", value_name = "NAME", value_parser = pack::series)]
    series: Vec<Series>,
    /// A figure of the guest, as NAME=PORT:METRIC; may be given again
    #[arg(long = "feed", value_name = "NAME=PORT:METRIC", value_parser = object::feed)]
    feeds: Vec<FeedSource>,
}

pub(super) async fn run(context: &Context, args: &RunArgs) -> Outcome {
    if args.vm.is_some() {
        needs::journal(context, "run")?;
    }
    let mut spec = Spec::of_source(object::read_source(&args.file)?);
    spec.params = args.params.iter().cloned().collect();
    spec.series.clone_from(&args.series);
    spec.feeds.clone_from(&args.feeds);
    match (&args.sets, &args.vm) {
        (Some(namespace), _) => ask_sets::run(context, (&args.file, spec), namespace).await,
        (None, Some(vm)) => about_vm(context, args, (&spec, vm)),
        (None, None) => Err(Fail::usage("a policy is asked about nothing")
            .rule("it is asked about a VM, or about the sets of a namespace")
            .fix("name one: --vm VM or --sets NAMESPACE")),
    }
}

fn about_vm(context: &Context, args: &RunArgs, (spec, vm): (&Spec, &str)) -> Outcome {
    let (namespace, name) = vm.split_once('/').map_or_else(
        || (crate::plugin::namespace(), vm.to_owned()),
        |(namespace, name)| (namespace.to_owned(), name.to_owned()),
    );
    let key = format!("{namespace}/{name}");
    let program = program::find()?;
    let mut newest: Option<(u64, u64, Replay)> = None;
    for file in of_state(context)? {
        let segment = read(file)?;
        let Some(head) = &segment.scan.head else {
            continue;
        };
        if newest.as_ref().is_none_or(|(run, ..)| *run != head.run) {
            newest = Some((head.run, head.wall, Replay::new()));
        }
        if let Some((_, wall, replay)) = &mut newest {
            *wall = head.wall;
            let lines = segment.scan.lines.into_iter();
            lines
                .filter_map(|line| line.record.ok())
                .for_each(|record| replay.take(record));
        }
    }
    let latest = newest.and_then(|(_, wall, replay)| replay.latest(&key, spec, wall));
    let Some(latest) = latest else {
        return Err(
            Fail::not_so(format!("the journal has no question about {key}"))
                .rule("a VM is asked about once its metrics have arrived, and while they are fresh")
                .fix(format!("see what the agent says: bellows why {key}")),
        );
    };
    let text = latest.input.canonical();
    out(&text);
    let question = program::input(&text)?;
    let past = program::input(&json!({"now": latest.now, "series": latest.past}).to_string())?;
    let mut command = Command::new(&program);
    command
        .arg("run")
        .arg(&args.file)
        .arg("--input")
        .arg(question.path())
        .arg("--past")
        .arg(past.path());
    answer_of(command)
}

/// Runs the program, which prints the answer.
pub(super) fn answer_of(mut command: Command) -> Outcome {
    let status = command.status().map_err(|error| {
        let program = command.get_program().display().to_string();
        Fail::missing(format!("{program} cannot be run: {error}"))
    })?;
    if status.success() {
        Ok(())
    } else {
        Err(Fail::not_so("the policy has no valid answer"))
    }
}
