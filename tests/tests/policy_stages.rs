//! Stages of a policy on one machine, without guests: what its controller does by itself, what the
//! gate tells a person, and what is left when everything is killed at any moment.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use bellows_tests::bellows_bin;
use bellows_tests::patience::wait_for;
use bellows_tests::site::Site;
use protocol::policy::{ScalingPolicyStatus, Stage};
use serde_json::{Value, json};
use tokio::process::Command;

/// The controller looks once a minute.
const PATIENCE: Duration = Duration::from_secs(150);
/// Kills at each step.
const KILLS: u64 = 6;

struct Policy {
    site: Site,
    folder: tempfile::TempDir,
}

impl Policy {
    async fn new() -> Self {
        Self {
            site: Site::fresh().await.unwrap(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn source(&self, version: u8) -> PathBuf {
        let path = self.folder.path().join(format!("v{version}.lua"));
        let text = format!("return function(i) return std.hold(\"v{version}\") end\n");
        std::fs::write(&path, text).unwrap();
        path
    }

    async fn apply(&self, version: u8) {
        let path = self.source(version);
        let words = ["policy", "apply", path.to_str().unwrap(), "--name", "db"];
        self.site.bellows(&words).await.unwrap();
    }

    async fn order(&self, words: &[&str]) -> Result<String, String> {
        let mut all = vec!["policy"];
        all.extend(words);
        all.extend(["--reason", "a test"]);
        let said = self.site.bellows(&all).await;
        said.map_err(|error| format!("{error:#}"))
    }

    async fn status(&self) -> Result<ScalingPolicyStatus, String> {
        let text = self
            .site
            .kubectl(&["get", "spol", "db", "-o", "json"])
            .await;
        let text = text.map_err(|error| format!("{error:#}"))?;
        let object: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        ScalingPolicyStatus::of_object(&object)
    }

    async fn until(&self, what: &str, holds: impl Fn(&ScalingPolicyStatus) -> bool) {
        wait_for(what, PATIENCE, || async {
            let status = self.status().await?;
            if holds(&status) {
                Ok(())
            } else {
                Err(serde_json::to_string(&status).unwrap())
            }
        })
        .await
        .unwrap();
    }

    async fn patch(&self, patch: &Value, extra: &[&str]) {
        let text = patch.to_string();
        let mut words = vec!["patch", "spol", "db", "--type=merge", "-p", &text];
        words.extend(extra);
        self.site.kubectl(&words).await.unwrap();
    }
}

fn live(status: &ScalingPolicyStatus) -> Option<&str> {
    status.live.as_ref().map(|version| &*version.digest)
}

fn stage(status: &ScalingPolicyStatus) -> Option<Stage> {
    status.candidate.as_ref()?.stage
}

/// Requirement: V07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v07_good_candidate_comes_to_canary_by_itself_and_the_gate_says_what_is_missing() {
    let policy = Policy::new().await;
    policy.apply(1).await;
    policy
        .until("a look", |status| {
            status.condition_of("Promotable").is_some()
        })
        .await;
    let refused = policy.order(&["promote", "db"]).await.unwrap_err();
    for part in [
        "exit status: 1",
        "hours 0 of 24; decisions 0 of 2000; VMs 0 of 3",
        "--force",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    let gate = json!({"promote": "auto", "hours": 0, "decisions": 0, "vms": 0, "canaryHours": 0});
    policy.patch(&json!({"spec": {"gate": gate}}), &[]).await;
    policy
        .until("the canary", |status| stage(status) == Some(Stage::Canary))
        .await;
    policy
        .until("a look at it", |status| {
            let condition = status.condition_of("Promotable");
            condition.is_some_and(|one| one.reason == "CanaryIsEmpty")
        })
        .await;
    let refused = policy.order(&["promote", "db"]).await.unwrap_err();
    assert!(
        refused.contains("no judged hour of a VM in canary"),
        "{refused}"
    );
    let said = policy.order(&["promote", "db", "--force"]).await.unwrap();
    assert!(said.contains("decides now"), "{said}");
    let first = live(&policy.status().await.unwrap()).unwrap().to_owned();

    // Another version waits for an hour.
    policy.apply(2).await;
    policy
        .until("one change an hour", |status| {
            let condition = status.condition_of("Promotable");
            condition.is_some_and(|one| one.reason == "TooSoon")
        })
        .await;
    let ago = json!({"status": {"live": {"digest": first, "since": "2020-01-01T00:00:00Z"}}});
    policy.patch(&ago, &["--subresource=status"]).await;
    policy
        .until("the canary", |status| stage(status) == Some(Stage::Canary))
        .await;
    assert_eq!(live(&policy.status().await.unwrap()), Some(&*first));
    policy.order(&["promote", "db", "--force"]).await.unwrap();

    // The version before is put back.
    policy.apply(1).await;
    policy
        .until("the version before", |status| live(status) == Some(&*first))
        .await;
    let show = policy.site.bellows(&["policy", "list"]).await.unwrap();
    assert!(show.contains(&first[..8]), "{show}");
}

/// Requirement: V01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v01_version_that_does_not_compile_is_refused_and_one_that_answers_badly_is_said() {
    let policy = Policy::new().await;
    let path = policy.folder.path().join("db.lua");
    let apply = ["policy", "apply", path.to_str().unwrap()];
    std::fs::write(
        &path,
        "return function(i) return { cu = 2 reason = 'x' } end",
    )
    .unwrap();
    let refused = policy.site.bellows(&apply).await.unwrap_err();
    let refused = format!("{refused:#}");
    for part in ["exit status: 1", "does not compile: line 1", "policy check"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    policy.status().await.unwrap_err();

    std::fs::write(
        &path,
        "return function(i) return { cu = 2, reason = 'x y' } end",
    )
    .unwrap();
    let output = Command::new(bellows_bin())
        .args(apply)
        .arg("--state-dir")
        .arg(policy.site.state_dir())
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("check says: output: reason"), "{said}");
    policy.status().await.unwrap();
}

/// Everything is killed while an order is carried out. Afterwards the status is that before the
/// order or that after it.
///
/// Requirement: V05, V40
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v05_kill_of_everything_leaves_a_status_before_or_after_each_order() {
    let mut policy = Policy::new().await;
    policy.apply(1).await;
    policy.order(&["promote", "db", "--force"]).await.unwrap();
    let first = live(&policy.status().await.unwrap()).unwrap().to_owned();
    policy.apply(2).await;
    policy.order(&["promote", "db", "--force"]).await.unwrap();
    let second = live(&policy.status().await.unwrap()).unwrap().to_owned();
    let path = policy.source(1);
    let path = path.to_str().unwrap().to_owned();
    for (number, words) in (0..KILLS).flat_map(|number| {
        let apply = vec!["policy", "apply", &path, "--name", "db"];
        let promote = vec!["policy", "promote", "db", "--force", "--reason", "a test"];
        let demote = vec!["policy", "demote", "db", "--reason", "a test"];
        [apply, promote, demote].map(move |words| (number, words))
    }) {
        let mut order = Command::new(bellows_bin())
            .args(&words)
            .arg("--state-dir")
            .arg(policy.site.state_dir())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        // From the start of the order to its end, which takes 100 to 200 ms.
        tokio::time::sleep(Duration::from_millis(40 * number)).await;
        policy.site.kill_up().await.unwrap();
        let _ = order.kill().await;
        policy.site.restart_up().await.unwrap();
        let status = policy.status().await.unwrap();
        let decides = live(&status).map(str::to_owned);
        let versions = [&first, &second];
        assert!(
            decides
                .as_ref()
                .is_none_or(|digest| versions.contains(&digest)),
            "{words:?}: {status:?}"
        );
        let others = [&status.candidate, &status.previous].map(Option::as_ref);
        for other in others.into_iter().flatten() {
            assert!(versions.contains(&&other.digest), "{words:?}: {status:?}");
            assert_ne!(
                Some(&other.digest),
                decides.as_ref(),
                "{words:?}: {status:?}"
            );
        }
        let past = status
            .history
            .iter()
            .filter(|past| Some(&past.digest) == decides.as_ref());
        assert_eq!(past.count(), 0, "{words:?}: {status:?}");
    }
}
