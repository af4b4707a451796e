//! Policies of sets on one machine, with the real binaries: a candidate changes nothing, the live
//! version decides counts, values and the wish for nodes, and a fault keeps the counts. With guests
//! their load decides the number.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "policy_sets/guests.rs"]
mod guests;

use std::time::Duration;

use bellows_tests::patience::wait_for;
use bellows_tests::site::Site;
use serde_json::{Value, json};

/// A policy is asked every 10 s.
const PATIENCE: Duration = Duration::from_secs(90);
/// The gate looks once a minute.
const GATE_PATIENCE: Duration = Duration::from_secs(360);
/// Image that no machine has.
const NO_IMAGE: &str = "bellows/no-such-image:1";
/// Flags of a small member.
const SMALL: [&str; 5] = ["--cpu-max", "1", "--memory-max", "1Gi", "--no-autoscale"];

/// Decides the number, a value and a command, and asks for nodes.
const POLICY: &str = "return function(i)
  local answer = {
    sets = { web = { count = i.params.count, command = 'drain' } },
    kv = { web = { mode = 'fast', of = 'policy' } },
  }
  if i.params.nodes then
    answer.nodes = { want = i.params.nodes, why = 'load' }
  end
  return answer
end
";

struct Policies {
    site: Site,
    folder: tempfile::TempDir,
}

impl Policies {
    async fn fresh() -> Self {
        Self {
            site: Site::fresh().await.unwrap(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    async fn create(&self, more: &[&str]) {
        self.create_of(NO_IMAGE, more).await;
    }

    async fn create_of(&self, image: &str, more: &[&str]) {
        let mut words = vec![
            "vmset", "create", "web", "--image", image, "--policy", "web",
        ];
        words.extend(SMALL);
        words.extend(more);
        self.site.bellows(&words).await.unwrap();
    }

    async fn apply(&self, source: &str, more: &[&str]) -> Result<String, String> {
        let file = self.folder.path().join("web.lua");
        std::fs::write(&file, source).unwrap();
        let mut words = vec!["apply", file.to_str().unwrap(), "--scope", "set"];
        words.extend(more);
        self.order(&words).await
    }

    async fn order(&self, words: &[&str]) -> Result<String, String> {
        let mut all = vec!["policy"];
        all.extend(words);
        let said = self.site.bellows(&all).await;
        said.map_err(|error| format!("{error:#}"))
    }

    /// Promotes the newest version. On a busy machine its last answer may be late, which the next
    /// one mends.
    async fn promote(&self) {
        let words = ["promote", "web", "--force", "--reason", "a test"];
        wait_for("the promotion", PATIENCE, || self.order(&words))
            .await
            .unwrap();
    }

    async fn get(&self, kind: &str, name: &str) -> Result<Value, String> {
        let text = self.site.kubectl(&["get", kind, name, "-o", "json"]).await;
        let text = text.map_err(|error| format!("{error:#}"))?;
        serde_json::from_str(&text).map_err(|error| error.to_string())
    }

    async fn until(
        &self,
        what: &str,
        (kind, name): (&str, &str),
        patience: Duration,
        holds: impl Fn(&Value) -> bool,
    ) -> Value {
        wait_for(what, patience, || async {
            let object = self.get(kind, name).await?;
            let held = holds(&object);
            held.then_some(object.clone())
                .ok_or_else(|| object.to_string())
        })
        .await
        .unwrap()
    }

    async fn until_count(&self, count: u64, patience: Duration) {
        let what = format!("a count of {count}");
        let holds = |set: &Value| set["spec"]["replicas"] == count;
        self.until(&what, ("vmset", "web"), patience, holds).await;
    }

    /// Waits until the shadow or the live version has wanted a count.
    async fn until_wants(&self, role: &str, count: u64) {
        let what = format!("that the {role} version wants {count}");
        let holds = |policy: &Value| {
            policy["status"]["sets"][role]["sets"]["default/web"]["wants"] == count
        };
        self.until(&what, ("spol", "web"), PATIENCE, holds).await;
    }

    /// Wishes in the file of the state directory.
    fn wishes(&self) -> Result<Value, String> {
        let file = self.site.state_dir().join("capacity-wishes.json");
        let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
        serde_json::from_str(&text).map_err(|error| error.to_string())
    }
}

/// Requirement: V06, V12, V15, V17, V39. A candidate changes nothing. The live version decides the
/// count, the members' values and command, and a program of the operator reads its wish.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v15_v17_v39_live_policy_decides_count_values_and_wish() {
    let policies = Policies::fresh().await;
    policies
        .create(&["--kv", "mode=careful", "--command", "drain"])
        .await;
    policies
        .apply(POLICY, &["--params", "count=3", "--params", "nodes=5"])
        .await
        .unwrap();
    policies.until_wants("shadow", 3).await;
    let set = policies.get("vmset", "web").await.unwrap();
    assert_eq!(set["spec"]["replicas"], 1, "a candidate changes nothing");
    assert!(set["spec"]["chosen"].is_null(), "{set}");
    policies.get("cwish", "web").await.unwrap_err();

    policies.promote().await;
    policies.until_count(3, PATIENCE).await;
    let file = policies
        .until(
            "the values in the members' file",
            ("configmap", "web-members"),
            PATIENCE,
            |map| {
                let text = map["data"]["members.json"].as_str().unwrap_or_default();
                text.contains("web-2") && text.contains("drain")
            },
        )
        .await;
    let file: Value = serde_json::from_str(file["data"]["members.json"].as_str().unwrap()).unwrap();
    assert_eq!(
        file["kv"],
        json!({"mode": "careful", "of": "policy"}),
        "the set's value wins"
    );
    assert_eq!(file["command"], "drain");

    // A program of the operator reads the wish and reports that it is met.
    let wish = policies
        .until("the wish", ("cwish", "web"), PATIENCE, |_| true)
        .await;
    assert_eq!(
        (&wish["spec"]["nodes"], &wish["spec"]["why"]),
        (&json!(5), &json!("load"))
    );
    wait_for("the wish in the file", PATIENCE, || async {
        let wishes = policies.wishes()?;
        let one = &wishes["wishes"][0];
        let is_it = one["name"] == "web" && one["nodes"] == 5;
        is_it.then_some(()).ok_or_else(|| wishes.to_string())
    })
    .await
    .unwrap();
    let condition = json!({"type": "Fulfilled", "status": "True", "reason": "Provided",
        "message": "5 nodes", "lastTransitionTime": "2026-11-29T12:00:00Z"});
    let patch = json!({"status": {"conditions": [condition]}}).to_string();
    let words = [
        "patch",
        "cwish",
        "web",
        "--subresource=status",
        "--type=merge",
        "-p",
        &patch,
    ];
    policies.site.kubectl(&words).await.unwrap();

    let shown = policies.order(&["show", "web"]).await.unwrap();
    assert!(
        shown.contains("default/web: has 3 members, and should have 3"),
        "{shown}"
    );
    let report = policies
        .order(&["report", "web", "-o", "json"])
        .await
        .unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert!(report["live"]["answers"].as_u64() >= Some(1), "{report}");

    // Without a live version the count stays, and nothing is wished for any more.
    policies
        .order(&["demote", "web", "--reason", "a test"])
        .await
        .unwrap();
    wait_for("no wish", PATIENCE, || async {
        let wish = policies.get("cwish", "web").await;
        wish.map_or(Ok(()), |wish| Err(wish.to_string()))
    })
    .await
    .unwrap();
    let set = policies.get("vmset", "web").await.unwrap();
    assert_eq!(set["spec"]["replicas"], 3);
}

/// Requirement: V33. A version that faults keeps the counts and is taken back by the gate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v33_policy_of_sets_that_faults_keeps_counts_and_is_taken_back() {
    let policies = Policies::fresh().await;
    policies.create(&[]).await;
    let source = "return function(i)
      local web = i.sets.web
      if web.count > 1 then return { sets = { web = { count = 9, image = 'other' } } } end
      return { sets = { web = { count = 2 } } }
    end";
    policies.apply(source, &[]).await.unwrap();
    policies.until_wants("shadow", 2).await;
    policies.promote().await;
    policies.until_count(2, PATIENCE).await;
    let holds = |policy: &Value| {
        let conditions = policy["status"]["conditions"].as_array();
        let mut all = conditions.into_iter().flatten();
        all.any(|one| one["type"] == "Demoted" && one["status"] == "True")
    };
    let policy = policies
        .until("the demotion", ("spol", "web"), GATE_PATIENCE, holds)
        .await;
    assert!(policy["status"]["live"].is_null(), "{policy}");
    let set = policies.get("vmset", "web").await.unwrap();
    assert_eq!(set["spec"]["replicas"], 2);
    // A version with a fault is not promoted, not even by force.
    let holds = |policy: &Value| policy["status"]["sets"]["shadow"]["problem"].is_string();
    policies
        .until("its problem", ("spol", "web"), PATIENCE, holds)
        .await;
    let words = ["promote", "web", "--force", "--reason", "a test"];
    let refused = policies.order(&words).await.unwrap_err();
    assert!(refused.contains("sets.web.image"), "{refused}");
}

/// Requirement: V07. A candidate of sets is promoted by the gate: refused while evidence is
/// missing, with what is not judged, and without a canary once the evidence is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v07_candidate_of_sets_is_promoted_without_force_once_the_gate_has_its_evidence() {
    let policies = Policies::fresh().await;
    policies.create(&["--command", "drain"]).await;
    let params = ["--params", "count=2"];
    policies.apply(POLICY, &params).await.unwrap();
    policies.until_wants("shadow", 2).await;
    let gate_says = |policy: &Value, status: &str| {
        let conditions = policy["status"]["conditions"].as_array();
        let mut all = conditions.into_iter().flatten();
        all.any(|one| one["type"] == "Promotable" && one["status"] == status)
    };
    let not_so = |policy: &Value| gate_says(policy, "False");
    policies
        .until("the gate's look", ("spol", "web"), GATE_PATIENCE, not_so)
        .await;
    let words = ["promote", "web", "--reason", "a test"];
    let refused = policies.order(&words).await.unwrap_err();
    for part in ["hours 0 of 24", "There is no model of sets"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    let gate = json!({"spec": {"gate": {"hours": 0, "decisions": 1, "vms": 1}}}).to_string();
    let patch = ["patch", "spol", "web", "--type=merge", "-p", &gate];
    policies.site.kubectl(&patch).await.unwrap();
    let so = |policy: &Value| gate_says(policy, "True");
    policies
        .until("the evidence", ("spol", "web"), GATE_PATIENCE, so)
        .await;
    let said = policies.order(&words).await.unwrap();
    assert!(said.contains("decides now about the sets"), "{said}");
    let policy = policies.get("spol", "web").await.unwrap();
    assert!(policy["status"]["live"].is_object(), "{policy}");
    assert!(policy["status"]["candidate"].is_null(), "{policy}");
    policies.until_count(2, PATIENCE).await;
}

/// Requirement: V05. Answers about sets are in the journal, and the report and `vmset why` have
/// them. One question about the sets as they are changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v05_answers_about_sets_are_in_the_journal_and_why_names_them() {
    let policies = Policies::fresh().await;
    policies.create(&["--command", "drain"]).await;
    let file = policies.folder.path().join("web.lua");
    std::fs::write(
        &file,
        POLICY.replace("i.params.count", "i.sets.web.count + 2"),
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let said = policies.order(&["run", file, "--sets", "default"]).await;
    let said = said.unwrap();
    for part in ["\"namespace\":\"default\"", "\"count\":3", "drain"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let refused = policies.order(&["run", file, "--sets", "other"]).await;
    let refused = refused.unwrap_err();
    assert!(
        refused.contains("namespace other has no VM set"),
        "{refused}"
    );
    let set = policies.get("vmset", "web").await.unwrap();
    assert_eq!(set["spec"]["replicas"], 1, "nothing is done");

    let params = ["--params", "count=3"];
    policies.apply(POLICY, &params).await.unwrap();
    policies.until_wants("shadow", 3).await;
    policies.promote().await;
    policies.until_count(3, PATIENCE).await;
    let why = wait_for("the answer in the journal", PATIENCE, || async {
        let why = policies.site.bellows(&["vmset", "why", "web"]).await;
        let why = why.map_err(|error| format!("{error:#}"))?;
        let is_it = why.contains("wants 3 members since") && why.contains("1 to 3 members");
        is_it.then(|| why.clone()).ok_or(why)
    })
    .await
    .unwrap();
    assert!(
        why.contains("Set default/web should have 3 members"),
        "{why}"
    );
    let report = policies.order(&["report", "web", "-o", "json"]).await;
    let report: Value = serde_json::from_str(&report.unwrap()).unwrap();
    let last = report["journal"]["last"].as_array().unwrap();
    let is_live = |line: &&Value| line["as"] == "live" && line["sets"]["web"]["want"] == 3;
    assert!(last.iter().any(|line| is_live(&line)), "{report}");
    let verified = policies.site.bellows(&["journal", "verify"]).await.unwrap();
    assert!(
        verified.contains("every line and every link is good"),
        "{verified}"
    );
    let early = ["vmset", "why", "web", "--at", "2020-01-01T00:00:00Z"];
    let refused = policies.site.bellows(&early).await.unwrap_err();
    assert!(
        format!("{refused:#}").contains("has nothing about set"),
        "{refused:#}"
    );
}

/// Bad input of policies of sets is refused with its rule, and changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_policies_of_sets_are_refused_with_their_rule() {
    let policies = Policies::fresh().await;
    for (more, rule) in [
        (["--series", "pressure"], "spec.series[0]"),
        (["--feed", "load=host_load1"], "NAME=PORT:METRIC"),
        (["--params", "count"], "NAME=NUMBER"),
    ] {
        let refused = policies.apply(POLICY, &more).await.unwrap_err();
        assert!(refused.contains(rule), "{more:?}: {refused}");
    }
    let wish = json!({
        "apiVersion": "policy.bellows.dev/v1alpha1", "kind": "CapacityWish",
        "metadata": {"name": "x"}, "spec": {"nodes": 5_001, "why": "load"},
    });
    let file = policies.folder.path().join("wish.json");
    std::fs::write(&file, wish.to_string()).unwrap();
    let words = ["create", "-f", file.to_str().unwrap()];
    let refused = format!("{:#}", policies.site.kubectl(&words).await.unwrap_err());
    assert!(refused.contains("spec.nodes"), "{refused}");
    for words in [
        vec!["vmset", "create", "web", "--command", "rm -rf"],
        vec!["vmset", "create", "web", "--allow-version", "0"],
    ] {
        let refused = policies.site.bellows(&words).await.unwrap_err();
        assert!(format!("{refused:#}").contains("spec."), "{refused:#}");
    }
}
