//! `bellows policy run --sets`: asks a policy once about the sets of a namespace.

use std::path::Path;
use std::process::Command;

use agent::Config;
use daemon_kit::clock::Clock;
use policy_contract::{Scope, Spec};
use policy_controller::core::sets::{Objects, World, question_now};

use super::{ask, program};
use crate::api::Kind;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::terminal::out;

/// Prints the question, made of the objects as they are, and the answer.
pub(super) async fn run(
    context: &Context,
    (file, mut spec): (&Path, Spec),
    namespace: &str,
) -> Outcome {
    spec.scope = Scope::Set;
    let program = program::find()?;
    let api = context.api().await?;
    let objects = Objects {
        sets: api.list(Kind::VmSet, Some(namespace)).await?,
        nodes: api.list(Kind::Node, None).await?,
        pods: api.list(Kind::Pod, None).await?,
        ..Objects::default()
    };
    let world = World::read(&objects, Clock::new().wall());
    let config = Config::one_machine().map_err(|error| Fail::bug(daemon_kit::chain(&error)))?;
    let unit = config.scaling.compute_unit;
    let Some(input) = question_now(&world, unit, &spec, namespace) else {
        return Err(Fail::not_so(format!("namespace {namespace} has no VM set"))
            .rule("a policy of sets is asked about those of one namespace")
            .fix("see them all: bellows vmset list -A"));
    };
    let text = input.canonical();
    out(&text);
    let question = program::input(&text)?;
    let mut command = Command::new(&program);
    command
        .arg("run")
        .arg(file)
        .args(["--scope", "set", "--input"])
        .arg(question.path());
    ask::answer_of(command)
}
