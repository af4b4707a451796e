//! Candidates over real sockets: a program that stands for the worker wants every VM at its
//! minimum, and nothing changes by it.

mod peers;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use agent::{Oracle, Reasked, Replay, StateHandle};
use peers::guest::Page;
use peers::{Seen, World, patched_to, permits, position, until};
use policy_contract::tally::VersionReport;
use policy_contract::{Answer, Input, Spec};
use protocol::journal::{Record, scan};
use serde_json::{Value, json};

const POLICY: &str = "autoscaling.neon.tech/policy";

/// Answers each question with one unit.
const WORKER: &str = r#"#!/bin/sh
[ "$1" = --version ] && { echo "minimum 1 (contract 1)"; exit; }
while read -r line; do
  case "$line" in
    *'"op":"load"'*) echo '{"op":"loaded","id":1}' ;;
    *'"op":"fill"'*)
      vm=${line#*'"vm":'}
      echo "{\"op\":\"filled\",\"vm\":${vm%%,*}}" ;;
    *'"op":"ask"'*)
      n=${line#*'"n":'}
      echo "{\"op\":\"said\",\"n\":${n%%,*},\"cu\":1,\"r\":\"minimum\",\"steps\":1}" ;;
  esac
done
"#;

fn program(folder: &Path) -> PathBuf {
    let path = folder.join("bellows-policy");
    std::fs::write(&path, WORKER).expect("a script");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&path, mode).expect("a mode");
    path
}

/// A world whose VM has the policy that wants the minimum.
async fn world(folder: &Path) -> World {
    let mut world = World::new().await;
    world.config["policies"] = json!({});
    world.policy_program = Some(program(folder));
    world.journal = Some(folder.join("journal"));
    world.api.put_policy("minimum", "return 'minimum'");
    world.api.change_vm("vm", |vm| {
        vm["metadata"]["annotations"] = json!({POLICY: "minimum"});
    });
    world
}

fn policy(world: &World) -> Value {
    let dump = world.state.dump();
    dump.pointer("/pods/0/policy").cloned().unwrap_or_default()
}

/// The policy answers one unit, as the script does.
#[derive(Debug, Default)]
struct Minimum {
    asked: u64,
}

impl Oracle for Minimum {
    fn spec(&mut self, digest: &str) -> Option<std::sync::Arc<Spec>> {
        let spec = Spec::of_source("return 'minimum'");
        (spec.digest().to_string() == digest).then(|| spec.into())
    }

    fn forget(&mut self, _: u32) {}

    fn sample(&mut self, _: u32, _: f64, _: std::collections::BTreeMap<String, f64>) {}

    fn ask(&mut self, _: &str, _: u32, _: f64, _: &Input) -> Option<Reasked> {
        self.asked += 1;
        let answer = json!({"cu": 1, "reason": "minimum"});
        Some(Ok(Answer::read(&answer).expect("an answer")))
    }
}

/// Requirement: V06, V05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v06_candidate_that_wants_the_minimum_shrinks_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut world = world(folder.path()).await;
    world.start_connected().await;
    world.guest.set(Page::Good(0.9, 0.0));
    world
        .trace
        .until("it grows", |all| position(all, patched_to(4)))
        .await;
    // The worker may be late on a busy machine. Both ends of a question count.
    world
        .until_metric(
            "autoscaling_agent_policy_evaluations_total{policy=\"minimum\",role=\"shadow\"",
        )
        .await;
    until("the policy is shown with an answer", || {
        policy(&world)["answer"].is_object()
    })
    .await;
    let shown = policy(&world);
    assert_eq!(shown["name"], "minimum", "{shown}");
    let all = world.trace.all();
    let asked = |seen: &Seen| matches!(seen, Seen::AskedToShrink(_));
    assert_eq!(position(&all, asked), None, "{all:?}");
    let sizes: Vec<_> = permits(&all).into_iter().map(|(size, _)| size).collect();
    assert!(sizes.is_sorted_by_key(|size| size.mem), "{sizes:?}");
    world.stop().await;

    let part = folder.path().join("journal/agent");
    let mut replay = Replay::new().with_oracle(Box::new(Minimum::default()));
    let mut answers = 0;
    for entry in std::fs::read_dir(part).expect("a journal") {
        let bytes = std::fs::read(entry.expect("an entry").path()).expect("a segment");
        let scan = scan(&bytes);
        assert!(scan.is_good(), "{:?}", scan.damages);
        for line in scan.lines {
            let record = line.record.expect("a record");
            answers += u32::from(matches!(record, Record::Answered(_)));
            replay.take(record);
        }
    }
    let report = replay.finish();
    assert!(answers > 0 && report.is_equal(), "{report:#?}");
    let spec = Spec::of_source("return 'minimum'");
    let source = folder.path().join("journal/policies");
    let source = source.join(format!("{}.json", spec.digest()));
    let kept = std::fs::read(source).expect("the source is kept");
    assert_eq!(serde_json::from_slice::<Spec>(&kept).expect("a spec"), spec);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_policy_and_missing_program_leave_sizing_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut world = world(folder.path()).await;
    world.policy_program = Some("/nowhere/bellows-policy".into());
    world.start_connected().await;
    world.guest.set(Page::Good(0.9, 0.0));
    world
        .trace
        .until("it grows", |all| position(all, patched_to(4)))
        .await;
    until("the missing program is named", || {
        let problem = world.state.dump()["policies"]["workers"]["shadow"]["problem"].to_string();
        problem.contains("/nowhere/bellows-policy")
    })
    .await;
    world.api.change_vm("vm", |vm| {
        vm["metadata"]["annotations"] = json!({POLICY: "absent"});
    });
    world
        .until_metric("autoscaling_agent_policy_unknown 1")
        .await;
    assert_eq!(policy(&world)["unknown"], "absent");
    world.api.change_vm("vm", |vm| {
        vm["metadata"]["annotations"] = json!({POLICY: "builtin"});
    });
    world
        .until_metric("autoscaling_agent_policy_unknown 0")
        .await;
    world.stop().await;
}

/// The version that decides, the candidate, and the problem of the agent's only policy.
fn known(world: &World) -> [Value; 3] {
    let dump = world.state.dump();
    let known = dump.pointer("/policies/known/0");
    let known = known.cloned().unwrap_or_default();
    ["live", "candidate", "problem"].map(|name| known[name].clone())
}

/// Ends the agent, and starts one in a process of its own that cannot read policies.
async fn restart_without_policies(world: &mut World) {
    world.stop().await;
    world.api.hide_policies(true);
    world.state = StateHandle::new();
    world.start_connected().await;
}

fn put_version(world: &World, newest: &Spec, deciding: &Spec) {
    let status = json!({"live": {"digest": deciding.digest()}});
    let spec = json!({"source": newest.source});
    world.api.put_policy_with("minimum", spec, status);
}

/// Requirement: V40
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v40_agent_that_starts_while_policies_cannot_be_read_goes_on_with_those_it_stored() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut world = world(folder.path()).await;
    let (live, newest) = (Spec::of_source("return 1"), Spec::of_source("return 2"));
    put_version(&world, &live, &live);
    world.start_connected().await;
    let both = [json!(live.digest()), json!(newest.digest()), Value::Null];
    until("the version decides", || known(&world)[0] == both[0]).await;
    put_version(&world, &newest, &live);
    until("the newer one is a candidate", || known(&world) == both).await;
    let stored = folder.path().join("journal/policies/known.json");
    until("both are stored", || {
        let text = std::fs::read_to_string(&stored).unwrap_or_default();
        text.contains(&newest.digest().to_string())
    })
    .await;
    restart_without_policies(&mut world).await;
    until("the version is asked about the VM", || {
        let shown = policy(&world);
        shown["role"] == "live" && shown["answer"].is_object()
    })
    .await;
    assert_eq!(known(&world), both);
    world.api.hide_policies(false);
    put_version(&world, &newest, &newest);
    until("the API is followed again", || known(&world)[0] == both[1]).await;
    world.stop().await;
}

/// Requirement: V40
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v40_altered_stored_source_decides_nothing_and_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut world = world(folder.path()).await;
    let live = Spec::of_source("return 1");
    put_version(&world, &live, &live);
    world.start_connected().await;
    let stored = folder.path().join("journal/policies");
    until("it is stored", || stored.join("known.json").exists()).await;
    let source = stored.join(format!("{}.json", live.digest()));
    let text = std::fs::read_to_string(&source).expect("a source");
    std::fs::write(&source, text.replace("return 1", "return 9")).expect("written");
    restart_without_policies(&mut world).await;
    until("the version is missing", || {
        let [live, _, problem] = known(&world);
        let problem = problem.as_str().unwrap_or_default();
        live.is_null() && problem.contains("its source is not found")
    })
    .await;
    world.stop().await;
}

/// Requirement: V07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v07_answers_to_a_candidate_are_reported_beside_the_metrics() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut world = world(folder.path()).await;
    world.start_connected().await;
    world.guest.set(Page::Good(0.9, 0.0));
    until("an answer is reported", || {
        let reports = world.state.policy_reports();
        reports.iter().any(|report| report.running.answers > 0)
    })
    .await;
    let page = world.get(|addresses| addresses.metrics, "/policies").await;
    let (_, body) = page.split_once("\r\n\r\n").expect("a body");
    let reports: Vec<VersionReport> = serde_json::from_str(body).expect("reports");
    let [report] = &reports[..] else {
        panic!("{reports:?}")
    };
    let digest = Spec::of_source("return 'minimum'").digest().to_string();
    assert_eq!((&*report.policy, &report.digest), ("minimum", &digest));
    assert!(report.has_journal, "{report:?}");
    assert_eq!(report.running.vms.len(), 1, "{report:?}");
    assert!(report.running.decided.is_empty(), "it decides nothing");
    assert_eq!(report.alarms.deciding, 0);
    world.stop().await;
}
