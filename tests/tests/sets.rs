//! Sets of VMs on one machine, with the real binary: counts, versions and files without guests, and
//! the same with guests.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use bellows_tests::guest_or_skip;
use bellows_tests::patience::wait_for;
use bellows_tests::site::{BOOT_PATIENCE, Site};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);
/// Image of the guests, as the other tests of one machine have it.
const IMAGE: &str = "bellows/postgres:15";
/// Image that no machine has.
const NO_IMAGE: &str = "bellows/no-such-image:1";
/// Flags of a small member.
const SMALL: [&str; 5] = ["--cpu-max", "1", "--memory-max", "1Gi", "--no-autoscale"];

struct Sets {
    site: Site,
}

impl Sets {
    async fn fresh() -> Self {
        Self {
            site: Site::fresh().await.unwrap(),
        }
    }

    async fn create(&self, image: &str, more: &[&str]) {
        let mut words = vec!["vmset", "create", "web", "--image", image];
        words.extend(SMALL);
        words.extend(more);
        self.site.bellows(&words).await.unwrap();
    }

    async fn order(&self, words: &[&str]) -> Result<String, String> {
        let mut all = vec!["vmset"];
        all.extend(words);
        let said = self.site.bellows(&all).await;
        said.map_err(|error| format!("{error:#}"))
    }

    async fn patch(&self, patch: &Value) -> Result<String, String> {
        let text = patch.to_string();
        let words = ["patch", "vmset", "web", "--type=merge", "-p", &text];
        let said = self.site.kubectl(&words).await;
        said.map_err(|error| format!("{error:#}"))
    }

    async fn get(&self) -> Result<Value, String> {
        let text = self.order(&["get", "web", "-o", "json"]).await?;
        serde_json::from_str(&text).map_err(|error| error.to_string())
    }

    async fn until(&self, what: &str, patience: Duration, holds: impl Fn(&Value) -> bool) -> Value {
        wait_for(what, patience, || async {
            let view = self.get().await?;
            if holds(&view) {
                Ok(view)
            } else {
                Err(view.to_string())
            }
        })
        .await
        .unwrap()
    }

    /// Names and uids of the VMs.
    async fn vms(&self) -> Vec<(String, String)> {
        let text = self.site.kubectl(&["get", "neonvm", "-o", "json"]).await;
        let list: Value = serde_json::from_str(&text.unwrap()).unwrap();
        let items = list["items"].as_array().unwrap().iter();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        items
            .filter(|vm| vm["metadata"]["deletionTimestamp"].is_null())
            .map(|vm| (text(&vm["metadata"]["name"]), text(&vm["metadata"]["uid"])))
            .collect()
    }

    async fn names(&self) -> Vec<String> {
        self.vms().await.into_iter().map(|vm| vm.0).collect()
    }

    async fn wait_names(&self, names: &[&str]) {
        let what = format!("members {names:?}");
        wait_for(&what, PATIENCE, || async {
            let now = self.names().await;
            if now == names {
                Ok(())
            } else {
                Err(format!("{now:?}"))
            }
        })
        .await
        .unwrap();
    }

    /// Changes of the set in the journal, as what, object and reason.
    async fn journal(&self) -> Vec<String> {
        let part = self.site.state_dir().join("journal/sets");
        let export = ["journal", "export", part.to_str().unwrap()];
        let exported = self.site.bellows(&export).await.unwrap();
        let records = exported.lines().map(|line| {
            let record: Value = serde_json::from_str(line).unwrap();
            let text = |name: &str| record[name].as_str().unwrap_or_default().to_owned();
            let said = [text("do"), text("on"), text("to"), text("why")];
            (record["k"] == "A").then(|| said.join("|"))
        });
        records.flatten().collect()
    }

    async fn members_file(&self) -> Value {
        let words = ["get", "configmap", "web-members", "-o", "json"];
        let map: Value = serde_json::from_str(&self.site.kubectl(&words).await.unwrap()).unwrap();
        serde_json::from_str(map["data"]["members.json"].as_str().unwrap()).unwrap()
    }
}

/// Requirement: V15. The count follows the command; the members that stay are the same objects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v15_count_of_a_set_follows_the_command_and_members_stay() {
    let sets = Sets::fresh().await;
    sets.create(NO_IMAGE, &["--replicas", "2"]).await;
    sets.wait_names(&["web-0", "web-1"]).await;
    let first = sets.vms().await;
    sets.order(&["scale", "web", "4"]).await.unwrap();
    sets.wait_names(&["web-0", "web-1", "web-2", "web-3"]).await;
    sets.order(&["scale", "web", "1"]).await.unwrap();
    sets.wait_names(&["web-0"]).await;
    assert_eq!(sets.vms().await, first[..1]);
    let list = sets.order(&["list", "-o", "json"]).await.unwrap();
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["items"][0]["name"], "web");
    assert_eq!(list["items"][0]["replicas"], 1);
    wait_for("all changes in the journal", PATIENCE, || async {
        let journal = sets.journal().await;
        let expected = [
            "set member create|default/web-0|of set web|2 members are wanted",
            "set count|default/web|2 to 4 members|",
            "set member create|default/web-3|of set web|4 members are wanted",
            "set count|default/web|4 to 1 members|",
            "set member delete|default/web-1|of set web|1 members are wanted",
        ];
        let is_there = |line: &&str| journal.iter().any(|one| one == *line);
        let missing: Vec<&str> = expected
            .into_iter()
            .filter(|line| !is_there(line))
            .collect();
        missing
            .is_empty()
            .then_some(())
            .ok_or(format!("{missing:?} of {journal:?}"))
    })
    .await
    .unwrap();

    sets.order(&["delete", "web", "--yes"]).await.unwrap();
    assert!(sets.vms().await.is_empty());
    wait_for("no config map of the set", PATIENCE, || async {
        let map = sets.site.kubectl(&["get", "configmap", "web-members"]);
        map.await.map_or(Ok(()), Err)
    })
    .await
    .unwrap();
}

/// Requirement: V16. A new template changes nothing before an upgrade. An upgrade to an image that
/// does not come up replaces one member and halts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v16_upgrade_that_halts_is_shown_and_undone() {
    let sets = Sets::fresh().await;
    sets.create(NO_IMAGE, &["--replicas", "2"]).await;
    sets.wait_names(&["web-0", "web-1"]).await;
    let first = sets.vms().await;
    let refused = sets.order(&["undo", "web"]).await.unwrap_err();
    assert!(refused.contains("no version to go back to"), "{refused}");
    let image = json!({"guest": {"rootDisk": {"image": "bellows/other:1"}}});
    let patch = json!({"spec": {
        "progressDeadlineSeconds": 5, "template": {"spec": image},
    }});
    sets.patch(&patch).await.unwrap();
    sets.until("a second version", PATIENCE, |view| view["newest"] == 2)
        .await;
    assert_eq!(sets.vms().await, first, "nothing changes by itself");

    let halted = sets.order(&["upgrade", "web", "--wait"]).await.unwrap_err();
    assert!(
        halted.contains("halted") && halted.contains("undo"),
        "{halted}"
    );
    let view = sets.get().await.unwrap();
    assert_eq!(view["version"], 1, "{view}");
    let members = view["memberList"].as_array().unwrap();
    let versions: Vec<&Value> = members.iter().map(|one| &one["version"]).collect();
    assert_eq!(versions, ["2", "1"]);
    assert_eq!(sets.vms().await[1], first[1], "the other member stays");

    sets.order(&["undo", "web"]).await.unwrap();
    sets.until("the version before", PATIENCE, |view| {
        let members = view["memberList"].as_array().unwrap();
        members.len() == 2 && members.iter().all(|one| one["version"] == "1")
    })
    .await;
    assert_eq!(sets.vms().await[1], first[1]);
}

/// Requirement: V17. The config map follows the members and the values of the set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v17_config_map_follows_the_set() {
    let sets = Sets::fresh().await;
    sets.create(NO_IMAGE, &["--replicas", "2", "--kv", "mode=careful"])
        .await;
    sets.wait_names(&["web-0", "web-1"]).await;
    let names = |file: &Value| -> Vec<String> {
        let members = file["members"].as_array().unwrap().iter();
        members
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect()
    };
    wait_for("both members in the file", PATIENCE, || async {
        let file = sets.members_file().await;
        let is_whole = names(&file) == ["web-0", "web-1"];
        is_whole.then_some(()).ok_or_else(|| file.to_string())
    })
    .await
    .unwrap();
    assert_eq!(sets.members_file().await["kv"], json!({"mode": "careful"}));
    sets.patch(&json!({"spec": {"replicas": 1, "kv": {"mode": "fast"}}}))
        .await
        .unwrap();
    wait_for("the change in the file", PATIENCE, || async {
        let file = sets.members_file().await;
        let is_changed = names(&file) == ["web-0"] && file["kv"]["mode"] == "fast";
        is_changed.then_some(()).ok_or_else(|| file.to_string())
    })
    .await
    .unwrap();
}

/// Bad sets are refused with the field, and change nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_sets_are_refused_with_their_field() {
    let sets = Sets::fresh().await;
    for (words, field) in [
        (vec!["create", "web", "--replicas", "1001"], "spec.replicas"),
        (vec!["create", "web", "--grow", "0"], "spec.rates.grow"),
        (vec!["create", "web.x"], "metadata.name"),
        (vec!["create", "web", "--kv", "a b=c"], "spec.kv"),
        (vec!["create", "web", "--cpu-min", "3"], "--cpu-max"),
    ] {
        let refused = sets.order(&words).await.unwrap_err();
        assert!(refused.contains(field), "{words:?}: {refused}");
    }
    sets.create(NO_IMAGE, &["--replicas", "0"]).await;
    let privileged = json!({"spec": {"template": {"spec": {"runnerImage": "mine"}}}});
    let refused = sets.patch(&privileged).await.unwrap_err();
    assert!(refused.contains("runnerImage"), "{refused}");
    for words in [["scale", "no", "1"], ["get", "no", "-o=json"]] {
        let refused = sets.order(&words).await.unwrap_err();
        assert!(refused.contains("does not exist"), "{refused}");
    }
    assert!(sets.vms().await.is_empty());
}

/// Requirement: V15, V16, V17. With guests: members come up, read one another's addresses, follow
/// the set, and an upgrade to an image that does not boot halts and is undone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v15_v16_v17_members_boot_follow_their_set_and_survive_a_bad_upgrade() {
    if !guest_or_skip("v15_v16_v17_members_boot_follow_their_set_and_survive_a_bad_upgrade") {
        return;
    }
    let sets = Sets::fresh().await;
    sets.create(IMAGE, &["--replicas", "1", "--kv", "mode=careful"])
        .await;
    let up = |count: u64| move |view: &Value| view["ready"] == count;
    sets.until("the first member up", BOOT_PATIENCE, up(1))
        .await;
    sets.order(&["scale", "web", "2"]).await.unwrap();
    let view = sets.until("both members up", BOOT_PATIENCE, up(2)).await;
    let address = view["memberList"][1]["address"]
        .as_str()
        .unwrap()
        .to_owned();
    let line = format!("web-1 {address} 1 up");
    wait_for(
        "the second member's address in the first guest",
        PATIENCE,
        || async {
            let read = sets
                .site
                .ssh("web-0", "cat /etc/members/members", None)
                .await;
            let text = read.map_err(|error| format!("{error:#}"))?;
            let is_there = text.lines().any(|one| one == line);
            is_there.then_some(()).ok_or(text)
        },
    )
    .await
    .unwrap();

    let first = sets.vms().await;
    sets.patch(&json!({"spec": {"progressDeadlineSeconds": 30}}))
        .await
        .unwrap();
    let words = ["upgrade", "web", "--image", NO_IMAGE, "--wait"];
    let halted = sets.order(&words).await.unwrap_err();
    assert!(halted.contains("web-0 is not ready after 30 s"), "{halted}");
    assert_eq!(sets.vms().await[1], first[1], "the other member stays");
    // A guest may need longer to boot than the upgrade to the missing image was given.
    sets.patch(&json!({"spec": {"progressDeadlineSeconds": 600}}))
        .await
        .unwrap();
    sets.order(&["undo", "web"]).await.unwrap();
    sets.until("both members up again", BOOT_PATIENCE, |view| {
        view["ready"] == 2 && view["upgrade"].is_null()
    })
    .await;

    sets.order(&["scale", "web", "1"]).await.unwrap();
    sets.wait_names(&["web-0"]).await;
    wait_for("the file without the second member", PATIENCE, || async {
        let read = sets
            .site
            .ssh("web-0", "cat /etc/members/members", None)
            .await;
        let text = read.map_err(|error| format!("{error:#}"))?;
        let is_gone = !text.contains("web-1");
        is_gone.then_some(()).ok_or(text)
    })
    .await
    .unwrap();
    sets.order(&["delete", "web", "--yes"]).await.unwrap();
}
