//! The monitor of a real guest goes silent while the policy wants a smaller VM.

use std::time::{Duration, Instant, SystemTime};

use bellows_tests::patience::wait_for;
use bellows_tests::site::Site;
use bellows_tests::{checkout, guest_or_skip};
use protocol::time::WallTime;
use protocol::units::Resources;
use protocol::vm::VirtualMachine;
use serde_json::Value;

use super::{PATIENCE, WANTS_MINIMUM, WANTS_THREE, with_policy};

const VM: &str = "silent";
/// More decisions than the test's VM has.
const ALL_DECISIONS: &str = "1000";
/// Warning of a decision without fresh metrics.
const FLAG: &str = "missing_metrics";

/// Times of an agent of `bellows up` without a file of its own.
struct AgentTimes {
    /// Age of metrics that is never exceeded while they arrive.
    three_periods: Duration,
    /// Time for which a smaller goal must last before a VM shrinks.
    hold: Duration,
}

impl AgentTimes {
    fn read() -> Self {
        let path = checkout().join("agent/config/one-machine.json");
        let config: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let seconds =
            |section: &Value, key: &str| Duration::from_secs(section[key].as_u64().unwrap());
        let source = &config["metrics"]["system"];
        let period = seconds(source, "secondsBetweenRequests");
        let scaling = &config["scaling"]["defaultConfig"];
        Self {
            three_periods: period * 3 + seconds(source, "requestTimeoutSeconds"),
            hold: seconds(scaling, "downscaleHoldSeconds"),
        }
    }
}

fn now() -> WallTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    WallTime(i64::try_from(since.unwrap().as_micros()).unwrap())
}

/// A decision of the journal.
#[derive(Debug)]
struct Decided {
    at: WallTime,
    warnings: Vec<String>,
    current: Resources,
    target: Resources,
}

impl Decided {
    fn is_flagged(&self) -> bool {
        self.warnings.iter().any(|warning| warning == FLAG)
    }

    fn shrinks(&self) -> bool {
        self.target.cpu < self.current.cpu || self.target.mem < self.current.mem
    }
}

async fn decisions_since(site: &Site, since: WallTime) -> Result<Vec<Decided>, String> {
    let words = ["history", VM, "--last", ALL_DECISIONS, "-o", "json"];
    let text = site.bellows(&words).await;
    let text = text.map_err(|error| format!("{error:#}"))?;
    let history: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let decisions = history["decisions"].as_array().ok_or("no decisions")?;
    let read = |decision: &Value| Decided {
        at: WallTime::parse(decision["at"].as_str().unwrap()).unwrap(),
        warnings: serde_json::from_value(decision["warnings"].clone()).unwrap(),
        current: serde_json::from_value(decision["current"].clone()).unwrap(),
        target: serde_json::from_value(decision["target"].clone()).unwrap(),
    };
    let decisions = decisions.iter().map(read);
    Ok(decisions
        .filter(|decided| decided.at.0 >= since.0)
        .collect())
}

async fn signal_monitor(site: &Site, signal: &str) {
    let line = format!("kill -{signal} $(cat /run/bellows/parts/monitor.pid)");
    site.ssh(VM, &line, None).await.unwrap();
}

async fn decides(site: &Site, folder: &tempfile::TempDir, source: &str) {
    let path = folder.path().join("next.lua");
    std::fs::write(&path, source).unwrap();
    let apply = ["policy", "apply", path.to_str().unwrap(), "--name", "db"];
    site.bellows(&apply).await.unwrap();
    let promote = ["policy", "promote", "db", "--force", "--reason", "a test"];
    site.bellows(&promote).await.unwrap();
}

/// Waits until the live version has answered with this number of units.
async fn until_asked_for(site: &Site, units: u64) {
    wait_for("an answer of the live version", PATIENCE, || async {
        let state = site.bellows(&["policy", "show", "db", "-o", "json"]).await;
        let state: Value = serde_json::from_str(&state.map_err(|e| format!("{e:#}"))?).unwrap();
        let has = state["vms"][0]["answer"]["cu"] == units;
        has.then_some(()).ok_or_else(|| state.to_string())
    })
    .await
    .unwrap();
}

fn cpu(vm: &VirtualMachine) -> u32 {
    let cpus = vm.status.as_ref().and_then(|status| status.cpus);
    cpus.map_or(0, |cpus| cpus.0)
}

fn has_cpu(milli: u32) -> impl Fn(&VirtualMachine) -> bool {
    move |vm| cpu(vm) == milli
}

/// The policy wants the minimum before the monitor is stopped. Its silence is reported before the
/// VM could have shrunk, and nothing shrinks until it goes on. A busy machine runs the agent's
/// timers late, so three periods are held by tests on a virtual clock. A guest that is still busy
/// with its start may grow until the first answer of a promoted version, by the built-in goal.
///
/// Requirement: V26
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v26_guest_whose_monitor_is_stopped_is_flagged_and_never_shrinks() {
    if !guest_or_skip("v26_guest_whose_monitor_is_stopped_is_flagged_and_never_shrinks") {
        return;
    }
    let times = AgentTimes::read();
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("three.lua");
    std::fs::write(&source, WANTS_THREE).unwrap();
    let site = with_policy(VM, &source).await;
    decides(&site, &folder, WANTS_THREE).await;
    site.wait_vm(VM, "three units", PATIENCE, has_cpu(750))
        .await
        .unwrap();
    // The first command after "runs" finds an SSH server, so the next one is quick.
    site.ssh(VM, "true", None).await.unwrap();

    decides(&site, &folder, WANTS_MINIMUM).await;
    until_asked_for(&site, 1).await;
    let begun = now();
    signal_monitor(&site, "STOP").await;
    let stopped = now();
    let mut size = cpu(&site.vm(VM).await.unwrap());
    assert!(size >= 750, "shrank before: {size}");
    let flagged = wait_for("a decision that names old metrics", PATIENCE, || async {
        let decisions = decisions_since(&site, begun).await?;
        let first = decisions.iter().find(|decided| decided.is_flagged());
        let at = first.map(|decided| decided.at);
        at.ok_or_else(|| format!("{decisions:?}"))
    })
    .await
    .unwrap();
    let late = u64::try_from(flagged.0 - stopped.0).unwrap_or_default();
    let late = Duration::from_micros(late);
    assert!(late < times.hold, "it could have shrunk before: {late:?}");
    let why = site.bellows(&["why", VM]).await.unwrap();
    assert!(
        why.contains("metrics are missing or old: nothing shrinks"),
        "{why}"
    );

    // With fresh metrics it would have shrunk after the hold.
    let silent = Instant::now();
    while silent.elapsed() < times.hold + times.three_periods {
        let vm = site.vm(VM).await.unwrap();
        assert!(cpu(&vm) >= size, "shrank in silence: {:?}", vm.status);
        size = cpu(&vm);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let decisions = decisions_since(&site, stopped).await.unwrap();
    let shrink = decisions.iter().find(|decided| decided.shrinks());
    assert!(shrink.is_none(), "{shrink:?}");
    let is_flagged = decisions.last().is_some_and(Decided::is_flagged);
    assert!(is_flagged, "{decisions:?}");

    signal_monitor(&site, "CONT").await;
    site.wait_vm(VM, "the minimum after the silence", PATIENCE, has_cpu(250))
        .await
        .unwrap();
    let replayed = site.bellows(&["replay"]).await.unwrap();
    assert!(replayed.contains("different: 0"), "{replayed}");
}
