//! The whole loop on one machine, with the real binary and a real guest.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "one_machine/replaced.rs"]
mod replaced;

use std::time::Duration;

use bellows_tests::guest::Guest;
use bellows_tests::guest_or_skip;
use bellows_tests::patience::wait_for;
use bellows_tests::site::{BOOT_PATIENCE, Site, postgres_vm};
use protocol::annotations::LABEL_ENABLED;
use protocol::runner::GuestState;
use protocol::vm::{VirtualMachine, VmPhase};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(90);
/// Longer than the node driver needs to begin the start of a guest that it knows.
const LOOKS_LAST: Duration = Duration::from_secs(10);
const GIB: u64 = 1 << 30;

fn phase(vm: &VirtualMachine) -> VmPhase {
    vm.status
        .as_ref()
        .map(|status| status.phase)
        .unwrap_or_default()
}

fn running(vm: &VirtualMachine) -> bool {
    phase(vm) == VmPhase::Running
}

async fn boot(
    site: &Site,
    name: &str,
    cpus: (u32, u32, u32),
    slots: (u32, u32, u32),
    auto: bool,
) -> Guest {
    site.create(&postgres_vm(name, cpus, slots, auto))
        .await
        .unwrap();
    let vm = site
        .wait_vm(name, "phase Running", BOOT_PATIENCE, running)
        .await
        .unwrap();
    let guest = Guest::new(vm.status.unwrap().pod_ip.parse().unwrap()).unwrap();
    wait_for("an answer of the database", BOOT_PATIENCE, || async {
        match guest.postgres().await {
            Ok(database) => database
                .simple_query("select 1")
                .await
                .map_err(|e| e.to_string()),
            Err(error) => Err(format!("{error:#}")),
        }
    })
    .await
    .unwrap();
    guest
}

/// Whether the guest has these CPUs, and about this many GiB more than with one slot.
fn sees(state: &GuestState, cpus: u32, base_total: u64, more_gib: u64) -> bool {
    state.cpus_online == cpus && state.mem_total.0.abs_diff(base_total + more_gib * GIB) < 64 << 20
}

/// Requirement: N17, N18, N19. The path agent-shaped patch → API → controller → runner → QMP
/// resizes CPU and memory live, up and down a ladder without residue, while a TCP session to the
/// database inside stays open and the guest is never restarted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_patched_vm_is_resized_live() {
    if !guest_or_skip("a_patched_vm_is_resized_live") {
        return;
    }
    let site = Site::fresh().await.unwrap();
    let guest = boot(&site, "ladder", (1000, 1000, 3000), (1, 1, 4), false).await;
    let before = guest.state().await.unwrap();
    let session = guest.postgres().await.unwrap();
    session
        .batch_execute("create temp table alive(step int)")
        .await
        .unwrap();
    let ladder = [
        (2000, 1),
        (3000, 3),
        (1000, 3),
        (1000, 2),
        (2000, 4),
        (1000, 1),
    ];
    for (step, (milli, slots)) in ladder.into_iter().enumerate() {
        let revision = i64::try_from(step).unwrap() + 1;
        site.patch_size("ladder", milli, slots, revision)
            .await
            .unwrap();
        let what = format!("{milli}m and {slots} GiB in the guest");
        guest
            .wait(&what, PATIENCE, |state| {
                sees(
                    state,
                    milli / 1000,
                    before.mem_total.0,
                    u64::from(slots) - 1,
                )
            })
            .await
            .unwrap();
        let vm = site
            .wait_vm("ladder", "the revision in the status", PATIENCE, |vm| {
                vm.status
                    .as_ref()
                    .and_then(|s| s.current_revision)
                    .is_some_and(|r| r.revision.value == revision)
            })
            .await
            .unwrap();
        let status = vm.status.unwrap();
        assert_eq!(status.phase, VmPhase::Running);
        assert_eq!(status.cpus.unwrap().0, milli);
        assert_eq!(
            status.memory_size.unwrap().as_u64().unwrap(),
            u64::from(slots) * GIB
        );
        // The same session with its temporary table: the connection did not break.
        session
            .execute(
                "insert into alive values ($1)",
                &[&i32::try_from(step).unwrap()],
            )
            .await
            .unwrap();
    }
    let rows = session
        .query_one("select count(*) from alive", &[])
        .await
        .unwrap()
        .get::<_, i64>(0);
    assert_eq!(usize::try_from(rows).unwrap(), ladder.len());
    let after = guest.state().await.unwrap();
    assert_eq!(after.boot_id, before.boot_id);
    assert_eq!(
        site.vm("ladder")
            .await
            .unwrap()
            .status
            .unwrap()
            .restart_count,
        0
    );
}

/// Guests outlive `kill -9` of `bellows up`. A new process adopts the same guest (same boot ID),
/// which can be resized.
///
/// Requirement: V31
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_outlives_kill_9_of_bellows() {
    if !guest_or_skip("a_guest_outlives_kill_9_of_bellows") {
        return;
    }
    let mut site = Site::fresh().await.unwrap();
    let guest = boot(&site, "survivor", (1000, 1000, 2000), (1, 1, 2), false).await;
    let before = guest.state().await.unwrap();
    let session = guest.postgres().await.unwrap();
    site.kill_up().await.unwrap();
    session.simple_query("select 1").await.unwrap();
    site.restart_up().await.unwrap();
    site.wait_vm(
        "survivor",
        "phase Running after the restart",
        PATIENCE,
        running,
    )
    .await
    .unwrap();
    site.patch_size("survivor", 2000, 2, 1).await.unwrap();
    let after = guest
        .wait("2 CPUs and 2 GiB", PATIENCE, |state| {
            sees(state, 2, before.mem_total.0, 1)
        })
        .await
        .unwrap();
    assert_eq!(after.boot_id, before.boot_id);
    session.simple_query("select 1").await.unwrap();
    assert_eq!(
        site.vm("survivor")
            .await
            .unwrap()
            .status
            .unwrap()
            .restart_count,
        0
    );
}

/// `history`, `why --at`, `journal verify` and `replay` show a resize from the journal of a running
/// site.
async fn the_journal_tells_the_resize(site: &Site, name: &str) {
    let decision = wait_for("a verified resize in the history", PATIENCE, || async {
        let text = site
            .bellows(&["history", name, "-o", "json"])
            .await
            .map_err(|error| format!("{error:#}"))?;
        let history: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let done = |decision: &Value, what: &str| {
            decision["outcomes"].as_array().is_some_and(|outcomes| {
                outcomes
                    .iter()
                    .any(|outcome| outcome["what"] == what && outcome["end"] == "done")
            })
        };
        let decisions = history["decisions"].as_array().ok_or("no decisions")?;
        let is_verified = decisions.iter().any(|decision| done(decision, "verified"));
        decisions
            .iter()
            .find(|decision| done(decision, "patch") && is_verified)
            .cloned()
            .ok_or(text)
    })
    .await
    .unwrap();
    assert_ne!(decision["current"], decision["target"], "{decision}");
    let at = decision["at"].as_str().unwrap();
    let sentence = site.bellows(&["why", name, "--at", at]).await.unwrap();
    for part in ["should have", "because of", "patch done"] {
        assert!(sentence.contains(part), "{part}: {sentence}");
    }
    site.bellows(&["journal", "verify"]).await.unwrap();
    let replayed = site.bellows(&["replay"]).await.unwrap();
    assert!(
        replayed.contains("different: 0; warm-up: 0"),
        "the recorded inputs give something else: {replayed}"
    );
}

/// `why` waits for the first decision about a VM that starts to be autoscaled. It does not wait for
/// a VM that is not running.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn why_waits_for_the_first_decision() {
    if !guest_or_skip("why_waits_for_the_first_decision") {
        return;
    }
    let site = Site::fresh().await.unwrap();
    let size = ((250, 250, 1000), (1, 1, 4));
    let mut nowhere = postgres_vm("nowhere", size.0, size.1, true);
    nowhere["spec"]["schedulerName"] = "nobody".into();
    site.create(&nowhere).await.unwrap();
    site.create(&postgres_vm("early", size.0, size.1, false))
        .await
        .unwrap();
    site.wait_vm("early", "phase Running", BOOT_PATIENCE, running)
        .await
        .unwrap();
    let label = format!("{LABEL_ENABLED}=true");
    site.kubectl(&["label", "neonvm", "early", &label])
        .await
        .unwrap();
    let words = site.bellows(&["why", "early"]).await.unwrap();
    assert!(words.contains("The agent wants"), "{words}");
    let began = std::time::Instant::now();
    let refused = site.bellows(&["why", "nowhere", "--timeout", "600"]).await;
    let refused = format!("{:#}", refused.unwrap_err());
    assert!(refused.contains("wait until it runs"), "{refused}");
    assert!(began.elapsed() < PATIENCE, "it was waited for");
}

/// The whole loop: load in the guest makes the agent request, the scheduler grant, the object
/// change and the guest grow. pgbench keeps running. The status never exceeds the bounds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_grows_the_vm() {
    if !guest_or_skip("load_grows_the_vm") {
        return;
    }
    let site = Site::fresh().await.unwrap();
    let guest = boot(&site, "loaded", (250, 250, 1000), (1, 1, 4), true).await;
    let ip = guest.ip.to_string();
    let mut bench = tokio::process::Command::new("pgbench")
        .args([
            "-h", &ip, "-p", "5432", "-U", "postgres", "-n", "-c", "4", "-j", "1", "-T", "45",
            "bench",
        ])
        .env("PGPASSWORD", guest.password().unwrap())
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let grown = site
        .wait_vm(
            "loaded",
            "1 CPU and 4 GiB by its own load",
            PATIENCE,
            |vm| {
                vm.status
                    .as_ref()
                    .is_some_and(|s| s.cpus.is_some_and(|c| c.0 == 1000))
                    && vm
                        .status
                        .as_ref()
                        .and_then(|s| s.memory_size)
                        .is_some_and(|m| m.as_u64() == Some(4 * GIB))
            },
        )
        .await
        .unwrap();
    assert_eq!(grown.status.unwrap().restart_count, 0);
    the_journal_tells_the_resize(&site, "loaded").await;
    assert!(
        bench.wait().await.unwrap().success(),
        "pgbench was not alive throughout"
    );
    let approved =
        grown.metadata.annotations["internal.autoscaling.neon.tech/resources-approved"].clone();
    let permit: protocol::units::Resources = serde_json::from_str(&approved).unwrap();
    assert!(
        permit.cpu.0 >= 1000 && permit.mem.0 >= 4 * GIB,
        "the object grew past its permit: {approved}"
    );
}
