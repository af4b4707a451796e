//! `bellows fleet plan`: who would change, in which order, and which gate would refuse.
//!
//! The engine itself decides, about a copy of the world in which each trial ends well. So a plan
//! and a rollout agree as long as the guests stay as they are.

use clap::Args;
use fleet_core::counts;
use fleet_core::permit::{Gate, required};
use fleet_core::{
    Action, Deployment, Engine, Event, Guest, Now, Observed, Outcome as Done, World, Write,
};
use protocol::core::Core as _;
use protocol::fleet::{
    BlockedBy, DeploymentKind, DeploymentSpec, DeploymentStatus, InstancePart, TurnSpec,
};
use protocol::parts::PartPhase;
use protocol::time::{Span, Timestamp, WallTime};
use serde::Serialize;

use super::args::EnvArgs;
use super::objects::{get_env, revisions_of};
use super::world;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::output::{Format, Table, print_value};
use crate::terminal::{Paint, out};
use crate::view::fleet::running;

/// Name of the deployment in the copy of the world.
const PLANNED: &str = "plan";
/// Most passes of the engine over the copy.
const PASSES: usize = 10_000;

/// Show what a deployment would do. It changes nothing.
#[derive(Debug, Clone, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    env: EnvArgs,
    /// Revision to plan for [default: that of the deployment in progress, else the newest]
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// Turns of a deployment, and who has none. Output of `bellows fleet plan -o json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Plan {
    revision: String,
    version: String,
    /// Guests that are settled and healthy now, of those that take part.
    settled_healthy: u32,
    matches: u32,
    /// Fewest settled healthy guests at each turn.
    required: u32,
    /// Instances that change at the same time, in order.
    batches: Vec<Vec<String>>,
    /// Instances that do not change, and why.
    left: Vec<WaitingGuest>,
    /// Gate that would hold all that are left.
    blocked_by: Option<BlockedBy>,
    /// Seconds of all trials, one batch after the other.
    trial_seconds: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct WaitingGuest {
    instance: String,
    gate: String,
    detail: String,
}

pub(super) async fn plan(context: &Context, args: &PlanArgs) -> Outcome {
    let api = context.api().await?;
    let key = args.env.key();
    let env = get_env(&api, key).await?;
    if env.spec.is_cron() {
        let what = format!("fleet environment {}/{} verifies what runs", key.0, key.1);
        return Err(Fail::not_so(what)
            .rule("an environment of the type Cron changes no guest")
            .fix(format!(
                "see what it found: bellows fleet env show {}",
                key.1
            )));
    }
    let world = world::read(context, &api, &env).await?;
    let deployments = super::objects::deployments_of(&api, key).await?;
    let of_running = running(&env, &deployments).map(|one| one.spec.revision.clone());
    let revisions = revisions_of(&api, key).await?;
    let newest = revisions.first().map(|one| one.name.clone());
    let revision = args.revision.clone().or(of_running).or(newest);
    let revision = revision.unwrap_or_default();
    let Some(plan) = of(world, &revision, WallTime(0)) else {
        let what = format!("{revision:?} is no revision of {}/{}", key.0, key.1);
        return Err(Fail::not_so(what)
            .rule("a plan is about a kept revision of the environment")
            .fix(format!(
                "see which there are: bellows fleet env show {}",
                key.1
            )));
    };
    match args.output {
        Format::Json | Format::Yaml => print_value(args.output, &plan),
        Format::Table | Format::Wide => {
            plan.print(context.paint());
            Ok(())
        }
    }
}

/// Runs the engine over a copy of the world. `None` if there is no such revision.
pub(super) fn of(mut world: World, revision: &str, wall: WallTime) -> Option<Plan> {
    let target = world.revisions.get(revision)?.clone();
    settle(&mut world, &[]);
    let fleet = counts::fleet(world.guests.values(), &target.rollout.groups);
    let mut plan = Plan {
        revision: revision.to_owned(),
        version: target.program.version.clone(),
        settled_healthy: fleet.settled_healthy,
        matches: fleet.matches,
        required: required(fleet.matches, target.rollout.min_healthy_percent),
        ..Plan::default()
    };
    begin(&mut world, revision, wall);
    let mut engine = Engine::new(1);
    let mut now = Now {
        monotonic: Timestamp(0),
        wall,
    };
    for _ in 0..PASSES {
        let basis = engine.basis();
        engine.handle(
            now,
            Event::World {
                basis,
                world: Box::new(world),
            },
        );
        let batch = pass(&mut engine, now);
        world = engine.world()?.clone();
        settle(&mut world, &batch);
        let ended = world
            .deployments
            .iter()
            .all(|one| one.status.state.is_terminal());
        if batch.is_empty() || ended {
            break;
        }
        plan.trial_seconds += target.rollout.trial_seconds;
        plan.batches
            .push(batch.into_iter().map(|(name, _)| name).collect());
        let trial = Span::from_secs(target.rollout.trial_seconds);
        now.monotonic = now.monotonic + trial;
    }
    let planned = world.deployments.iter().find(|one| one.name == PLANNED)?;
    plan.blocked_by.clone_from(&planned.status.blocked_by);
    plan.left = left(&world, &target.program.sha256, &plan);
    Some(plan)
}

/// Replaces the deployments by the one that is planned. Its hooks allow everything.
fn begin(world: &mut World, revision: &str, created: WallTime) {
    let hooks = world.revisions.get(revision).into_iter();
    let hooks = hooks.flat_map(|one| &one.rollout.hooks);
    let answers = hooks.map(|hook| (hook.name.clone(), "allow".to_owned()));
    let answers = answers.collect();
    world.environment.status.lock = None;
    world.deployments = vec![Deployment {
        name: PLANNED.to_owned(),
        created,
        spec: DeploymentSpec::new(&world.environment.name, revision, DeploymentKind::User),
        status: DeploymentStatus::default(),
        answers,
    }];
}

/// Carries out what the engine writes, until it waits. Returns the turns that it gave.
fn pass(engine: &mut Engine, now: Now) -> Vec<(String, TurnSpec)> {
    let mut turns = Vec::new();
    while let Some(action) = engine.poll_action(now) {
        let Action::Write { id, write } = action else {
            continue;
        };
        if let Write::Turn { guest, turn } = &write {
            turns.push((guest.clone(), turn.clone()));
        }
        let is_after_end = matches!(&write, Write::Create { .. });
        let outcome = if is_after_end {
            Done::Conflict
        } else {
            Done::Done
        };
        engine.handle(now, Event::Done { id, outcome });
    }
    turns
}

/// Ends each open turn. Those of the batch end well.
fn settle(world: &mut World, batch: &[(String, TurnSpec)]) {
    for (name, guest) in &mut world.guests {
        let of_batch = batch.iter().find(|(of_batch, _)| of_batch == name);
        if let Some((_, turn)) = of_batch {
            keep(guest, turn);
        } else if guest.is_in_flight() {
            guest.turn = None;
        }
    }
}

fn keep(guest: &mut Guest, turn: &TurnSpec) {
    if let Observed::Seen(part) = &mut guest.observed {
        part.state.version.clone_from(&turn.version);
        part.state.sha256.clone_from(&turn.sha256);
        part.state.token.clone_from(&turn.token);
        part.state.phase = PartPhase::Settled;
    }
    guest.turn = Some(turn.clone());
    guest.last = Some(InstancePart::kept(turn, WallTime(0)));
}

/// Guests without a turn, with their own gate.
fn left(world: &World, sha256: &str, plan: &Plan) -> Vec<WaitingGuest> {
    let has_turn = |name: &String| plan.batches.iter().flatten().any(|one| one == name);
    let without = world.guests.iter().filter(|(name, _)| !has_turn(name));
    without
        .map(|(name, guest)| {
            let (gate, detail) = own_gate(world, guest, sha256).unwrap_or_else(|| {
                let gate = plan.blocked_by.as_ref();
                gate.map_or_else(
                    || ("none".to_owned(), "it has no turn".to_owned()),
                    |gate| (gate.gate.clone(), gate.detail.clone()),
                )
            });
            WaitingGuest {
                instance: name.clone(),
                gate,
                detail,
            }
        })
        .collect()
}

fn own_gate(world: &World, guest: &Guest, sha256: &str) -> Option<(String, String)> {
    let of = |gate: Gate| Some((gate.as_str().to_owned(), gate.detail().to_owned()));
    let claim = guest.turn.as_ref().map(|turn| &turn.environment);
    match &guest.observed {
        Observed::Unmanaged(reason) => Some(("unmanaged".to_owned(), reason.clone())),
        _ if !guest.is_enrolled => {
            let detail = "its label fleet.bellows.dev/enrolled is false";
            Some(("opted-out".to_owned(), detail.to_owned()))
        }
        Observed::Seen(part) if part.state.sha256 == sha256 => {
            Some(("done".to_owned(), "it runs the program".to_owned()))
        }
        _ if claim.is_some_and(|name| *name != world.environment.name) => of(Gate::Claim),
        Observed::Unreachable | Observed::Silent => of(Gate::Unreachable),
        Observed::Seen(_) => guest.gate.and_then(of),
    }
}

/// The gate of one instance in a plan. `None` if it would get a turn.
pub(super) fn gate_of(world: World, revision: &str, instance: &str) -> Option<WaitingGuest> {
    let plan = of(world, revision, WallTime(0))?;
    let mut left = plan.left.into_iter();
    left.find(|one| one.instance == instance)
}

impl Plan {
    fn print(&self, paint: Paint) {
        out(&format!(
            "{} ({}): {} of {} guests are settled and healthy, {} must stay so",
            self.revision, self.version, self.settled_healthy, self.matches, self.required
        ));
        let mut table = Table::new(&["BATCH", "INSTANCE", "GATE", "DETAIL"]);
        for (number, batch) in self.batches.iter().enumerate() {
            for name in batch {
                let number = (number + 1).to_string();
                table.row(vec![
                    number.into(),
                    name.clone().into(),
                    "-".into(),
                    "-".into(),
                ]);
            }
        }
        for one in &self.left {
            let detail = one.detail.clone();
            let row = vec![
                "-".into(),
                one.instance.clone().into(),
                one.gate.clone().into(),
            ];
            table.row([row, vec![detail.into()]].concat());
        }
        table.print(paint);
        if let Some(gate) = &self.blocked_by {
            out(&format!(
                "It would wait for {}: {}.",
                gate.gate, gate.detail
            ));
        }
        if !self.batches.is_empty() {
            out(&format!("The trials take {} s.", self.trial_seconds));
        }
    }
}

#[cfg(test)]
mod tests;
