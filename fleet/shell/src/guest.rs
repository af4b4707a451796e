//! One guest, seen from outside: its VM's object, its runner and the metrics page of its monitor.

use std::time::Duration;

use daemon_kit::http_client::{HttpClient, HttpError};
use daemon_kit::process_age;
use fleet_core::permit::Gate;
use fleet_core::{Degradation, Facts, Observed, health_check};
use fleet_store::{self as parts, DaemonSigns, Unmanaged};
use hyper::{Method, StatusCode};
use protocol::annotations::LABEL_ENABLED;
use protocol::exposition::{GuestFigures, PAGE_BYTES};
use protocol::fleet::KEY_UNHEALTHY;
use protocol::parts::{PartName, PartStates};
use protocol::runner::{RunnerPhase, RunnerState};
use protocol::time::WallTime;
use protocol::vm::{VirtualMachine, VmPhase, VmStatus};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::calls::ROUTE;
use crate::runners::{Runner, Runners};

/// Longest exchange with a runner or a page.
const READ_LIMIT: Duration = Duration::from_secs(3);
/// Port of the monitor's metrics page.
const PAGE_PORT: u16 = 9100;
/// Reading that every working monitor serves.
const MEMORY_READING: &str = "host_memory_total_bytes ";
/// Gauge of the agent's connection.
const AGENT_GAUGE: &str = "vm_monitor_agent_connected ";
/// Time after a resize in which a guest gets no turn, microseconds.
const REST_AFTER_RESIZE_US: i64 = 30_000_000;

/// What was seen of a guest.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seen {
    pub(crate) boot: String,
    pub(crate) observed: Observed,
    pub(crate) facts: Facts,
    pub(crate) gate: Option<Gate>,
    pub(crate) uptime_seconds: Option<u64>,
    /// Figures of the monitor's page, if it was asked and has them.
    pub(crate) figures: Option<GuestFigures>,
}

/// What a look is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Purpose {
    pub(crate) part: PartName,
    /// Its daemon is asked, since a runner's copy of a trial may be old.
    pub(crate) is_in_flight: bool,
    /// A judge wants the figures of its page.
    pub(crate) is_judged: bool,
    /// The agent began so recently that it need not be connected.
    pub(crate) is_agent_new: bool,
}

/// Whether an agent is to be connected to the VM's monitor.
pub(crate) fn has_agent(vm: &VirtualMachine) -> bool {
    vm.metadata.labels.get(LABEL_ENABLED).map(String::as_str) == Some("true")
}

/// Looks at a guest.
pub(crate) async fn look(
    way: (&Runners, &Runner),
    vm: &VirtualMachine,
    purpose: Purpose,
    now: WallTime,
) -> Seen {
    let part = purpose.part;
    let status = vm.status.clone().unwrap_or_default();
    let is_proof = part == PartName::Monitor;
    let page = page(&status, is_proof || purpose.is_judged);
    let (runner, page) = tokio::join!(runner_state(way), page);
    let age = |runner: &RunnerState| uptime_seconds(runner, way, now);
    let uptime_seconds = runner.as_ref().and_then(age);
    let mut observed = match &runner {
        Some(runner) => observed(runner, part, uptime_seconds),
        None => parts::observed(Err(Unmanaged::NoRunner), part),
    };
    if purpose.is_in_flight && matches!(observed, Observed::Seen(_) | Observed::Silent) {
        observed = asked(way, part).await;
    }
    let text = page.as_ref().and_then(|page| page.as_ref().ok());
    let figures = text.and_then(|text| GuestFigures::read(text.as_bytes()));
    let of_proof = page.as_ref().filter(|_| is_proof);
    Seen {
        boot: runner
            .as_ref()
            .and_then(|runner| runner.boot_id.clone())
            .unwrap_or_default(),
        observed,
        facts: Facts {
            degraded: degraded(&status, runner.as_ref()),
            agent_is_new: purpose.is_agent_new,
            check: check(vm),
            ..facts(of_proof, has_agent(vm))
        },
        gate: gate(&status, runner.as_ref(), now).or(check(vm).map(|_| Gate::Check)),
        uptime_seconds,
        figures,
    }
}

pub(crate) async fn runner_state((runners, runner): (&Runners, &Runner)) -> Option<RunnerState> {
    let sent = runners.send(runner, Method::GET, "/v1/state", "", READ_LIMIT);
    let body = sent.await.inspect_err(|error| {
        let (vm, namespace) = (&runner.vm, &runner.namespace);
        let error = daemon_kit::chain(error);
        tracing::debug!(vm, namespace, error, "failed to read the state of a runner");
    });
    serde_json::from_slice(&body.ok()?).ok()
}

/// State of the part as the guest's daemon reports it now.
async fn asked((runners, runner): (&Runners, &Runner), part: PartName) -> Observed {
    let sent = runners.send(runner, Method::GET, ROUTE, "", READ_LIMIT);
    match sent.await {
        Ok(body) => serde_json::from_slice::<PartStates>(&body)
            .ok()
            .and_then(|mut states| states.remove(&part))
            .map_or(Observed::Silent, parts::seen),
        Err(HttpError::Status(StatusCode::NOT_FOUND, _)) => {
            parts::observed(Err(Unmanaged::OldDaemon), part)
        }
        Err(HttpError::Connect(_)) => Observed::Unreachable,
        Err(_) => Observed::Silent,
    }
}

fn observed(runner: &RunnerState, part: PartName, uptime_seconds: Option<u64>) -> Observed {
    if runner.phase == RunnerPhase::Exited {
        return parts::observed(Err(Unmanaged::NoRunner), part);
    }
    if runner.guest_silent.is_some() {
        return parts::observed(Err(Unmanaged::Silent), part);
    }
    if runner.guest_parts.is_empty() {
        let reason = Unmanaged::without_parts(DaemonSigns {
            has_boot: runner.boot_id.is_some(),
            has_cpus: runner.cpus.guest_online.is_some(),
            uptime_seconds,
        });
        return parts::observed(Err(reason), part);
    }
    parts::observed(Ok(&runner.guest_parts), part)
}

/// Time since the start of the guest's QEMU, or of its runner's container in a pod. A guest that
/// arrived by a migration is older, and one whose kernel began again is younger: it counts as long
/// as its QEMU.
fn uptime_seconds(
    state: &RunnerState,
    (runners, runner): (&Runners, &Runner),
    now: WallTime,
) -> Option<u64> {
    if state.incoming.is_some() {
        return None;
    }
    // A process id of a pod is one of another namespace.
    if runners.pods().is_some() {
        let microseconds = now.0.saturating_sub(runner.started?.0);
        return u64::try_from(microseconds.div_euclid(1_000_000)).ok();
    }
    let age = process_age(state.qemu_pid?)?;
    Some(age.as_secs())
}

/// Result of a look at the page. `None` if it was not asked.
async fn page(status: &VmStatus, is_asked: bool) -> Option<Result<String, String>> {
    if !is_asked || status.pod_ip.is_empty() {
        return None;
    }
    Some(read_page(&status.pod_ip).await)
}

/// The metrics page of a monitor, or of a node's agent.
pub(crate) async fn read_page(ip: &str) -> Result<String, String> {
    let read = timeout(READ_LIMIT, fetch_page(ip)).await;
    read.unwrap_or_else(|_| Err("no response in time".to_owned()))
}

async fn fetch_page(ip: &str) -> Result<String, String> {
    let stream = TcpStream::connect((ip, PAGE_PORT)).await;
    let stream = stream.map_err(|error| error.to_string())?;
    let client = HttpClient::over(stream, "guest").await;
    let mut client = client.map_err(|error| daemon_kit::chain(&error))?;
    client = client.with_body_limit(PAGE_BYTES);
    let body = client.send(Method::GET, "/metrics", "", READ_LIMIT).await;
    let body = body.map_err(|error| daemon_kit::chain(&error))?;
    Ok(String::from_utf8_lossy(&body).into_owned())
}

fn reading<'a>(page: &'a str, name: &str) -> Option<&'a str> {
    page.lines().find_map(|line| line.strip_prefix(name))
}

fn check(vm: &VirtualMachine) -> Option<String> {
    let annotation = vm.metadata.annotations.get(KEY_UNHEALTHY);
    health_check(annotation.map(String::as_str))
}

fn degraded(status: &VmStatus, runner: Option<&RunnerState>) -> Option<Degradation> {
    let mut conditions = status.conditions.iter();
    let found = conditions.find(|it| it.kind == "Degraded" && it.status == "True")?;
    let resize = runner.and_then(|runner| runner.resize.as_ref());
    Some(Degradation {
        message: found.message.clone(),
        since: found.last_transition_time,
        in_resize: status.phase == VmPhase::Scaling || resize.is_some_and(|one| !one.done),
    })
}

fn facts(page: Option<&Result<String, String>>, is_expected: bool) -> Facts {
    let text = page.and_then(|page| page.as_ref().ok());
    let gauge = text.and_then(|page| reading(page, AGENT_GAUGE));
    Facts {
        degraded: None,
        fault: None,
        check: None,
        agent_is_new: false,
        page_answers: page.map(|_| {
            text.and_then(|page| reading(page, MEMORY_READING))
                .is_some()
        }),
        agent_connected: gauge
            .filter(|_| is_expected)
            .map(|value| value.trim() == "1"),
    }
}

pub(crate) fn gate(status: &VmStatus, runner: Option<&RunnerState>, now: WallTime) -> Option<Gate> {
    match status.phase {
        VmPhase::PreMigrating | VmPhase::Migrating => return Some(Gate::Migrating),
        VmPhase::Scaling => return Some(Gate::Resizing),
        VmPhase::Running => {}
        VmPhase::New | VmPhase::Pending | VmPhase::Succeeded | VmPhase::Failed => {
            return Some(Gate::NotRunning);
        }
    }
    if status.migration.is_some() {
        return Some(Gate::Migrating);
    }
    let resize = runner?.resize.as_ref()?;
    let ends = resize.stages.iter().map(|stage| {
        let length = i64::try_from(stage.duration_us).unwrap_or(i64::MAX);
        stage.start_unix_us.saturating_add(length)
    });
    let rests = ends
        .max()
        .is_some_and(|end| now.0.saturating_sub(end) < REST_AFTER_RESIZE_US);
    (!resize.done || rests).then_some(Gate::Resizing)
}

#[cfg(test)]
mod tests;
