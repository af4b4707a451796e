//! Orders that start or end a deployment: `start`, `rollback`, `stop`.

use clap::Args;
use fleet_store::{deployment_object, own};
use protocol::fleet::{DeploymentKind, DeploymentSpec, DeploymentState};
use protocol::journal::Action;
use serde_json::json;

use super::args::{EnvArgs, ReasonArgs};
use super::objects::{DEPLOYMENT, deployments_of, get_env, revisions_of};
use super::watch::{WatchArgs, follow};
use crate::actions;
use crate::api::Api;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::terminal::out;
use crate::view::fleet::{Deployed, Env};

/// Bring the guests to a kept revision.
#[derive(Debug, Clone, Args)]
pub(crate) struct StartArgs {
    #[command(flatten)]
    env: EnvArgs,
    /// Revision to run, as ENV-r2
    #[arg(long, value_name = "REVISION")]
    revision: String,
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    watch: WatchArgs,
}

/// Bring the guests back to an earlier revision.
///
/// Without --to it is the one of the last complete deployment before the newest.
#[derive(Debug, Clone, Args)]
pub(crate) struct RollbackArgs {
    #[command(flatten)]
    env: EnvArgs,
    /// Revision to run [default: the last complete one before the newest]
    #[arg(long, value_name = "REVISION")]
    to: Option<String>,
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    watch: WatchArgs,
}

/// End the deployment in progress.
///
/// Guests that keep the new program keep it. Guests on trial end their trial.
#[derive(Debug, Clone, Args)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    env: EnvArgs,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    watch: WatchArgs,
}

/// The key of an order that may be repeated.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct KeyArgs {
    /// Name of the new deployment; an order repeated with it acts once
    #[arg(long = "id", value_name = "NAME")]
    pub(crate) id: Option<String>,
}

/// A deployment to start.
pub(super) struct Start<'a> {
    pub(super) key: (&'a str, &'a str),
    pub(super) revision: &'a str,
    pub(super) id: Option<&'a str>,
    pub(super) reason: Option<&'a str>,
}

pub(super) fn action(what: &str, key: (&str, &str), to: &str, why: Option<&str>) -> Action {
    Action {
        what: format!("fleet {what}"),
        on: Some(format!("{}/{}", key.0, key.1)),
        to: Some(to.to_owned()),
        why: why.map(str::to_owned),
        ..Action::default()
    }
}

pub(super) async fn start(context: &Context, args: &StartArgs) -> Outcome {
    let start = Start {
        key: args.env.key(),
        revision: &args.revision,
        id: args.key.id.as_deref(),
        reason: args.reason.reason.as_deref(),
    };
    ordered(context, "start", &start, &args.watch).await
}

pub(super) async fn rollback(context: &Context, args: &RollbackArgs) -> Outcome {
    let api = context.api().await?;
    let key = args.env.key();
    get_env(&api, key).await?;
    let all = deployments_of(&api, key).await?;
    let to = args.to.clone().or_else(|| revision_before(&all));
    let to = to.ok_or_else(|| {
        let what = format!(
            "fleet environment {}/{} has no revision to go back to",
            key.0, key.1
        );
        Fail::not_so(what)
            .rule("without --to a deployment of an earlier revision must be complete")
            .fix(format!(
                "name one: --to {}-r1; see: bellows fleet history {}",
                key.1, key.1
            ))
    })?;
    let start = Start {
        key,
        revision: &to,
        id: args.key.id.as_deref(),
        reason: args.reason.reason.as_deref(),
    };
    ordered(context, "rollback", &start, &args.watch).await
}

/// Revision of the last complete deployment that is not the newest one's.
fn revision_before(newest_first: &[Deployed]) -> Option<String> {
    let mut of_people = newest_first
        .iter()
        .filter(|one| !one.spec.kind.is_of_monitor());
    let newest = of_people.next()?;
    let before = of_people.find(|one| {
        one.status.state == DeploymentState::Complete && one.spec.revision != newest.spec.revision
    });
    before.map(|one| one.spec.revision.clone())
}

async fn ordered(context: &Context, what: &str, start: &Start<'_>, watch: &WatchArgs) -> Outcome {
    let api = context.api().await?;
    let action = action(what, start.key, start.revision, start.reason);
    let name = actions::recorded(context, action, begin(&api, start)).await?;
    follow(&api, (start.key.0, &name), watch).await
}

/// Creates the deployment. Returns its name. One of the same name and order is left as it is.
pub(super) async fn begin(api: &Api, start: &Start<'_>) -> Outcome<String> {
    let (namespace, env) = start.key;
    let Env {
        object: environment,
        spec: of_env,
        ..
    } = get_env(api, start.key).await?;
    let revisions = revisions_of(api, start.key).await?;
    if !revisions.iter().any(|one| one.name == start.revision) {
        let what = format!(
            "--revision: {} is no revision of {namespace}/{env}",
            start.revision
        );
        return Err(Fail::not_so(what)
            .rule("a deployment names a kept revision of its environment")
            .fix(format!(
                "see which there are: bellows fleet env show {env} -n {namespace}"
            )));
    }
    let all = deployments_of(api, start.key).await?;
    if let Some(known) = repeated(&all, start) {
        out(&format!(
            "fleet deployment {namespace}/{} exists: it goes on as it is",
            known.name
        ));
        return Ok(known.name.clone());
    }
    let spec = DeploymentSpec {
        reason: start.reason.unwrap_or_default().to_owned(),
        ..DeploymentSpec::new(env, start.revision, DeploymentKind::User)
    };
    let name = start
        .id
        .map_or_else(|| next_name(&all, start.revision), str::to_owned);
    let mut object = deployment_object(namespace, &name, &spec);
    own(&mut object, &environment);
    api.create(DEPLOYMENT, namespace, &name, &object, false)
        .await?;
    let what = match of_env.is_cron() {
        true => "verifies that the guests run",
        false => "brings the guests to",
    };
    out(&format!(
        "fleet deployment {namespace}/{name} {what} {}",
        start.revision
    ));
    Ok(name)
}

/// The deployment that this order started before.
fn repeated<'a>(all: &'a [Deployed], start: &Start<'_>) -> Option<&'a Deployed> {
    all.iter().find(|one| match start.id {
        Some(id) => one.name == id && one.spec.revision == start.revision,
        None => {
            let is_same = one.spec.kind == DeploymentKind::User
                && one.spec.revision == start.revision
                && one.spec.instances.is_empty();
            is_same && one.is_running() && !one.spec.stop
        }
    })
}

/// The revision's name and a number.
fn next_name(all: &[Deployed], revision: &str) -> String {
    let is_taken = |name: &str| all.iter().any(|one| one.name == name);
    let mut numbers = 1_u32..;
    let free = numbers.find_map(|number| {
        let name = format!("{revision}-{number}");
        (!is_taken(&name)).then_some(name)
    });
    free.unwrap_or_else(|| revision.to_owned())
}

/// Deployments whose stop leaves the environment inactive, the one in progress first.
fn to_stop<'a>(newest_first: &'a [Deployed], held: Option<&String>) -> Vec<&'a Deployed> {
    let mut running: Vec<&Deployed> = newest_first.iter().filter(|one| one.is_running()).collect();
    running.sort_by_key(|one| held != Some(&one.name));
    // While its stop is not ordered, guests that join are brought to its revision.
    let started = newest_first
        .iter()
        .find(|one| !one.spec.kind.is_of_monitor() && one.status.started_at.is_some());
    let started = started.filter(|one| !one.spec.stop && !one.is_running());
    running.extend(started);
    running
}

pub(super) async fn stop(context: &Context, args: &StopArgs) -> Outcome {
    let api = context.api().await?;
    let key = args.env.key();
    let env = get_env(&api, key).await?;
    let all = deployments_of(&api, key).await?;
    let held = env.status.lock.as_ref().map(|lock| &lock.deployment);
    let running = to_stop(&all, held);
    let Some(last) = running.first() else {
        let what = format!(
            "fleet environment {}/{} has no deployment to stop",
            key.0, key.1
        );
        return Err(Fail::not_so(what).fix(format!("see: bellows fleet history {}", key.1)));
    };
    let last = last.name.clone();
    let reason = args.reason.reason.as_deref();
    let patches = async {
        for one in &running {
            let patch = json!({"spec": {"stop": true}});
            api.merge(DEPLOYMENT, key.0, &one.name, &patch).await?;
            out(&format!(
                "fleet deployment {}/{} is to stop",
                key.0, one.name
            ));
        }
        Ok(())
    };
    actions::recorded(context, action("stop", key, &last, reason), patches).await?;
    if !args.watch.is_wanted() {
        return Ok(());
    }
    // A stopped deployment is what this order asks for.
    match super::watch::until_ended(&api, (key.0, &last), &args.watch).await? {
        ended if ended.status.state == DeploymentState::Stopped => Ok(()),
        ended => super::watch::result_of(&ended),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fleet::testing::deployed;

    /// Requirement: B17
    #[test]
    fn rollback_goes_to_the_last_complete_revision_before_the_newest() {
        use DeploymentState::{Complete, Unhealthy};
        let all = [
            deployed("m-r3-1", "m-r3", Unhealthy),
            deployed("m-r2-1", "m-r2", Unhealthy),
            deployed("m-r1-2", "m-r1", Complete),
        ];
        assert_eq!(revision_before(&all).as_deref(), Some("m-r1"));
        assert_eq!(revision_before(&all[..2]), None);
        assert_eq!(revision_before(&[]), None);
        let same = [
            deployed("m-r1-2", "m-r1", Complete),
            deployed("m-r1-1", "m-r1", Complete),
        ];
        assert_eq!(revision_before(&same), None);
    }

    /// Requirement: B18
    #[test]
    fn stop_is_also_ordered_of_the_deployment_that_keeps_the_environment_active() {
        let mut join = deployed("m-join-5", "m-r1", DeploymentState::InProgress);
        join.spec.kind = DeploymentKind::NewInstance;
        let mut complete = deployed("m-r1-1", "m-r1", DeploymentState::Complete);
        complete.status.started_at = Some(protocol::time::WallTime(0));
        let mut all = [join, complete];
        let names = |all: &[Deployed]| -> Vec<String> {
            let to_stop = to_stop(all, None);
            to_stop.iter().map(|one| one.name.clone()).collect()
        };
        assert_eq!(names(&all), ["m-join-5", "m-r1-1"]);
        all[1].spec.stop = true;
        assert_eq!(names(&all), ["m-join-5"]);
        assert!(names(&all[1..]).is_empty());
    }

    /// Requirement: B36
    #[test]
    fn order_that_is_repeated_finds_its_deployment() {
        let mut all = vec![deployed("m-r1-1", "m-r1", DeploymentState::InProgress)];
        let start = |revision, id| Start {
            key: ("a", "m"),
            revision,
            id,
            reason: None,
        };
        assert!(repeated(&all, &start("m-r1", None)).is_some());
        assert!(repeated(&all, &start("m-r2", None)).is_none());
        assert!(repeated(&all, &start("m-r1", Some("x"))).is_none());
        all[0].status.state = DeploymentState::Complete;
        assert!(repeated(&all, &start("m-r1", None)).is_none());
        assert!(repeated(&all, &start("m-r1", Some("m-r1-1"))).is_some());
        assert_eq!(next_name(&all, "m-r1"), "m-r1-2");
    }
}
