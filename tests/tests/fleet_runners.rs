//! A running guest gets a runner of a new `bellows` on one machine.

use std::time::Duration;

use bellows_tests::guest::Guest;
use bellows_tests::patience::wait_for;
use bellows_tests::site::{Site, UpOptions, postgres_vm};
use bellows_tests::{guest_or_skip, other_build};
use serde_json::Value;
use test_records::retry::retry_known_tcg_bug;
use tokio::time::timeout;

const VM: &str = "kept";
const PATIENCE: Duration = Duration::from_secs(240);
/// Longest login. One that is cut by the move must not be waited for until the move has ended.
const LOGIN: Duration = Duration::from_secs(12);
const ROLLOUT: [&str; 5] = ["fleet", "rollout", "runner", "--output", "json"];

async fn order(site: &Site, more: &[&str]) -> Result<Value, String> {
    let words = [&ROLLOUT, more].concat();
    let output = site.bellows(&words).await;
    let output = output.map_err(|error| format!("{error:#}"))?;
    serde_json::from_str(&output).map_err(|error| error.to_string())
}

async fn pod_of(site: &Site) -> String {
    let vm = site.vm(VM).await.expect("a VM");
    vm.status.expect("a status").pod_name
}

async fn count(site: &Site) -> Result<i64, String> {
    let vm = site.vm(VM).await.map_err(|error| format!("{error:#}"))?;
    let ip = vm.status.unwrap_or_default().pod_ip;
    let guest = Guest::new(ip.parse().map_err(|_| "no address".to_owned())?);
    let guest = guest.map_err(|error| format!("{error:#}"))?;
    let database = guest.postgres().await;
    let database = database.map_err(|error| format!("{error:#}"))?;
    let rows = database.query("select count(*) from counted", &[]).await;
    let rows = rows.map_err(|error| error.to_string())?;
    Ok(rows[0].get(0))
}

async fn boot_id(site: &Site) -> String {
    let state = wait_for("a boot id", PATIENCE, || async {
        let state = site
            .runner(VM)
            .await
            .map_err(|error| format!("{error:#}"))?;
        state.boot_id.ok_or_else(|| "no daemon".to_owned())
    });
    state.await.expect("a guest")
}

/// What a login shell of the guest prints until its first command, and that.
async fn login(site: &Site) -> Result<String, String> {
    let commands = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    std::fs::write(commands.path(), "echo in\n").map_err(|error| error.to_string())?;
    let shell = timeout(LOGIN, site.ssh_shell(VM, commands.path())).await;
    let shell = shell.map_err(|_| "the login takes long".to_owned())?;
    shell.map_err(|error| format!("{error:#}"))
}

/// A login with a notice. The guest stands still for a while as it moves, and has the notice after
/// that until the move has ended.
async fn until_shown(site: &Site) -> String {
    let shown = wait_for("a notice at a login", PATIENCE, || async {
        let printed = login(site).await?;
        if printed == "in\n" {
            Err("no notice".to_owned())
        } else {
            Ok(printed)
        }
    });
    shown.await.expect("a notice")
}

/// The guest is moved by the order alone, once, and its memory and disk come along. Logins show a
/// notice until the end of the move.
///
/// Requirement: R39, R44
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guest_moves_to_a_runner_of_the_new_program() {
    let name = "guest_moves_to_a_runner_of_the_new_program";
    if !guest_or_skip(name) {
        return;
    }
    retry_known_tcg_bug(name, moves).await;
}

async fn moves() {
    let folder = tempfile::tempdir().expect("a folder");
    let former = other_build(folder.path()).expect("a copy");
    let how = UpOptions {
        program: Some(former),
        ..UpOptions::default()
    };
    let mut site = Site::fresh_with(how).await.expect("bellows up");
    let mut object = postgres_vm(VM, (1000, 1000, 1000), (1, 1, 1), false);
    // While it moves it counts twice, and this node has two CPUs.
    object["spec"]["overcommit"] = serde_json::json!({"cpu": 4});
    let guest = site.boot(&object).await.expect("a guest");
    let database = wait_for("the database", PATIENCE, || async {
        guest.postgres().await.map_err(|error| format!("{error:#}"))
    });
    let database = database.await.expect("a database");
    let rows = "create table counted as select generate_series(1, 1000) as n";
    database.batch_execute(rows).await.expect("a table");
    drop(database);
    let (pod, boot) = (pod_of(&site).await, boot_id(&site).await);

    // The runner would be a process of the former program again.
    let refused = order(&site, &["--without-kvm"]).await;
    let refused = refused.expect_err("bellows up is another program");
    assert!(refused.contains("is another program"), "{refused}");
    site.upgrade_up().await.expect("the new bellows up");
    assert_eq!(pod_of(&site).await, pod, "nobody moves without an order");

    let is_kvm = site.runner(VM).await.expect("a runner").accel == "kvm";
    if !is_kvm {
        let standing = order(&site, &[]).await.expect("nothing to move");
        assert_eq!(standing[0]["state"], "pending-restart", "{standing}");
        assert_eq!(pod_of(&site).await, pod);
        let why = site.bellows(&["fleet", "why", VM]).await.expect("a reason");
        assert!(why.contains("comes with the guest's next start"), "{why}");
    }
    let before = wait_for("a login", PATIENCE, || login(&site)).await;
    assert_eq!(before.expect("a login"), "in\n", "no notice");
    let (standing, shown) = tokio::join!(order(&site, &["--without-kvm"]), until_shown(&site));
    let standing = standing.expect("a move");
    assert_eq!(standing[0]["state"], "current", "{standing}");
    let words = "This machine is about to move to a new runner, version ";
    assert!(
        shown.starts_with(words) && shown.ends_with("\nin\n"),
        "{shown}"
    );
    let left = wait_for("a login", PATIENCE, || login(&site)).await;
    assert_eq!(
        left.expect("a login"),
        "in\n",
        "the notice goes with the end of the move"
    );
    let moved = pod_of(&site).await;
    assert_ne!(moved, pod);
    assert_eq!(boot_id(&site).await, boot, "it did not start again");
    let rows = wait_for("the rows", PATIENCE, || count(&site)).await;
    assert_eq!(rows.expect("a database"), 1000);
    let left = site.kubectl(&["get", "neonvmm", "-o", "name"]).await;
    assert_eq!(left.expect("a list").trim(), "", "the migration is deleted");
    let why = site.bellows(&["fleet", "why", VM]).await.expect("a reason");
    assert!(why.contains("runner: moved to sha256:"), "{why}");

    let again = order(&site, &["--without-kvm"]).await.expect("nothing");
    assert_eq!(again[0]["state"], "current", "{again}");
    assert_eq!(pod_of(&site).await, moved, "the same order moves nobody");
}
