//! Policies beside a real guest on one machine. A candidate is asked, its answers are recorded and
//! asked again, and nothing that decides or acts differs. A promoted version decides.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "policy/silence.rs"]
mod silence;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bellows_tests::guest::Guest;
use bellows_tests::guest_or_skip;
use bellows_tests::patience::wait_for;
use bellows_tests::site::{BOOT_PATIENCE, Site, postgres_vm};
use protocol::vm::{VirtualMachine, VmPhase};
use serde_json::Value;
use tokio::process::{Child, Command};

const PATIENCE: Duration = Duration::from_secs(240);
/// Wants the smallest size of any VM, at once.
const WANTS_MINIMUM: &str =
    "return function(i) return { cu = i.vm.min_cu, reason = \"minimum\" } end\n";

/// Wants three units of any VM, at once.
const WANTS_THREE: &str = "return function(i) return { cu = 3, reason = \"three\" } end\n";

/// Wants what no VM can have.
const WANTS_HALF: &str = "return function(i) return { cu = 2.5, reason = \"half\" } end\n";

fn library(name: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.join("../policy/library").join(name)
}

/// A site with a running VM that is autoscaled and has the policy `db`.
async fn with_policy(vm: &str, policy: &Path) -> Site {
    let site = Site::fresh().await.unwrap();
    let policy = policy.to_str().unwrap();
    site.bellows(&["policy", "apply", policy, "--name", "db"])
        .await
        .unwrap();
    let object = postgres_vm(vm, (250, 250, 1000), (1, 1, 4), true);
    site.create(&object).await.unwrap();
    let is_running = |vm: &VirtualMachine| {
        let status = vm.status.as_ref();
        status.is_some_and(|status| status.phase == VmPhase::Running)
    };
    site.wait_vm(vm, "phase Running", BOOT_PATIENCE, is_running)
        .await
        .unwrap();
    let choice = "autoscaling.neon.tech/policy=db";
    site.kubectl(&["annotate", "neonvm", vm, choice])
        .await
        .unwrap();
    site
}

fn pgbench(guest: &Guest) -> Child {
    let ip = guest.ip.to_string();
    let arguments = [
        "-h", &ip, "-p", "5432", "-U", "postgres", "-n", "-c", "4", "-j", "1", "-T", "45", "bench",
    ];
    Command::new("pgbench")
        .args(arguments)
        .env("PGPASSWORD", guest.password().unwrap())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// The report, once this many answers are compared.
async fn report(site: &Site, answers: u64) -> Value {
    wait_for("answers in the report", PATIENCE, || async {
        let text = site
            .bellows(&["policy", "report", "db", "-o", "json"])
            .await
            .map_err(|error| format!("{error:#}"))?;
        let report: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let compared = report["total"]["compared"].as_u64().unwrap_or_default();
        if compared > answers {
            Ok(report)
        } else {
            Err(text)
        }
    })
    .await
    .unwrap()
}

/// Requirement: V05. Answers about a real guest are recorded, shown by `why` and by the
/// report, and the same bytes when they are asked again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v05_recorded_answers_are_the_same_when_asked_again() {
    if !guest_or_skip("v05_recorded_answers_are_the_same_when_asked_again") {
        return;
    }
    let site = with_policy("pg", &library("database.lua")).await;
    let report = report(&site, 2).await;
    let words = site.bellows(&["why", "pg"]).await.unwrap();
    assert!(
        words.contains("andidate") && words.contains("db"),
        "{words}"
    );
    let refused = site.bellows(&["policy", "report", "nosuch"]).await;
    let refused = format!("{:#}", refused.unwrap_err());
    assert!(refused.contains("does not exist"), "{refused}");
    let at = report["to"].as_str().unwrap();
    let words = site.bellows(&["why", "pg", "--at", at]).await.unwrap();
    let quoted = "Policy db decides nothing: its candidate";
    assert!(
        words.contains(quoted) && words.contains(" would ask "),
        "{at}: {words}"
    );
    let replayed = site.bellows(&["replay"]).await.unwrap();
    for part in [
        "different: 0; warm-up: 0",
        "are equal, 0 were not asked again",
    ] {
        assert!(replayed.contains(part), "{part}: {replayed}");
    }
    site.bellows(&["journal", "verify"]).await.unwrap();
}

/// Requirement: V06. A candidate that wants the minimum takes nothing from a guest that its load
/// has grown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v06_candidate_that_wants_the_minimum_holds_no_guest_back() {
    if !guest_or_skip("v06_candidate_that_wants_the_minimum_holds_no_guest_back") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("minimum.lua");
    std::fs::write(&source, WANTS_MINIMUM).unwrap();
    let site = with_policy("held", &source).await;
    let vm = site.vm("held").await.unwrap();
    let guest = Guest::new(vm.status.unwrap().pod_ip.parse().unwrap()).unwrap();
    wait_for("an answer of the database", BOOT_PATIENCE, || async {
        guest.postgres().await.map_err(|error| format!("{error:#}"))
    })
    .await
    .unwrap();
    let mut bench = pgbench(&guest);
    let has_grown = |vm: &VirtualMachine| {
        let cpus = vm.status.as_ref().and_then(|status| status.cpus);
        cpus.is_some_and(|cpus| cpus.0 == 1000)
    };
    site.wait_vm("held", "1 CPU by its own load", PATIENCE, has_grown)
        .await
        .unwrap();
    assert!(bench.wait().await.unwrap().success(), "pgbench failed");
    let report = report(&site, 2).await;
    let lower = report["total"]["lower"].as_u64().unwrap_or_default();
    assert!(lower > 0, "the candidate agreed with the growth: {report}");
}

/// The promoted version decides without load, also after its worker was killed, and is taken back.
///
/// Requirement: V05, V33
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v33_promoted_version_decides_until_it_is_taken_back() {
    if !guest_or_skip("v33_promoted_version_decides_until_it_is_taken_back") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("three.lua");
    std::fs::write(&source, WANTS_THREE).unwrap();
    let site = with_policy("led", &source).await;
    let has = |milli: u32| {
        move |vm: &VirtualMachine| {
            let cpus = vm.status.as_ref().and_then(|status| status.cpus);
            cpus.is_some_and(|cpus| cpus.0 == milli)
        }
    };
    let order = |word: &'static str| {
        let site = &site;
        async move {
            let mut words = vec!["policy", word, "db", "--reason", "a test"];
            // There is no evidence of an hour.
            words.extend((word == "promote").then_some("--force"));
            site.bellows(&words).await.unwrap()
        }
    };
    assert!(order("promote").await.contains("decides now"));
    site.wait_vm("led", "three units without load", PATIENCE, has(750))
        .await
        .unwrap();
    let why = site.bellows(&["why", "led"]).await.unwrap();
    assert!(why.contains("asks for 3 units"), "{why}");
    assert!(why.contains("because of three"), "{why}");

    kill_live_worker(&site).await;
    let again = || async {
        let state = site.bellows(&["policy", "show", "db", "-o", "json"]).await;
        let state: Value = serde_json::from_str(&state.map_err(|e| format!("{e:#}"))?).unwrap();
        let answer = &state["vms"][0]["answer"];
        if answer["cu"] == 3 && answer["fault"].is_null() {
            Ok(())
        } else {
            Err(state.to_string())
        }
    };
    wait_for("an answer of another worker", PATIENCE, again)
        .await
        .unwrap();
    assert!(has(750)(&site.vm("led").await.unwrap()), "the size is kept");

    assert!(order("demote").await.contains("built-in goal decides"));
    wait_for("the built-in goal to decide", PATIENCE, || async {
        let why = site.bellows(&["why", "led"]).await;
        let why = why.map_err(|error| format!("{error:#}"))?;
        if why.contains("decides nothing") && !why.contains("in their place") {
            Ok(())
        } else {
            Err(why)
        }
    })
    .await
    .unwrap();
    let replayed = site.bellows(&["replay"]).await.unwrap();
    for part in ["different: 0", "asked again are equal"] {
        assert!(replayed.contains(part), "{part}: {replayed}");
    }
}

/// A version that breaks the contract decides by a person's order, and is taken back without one.
///
/// Requirement: V04, V07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v07_version_that_faults_is_taken_back_by_itself() {
    if !guest_or_skip("v07_version_that_faults_is_taken_back_by_itself") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("half.lua");
    std::fs::write(&source, WANTS_HALF).unwrap();
    let site = with_policy("half", &source).await;
    // Before the first answer nothing is known against it.
    let words = ["policy", "promote", "db", "--force", "--reason", "a test"];
    let promoted = site.bellows(&words).await;
    if let Err(error) = &promoted {
        // It was asked before.
        assert!(format!("{error:#}").contains("output"), "{error:#}");
        return;
    }
    wait_for("the built-in goal to decide again", PATIENCE, || async {
        let state = site.bellows(&["policy", "show", "db", "-o", "json"]).await;
        let state: Value = serde_json::from_str(&state.map_err(|e| format!("{e:#}"))?).unwrap();
        let conditions = state["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let is_demoted =
            conditions.any(|one| one["type"] == "Demoted" && one["reason"] == "Faults");
        if is_demoted && state["status"]["live"].is_null() {
            Ok(())
        } else {
            Err(state["status"].to_string())
        }
    })
    .await
    .unwrap();
    let events = site
        .kubectl(&["get", "events", "-o", "name"])
        .await
        .unwrap();
    assert!(events.contains("db."), "{events}");
    let again = site.bellows(&words).await.unwrap_err();
    assert!(format!("{again:#}").contains("fault"), "{again:#}");
}

/// Ends the programs that answer for policies of this site.
async fn kill_live_worker(site: &Site) {
    let up = site.pid().expect("bellows up runs");
    let children = format!("/proc/{up}/task");
    let mut killed = 0;
    for task in std::fs::read_dir(children).unwrap().flatten() {
        let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for pid in list.split_whitespace() {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            if name.trim() == "bellows-policy" {
                let pid = nix::unistd::Pid::from_raw(pid.parse().unwrap());
                nix::sys::signal::kill(pid, nix::sys::signal::SIGKILL).unwrap();
                killed += 1;
            }
        }
    }
    assert!(killed > 0, "no worker runs");
}
