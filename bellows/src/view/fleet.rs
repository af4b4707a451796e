//! Environments and deployments of the fleet for people.

use protocol::fleet::{
    DeploymentKind, DeploymentSpec, DeploymentState, DeploymentStatus, EnvironmentSpec,
    EnvironmentState, EnvironmentStatus, Health, Source,
};
use protocol::time::WallTime;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::output::{Cell, Table};
use crate::terminal::Tone;

/// Version, or the channel that names it.
fn shown_source(source: &Source) -> String {
    match (source.version(), &source.channel) {
        (Some(version), _) => version.to_owned(),
        (None, Some(channel)) => format!("channel {channel}"),
        (None, None) => "-".to_owned(),
    }
}

/// Part, and whether it is only verified.
fn shown_part(spec: &EnvironmentSpec) -> String {
    let part = spec.part.as_str();
    match spec.is_cron() {
        true => format!("{part} (cron)"),
        false => part.to_owned(),
    }
}

/// An environment as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Env {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) spec: EnvironmentSpec,
    pub(crate) status: EnvironmentStatus,
    pub(crate) object: Value,
}

/// A deployment as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Deployed {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) created: WallTime,
    pub(crate) spec: DeploymentSpec,
    pub(crate) status: DeploymentStatus,
}

fn text(object: &Value, member: &str) -> String {
    let text = object["metadata"][member].as_str();
    text.unwrap_or_default().to_owned()
}

fn status_of<T: Default + for<'a> Deserialize<'a>>(object: &Value) -> Result<T, String> {
    match object.get("status") {
        None | Some(Value::Null) => Ok(T::default()),
        Some(status) => T::deserialize(status).map_err(|error| format!("status: {error}")),
    }
}

impl Env {
    /// Whether deployments follow from changes of the guests or of the time.
    pub(crate) fn is_active(&self) -> bool {
        self.status.state == EnvironmentState::Active
    }

    /// # Errors
    /// A text for people, if the object cannot be read.
    pub(crate) fn of(object: Value) -> Result<Self, String> {
        Ok(Self {
            namespace: text(&object, "namespace"),
            name: text(&object, "name"),
            spec: EnvironmentSpec::of_object(&object)?,
            status: status_of(&object)?,
            object,
        })
    }
}

impl Deployed {
    /// # Errors
    /// A text for people, if the object cannot be read.
    pub(crate) fn of(object: &Value) -> Result<Self, String> {
        let created = &object["metadata"]["creationTimestamp"];
        Ok(Self {
            namespace: text(object, "namespace"),
            name: text(object, "name"),
            created: WallTime::deserialize(created).map_err(|error| error.to_string())?,
            spec: DeploymentSpec::of_object(object)?,
            status: status_of(object)?,
        })
    }

    pub(crate) fn is_running(&self) -> bool {
        !self.status.state.is_terminal()
    }
}

/// Equal times, which have whole seconds, are ordered by the revisions' numbers.
pub(crate) fn sort_newest_first(all: &mut [Deployed]) {
    let number = |one: &Deployed| -> u64 {
        let number = one
            .spec
            .revision
            .rsplit_once("-r")
            .map(|(_, number)| number);
        number.and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    all.sort_by(|one, other| {
        let key = |one: &Deployed| (one.created, number(one), one.name.clone());
        key(other).cmp(&key(one))
    });
}

pub(crate) const fn state_word(state: DeploymentState) -> &'static str {
    match state {
        DeploymentState::Pending => "pending",
        DeploymentState::InProgress => "in progress",
        DeploymentState::Blocked => "blocked",
        DeploymentState::ToBeStopped => "to be stopped",
        DeploymentState::Stopped => "stopped",
        DeploymentState::Complete => "complete",
        DeploymentState::Canceled => "canceled",
        DeploymentState::Unhealthy => "unhealthy",
        DeploymentState::TimedOut => "timed out",
    }
}

const fn tone(state: DeploymentState) -> Tone {
    match state {
        DeploymentState::Complete => Tone::Good,
        DeploymentState::Unhealthy | DeploymentState::TimedOut => Tone::Bad,
        DeploymentState::Stopped | DeploymentState::Canceled => Tone::Dim,
        DeploymentState::Pending
        | DeploymentState::InProgress
        | DeploymentState::Blocked
        | DeploymentState::ToBeStopped => Tone::Warn,
    }
}

pub(crate) const fn kind_word(kind: DeploymentKind) -> &'static str {
    match kind {
        DeploymentKind::User => "user",
        DeploymentKind::NewInstance => "new instance",
        DeploymentKind::HealthRepair => "health repair",
        DeploymentKind::Rollback => "rollback",
        DeploymentKind::GroupChange => "group change",
        DeploymentKind::Cron => "cron",
    }
}

/// Guests of a deployment, as `2/3`.
fn done_of(one: &Deployed) -> String {
    format!("{}/{}", one.status.progress.done, one.status.progress.total)
}

/// What keeps a deployment, or how it ended.
fn cause(one: &Deployed) -> String {
    match (&one.status.blocked_by, one.status.evidence.first()) {
        (Some(gate), _) => format!("{}: {}", gate.gate, gate.detail),
        (None, Some(first)) => first.clone(),
        (None, None) => String::new(),
    }
}

/// A deployment in one line.
pub(crate) fn progress_line(one: &Deployed) -> String {
    let progress = one.status.progress;
    let mut line = format!(
        "{} {}: {} to {}",
        one.name,
        done_of(one),
        state_word(one.status.state),
        one.spec.revision
    );
    for (count, word) in [
        (progress.in_flight, "in a turn"),
        (progress.failed, "failed"),
        (progress.skipped, "skipped"),
    ] {
        if count > 0 {
            line.push_str(&format!(", {count} {word}"));
        }
    }
    if let Some(gate) = &one.status.blocked_by {
        line.push_str(&format!("; waits for {}: {}", gate.gate, gate.detail));
    }
    line
}

/// An environment in a list. An item of `bellows fleet env list -o json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct EnvView {
    namespace: String,
    name: String,
    spec: EnvironmentSpec,
    status: EnvironmentStatus,
    /// The deployment that gives turns, or waits to.
    deployment: Option<DeploymentView>,
}

/// A deployment. An item of `bellows fleet history -o json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct DeploymentView {
    namespace: String,
    name: String,
    created: WallTime,
    spec: DeploymentSpec,
    status: DeploymentStatus,
}

impl DeploymentView {
    pub(crate) fn of(one: &Deployed) -> Self {
        Self {
            namespace: one.namespace.clone(),
            name: one.name.clone(),
            created: one.created,
            spec: one.spec.clone(),
            status: one.status.clone(),
        }
    }
}

impl EnvView {
    pub(crate) fn of(env: &Env, newest_first: &[Deployed]) -> Self {
        Self {
            namespace: env.namespace.clone(),
            name: env.name.clone(),
            spec: env.spec.clone(),
            status: env.status.clone(),
            deployment: running(env, newest_first).map(DeploymentView::of),
        }
    }
}

/// The deployment that holds the lock, else the newest that waits for it.
pub(crate) fn running<'a>(env: &Env, newest_first: &'a [Deployed]) -> Option<&'a Deployed> {
    let of_env = |one: &&Deployed| {
        one.namespace == env.namespace && one.spec.environment == env.name && one.is_running()
    };
    let held = env.status.lock.as_ref().map(|lock| &lock.deployment);
    let mut all = newest_first.iter().filter(of_env);
    let locked = all.clone().find(|one| held == Some(&one.name));
    locked.or_else(|| all.next())
}

const fn env_state(state: EnvironmentState) -> &'static str {
    match state {
        EnvironmentState::Inactive => "inactive",
        EnvironmentState::Active => "active",
        EnvironmentState::ToBeDeleted => "to be deleted",
    }
}

fn health_cell(health: Health) -> Cell {
    match health {
        Health::Unknown => Cell::toned(Tone::Dim, "unknown"),
        Health::Healthy => Cell::toned(Tone::Good, "healthy"),
        Health::Unhealthy => Cell::toned(Tone::Bad, "unhealthy"),
    }
}

/// The table of `bellows fleet env list`.
pub(crate) fn env_table(envs: &[EnvView], with_namespace: bool, wide: bool) -> Table {
    let mut header = vec![
        "NAME",
        "PART",
        "STATE",
        "HEALTH",
        "VERSION",
        "GUESTS",
        "DEPLOYMENT",
    ];
    if wide {
        header.extend(["UNHEALTHY", "UNKNOWN", "OPTED OUT", "UNMANAGED"]);
    }
    if with_namespace {
        header.insert(0, "NAMESPACE");
    }
    let mut table = Table::new(&header);
    for env in envs {
        let counts = env.status.counts;
        let mut row: Vec<Cell> = Vec::new();
        if with_namespace {
            row.push(env.namespace.clone().into());
        }
        row.extend([
            env.name.clone().into(),
            shown_part(&env.spec).into(),
            env_state(env.status.state).into(),
            health_cell(env.status.health),
            shown_source(&env.spec.source).into(),
            format!("{}/{}", counts.active, counts.matching).into(),
            env.deployment.as_ref().map_or_else(
                || Cell::from("-"),
                |one| Cell::toned(tone(one.status.state), one.name.clone()),
            ),
        ]);
        if wide {
            let further = [
                counts.unhealthy,
                counts.unknown,
                counts.opted_out,
                counts.unmanaged,
            ];
            row.extend(further.map(|count| Cell::from(count.to_string())));
        }
        table.row(row);
    }
    table
}

/// The table of `bellows fleet history`.
pub(crate) fn history_table(newest_first: &[Deployed], wide: bool) -> Table {
    let mut header = vec![
        "DEPLOYMENT",
        "KIND",
        "REVISION",
        "STATE",
        "GUESTS",
        "CREATED",
        "CAUSE",
        "REASON",
    ];
    if wide {
        header.extend(["ENDED", "FAILED", "SKIPPED"]);
    }
    let mut table = Table::new(&header);
    for one in newest_first {
        let mut row: Vec<Cell> = vec![
            one.name.clone().into(),
            kind_word(one.spec.kind).into(),
            one.spec.revision.clone().into(),
            Cell::toned(tone(one.status.state), state_word(one.status.state)),
            done_of(one).into(),
            one.created.to_string().into(),
            cause(one).into(),
            one.spec.reason.clone().into(),
        ];
        if wide {
            let ended = one.status.ended_at.map(|at| at.to_string());
            row.push(ended.unwrap_or_else(|| "-".to_owned()).into());
            row.push(one.status.progress.failed.to_string().into());
            row.push(one.status.progress.skipped.to_string().into());
        }
        table.row(row);
    }
    table
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
