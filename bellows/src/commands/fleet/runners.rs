//! `bellows fleet rollout runner`: moves the guests of this machine to runners of this program.

use std::time::Duration;

use clap::Args;
use daemon_kit::clock::Clock;
use fleet::{Location, Metrics, MoveParams, Mover, Pulses, Standing};
use fleet_core::runners::{Key, Settings, Wanted};
use protocol::release::RELEASE;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::args::ReasonArgs;
use super::start::action;
use crate::actions;
use crate::args::NamespaceArgs;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::instance::lock::{self, Holder};
use crate::output::{Format, print_value};
use crate::terminal::{err, out};

/// Move guests to runners of this `bellows`, on one machine.
///
/// A guest that was started by an earlier `bellows` keeps that program as its runner, also after
/// `bellows up` was started again. Each such guest moves to a new pod on this machine, one after
/// the other. It runs on, and its address changes. A guest that cannot be moved gets the new
/// runner with its next start. The command ends when no guest moves. Given again, it goes on.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunnerArgs {
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Move guests without KVM too, which stand still while they are sent
    #[arg(long)]
    without_kvm: bool,
    #[command(flatten)]
    reason: ReasonArgs,
    /// Give up waiting after this many seconds
    #[arg(long, default_value_t = 86_400, value_name = "SECONDS")]
    timeout: u64,
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

pub(super) async fn rollout(context: &Context, args: &RunnerArgs) -> Outcome {
    if context.asks_cluster() {
        return Err(Fail::usage("this command moves the guests of one machine")
            .rule("runners of a cluster are images, which bellows-fleet brings to their guests")
            .fix("name the image: chart value fleet.config.runners.image"));
    }
    let own = fleet::own_program();
    let own = own.map_err(|error| Fail::bug(format!("failed to read this program: {error}")))?;
    check_up(context, &own)?;
    let namespace = args.namespace.chosen();
    let key = (namespace.unwrap_or("all namespaces"), "runner");
    let action = action("rollout", key, RELEASE, args.reason.reason.as_deref());
    let moving = async {
        let params = params(context, args, own).await?;
        let mut mover = Mover::new(params);
        let mut say = |guest: &Key, text: &str| err(&format!("{}/{}: {text}", guest.0, guest.1));
        let whole = mover.run_until_rest(&mut say);
        let limit = Duration::from_secs(args.timeout);
        let ended = timeout(limit, whole)
            .await
            .map_err(|_| late(args.timeout))?;
        let standings = ended.map_err(|error| {
            Fail::try_again(format!("failed to look at the guests: {error}"))
                .fix("see whether bellows up runs: bellows status")
        })?;
        show(args.output, &standings)?;
        result_of(&standings)
    };
    actions::recorded(context, action, moving).await
}

/// New runners are processes of the program that `bellows up` is, so it must be this one.
fn check_up(context: &Context, own: &str) -> Outcome {
    let state = context.state()?;
    let Holder::Process(Some(pid)) = lock::holder(&state) else {
        let what = format!("no bellows up runs for {}", state.path().display());
        return Err(Fail::try_again(what).fix("start it: bellows up --detach"));
    };
    let of_up = fleet::program_of(pid);
    let of_up = of_up.map_err(|error| {
        Fail::missing(format!(
            "failed to read the program of process {pid}: {error}"
        ))
        .rule("its program is compared with this one")
        .fix("give the order as the user of bellows up")
    })?;
    if of_up == own {
        return Ok(());
    }
    Err(
        Fail::not_so(format!("bellows up, process {pid}, is another program"))
            .rule("new runners are processes of the program that bellows up is")
            .fix("start it again; guests run on: bellows down && bellows up --detach"),
    )
}

async fn params(context: &Context, args: &RunnerArgs, own: String) -> Outcome<MoveParams> {
    let api = context.api().await?;
    let clock = Clock::new();
    let settings = Settings {
        by_image: false,
        without_kvm: args.without_kvm,
        // A person is there, who decides about windows.
        ordered_at: Some(clock.wall()),
        ..Settings::default()
    };
    Ok(MoveParams {
        client: api.client(),
        clock,
        state_dir: context.state()?.path().to_owned(),
        location: Location::Machine,
        settings: Some(settings),
        wanted: Some(Wanted {
            to: own,
            version: RELEASE.to_owned(),
            is_critical: false,
        }),
        namespace: args.namespace.chosen().map(str::to_owned),
        metrics: Metrics::default(),
        journal: None,
        pulses: Pulses::default(),
    })
}

fn late(seconds: u64) -> Fail {
    Fail::try_again(format!("guests still move after {seconds} s"))
        .rule("a move that has begun goes on without this command until its migration ends")
        .fix("give the order again: it goes on where it was")
}

fn show(format: Format, standings: &[(Key, Standing)]) -> Outcome {
    if matches!(format, Format::Json | Format::Yaml) {
        let guests: Vec<Value> = standings.iter().map(value).collect();
        return print_value(format, &guests);
    }
    for (key, standing) in standings {
        out(&format!("{}/{}: {}", key.0, key.1, sentence(standing)));
    }
    Ok(())
}

fn value((key, standing): &(Key, Standing)) -> Value {
    let (state, reason) = match standing {
        Standing::Current => ("current", None),
        Standing::PendingRestart(reason) => ("pending-restart", Some(reason)),
        Standing::Bad(reason) => ("bad", Some(reason)),
        Standing::Waits(gate) => ("waiting", Some(gate)),
    };
    json!({"namespace": key.0, "vm": key.1, "state": state, "reason": reason})
}

fn sentence(standing: &Standing) -> String {
    match standing {
        Standing::Current => "runs by this bellows".to_owned(),
        Standing::PendingRestart(reason) => {
            format!("gets the new runner with its next start: {reason}")
        }
        Standing::Bad(reason) => format!("not well by the new runner: {reason}"),
        Standing::Waits(gate) => format!("keeps its runner: {gate}"),
    }
}

/// Guests that cannot be moved are no failure.
fn result_of(standings: &[(Key, Standing)]) -> Outcome {
    let is_left = |standing: &Standing| matches!(standing, Standing::Bad(_) | Standing::Waits(_));
    let left = standings.iter().filter(|(_, standing)| is_left(standing));
    match left.count() {
        0 => Ok(()),
        count => Err(
            Fail::not_so(format!("{count} guests did not get the new runner"))
                .rule("a runner that is bad in one guest comes to no other")
                .fix("see why: bellows fleet why VM; then give the order again"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<(Key, Standing)> {
        let standings = [
            Standing::Current,
            Standing::PendingRestart("its disks on claims do not move".to_owned()),
            Standing::Bad("no answer".to_owned()),
            Standing::Waits("halted".to_owned()),
        ];
        let named = standings.into_iter().enumerate();
        named
            .map(|(number, one)| (("default".to_owned(), format!("vm{number}")), one))
            .collect()
    }

    #[test]
    fn guest_that_keeps_its_runner_is_a_failure_unless_it_cannot_move() {
        let all = all();
        assert_eq!(result_of(&all[..2]), Ok(()));
        assert_eq!(result_of(&[]), Ok(()));
        for one in &all[2..] {
            let failed = result_of(std::slice::from_ref(one)).expect_err("left");
            assert_eq!(failed.exit() as u8, 1);
        }
    }

    #[test]
    fn each_standing_has_a_state_and_a_sentence() {
        let states: Vec<Value> = all()
            .iter()
            .map(|one| value(one)["state"].clone())
            .collect();
        assert_eq!(states, ["current", "pending-restart", "bad", "waiting"]);
        for (_, standing) in all() {
            assert!(sentence(&standing).len() > 10, "{standing:?}");
        }
    }
}
