//! Exit codes and messages of commands that need no instance: 64 for usage, 69 for something
//! missing, 75 for later.

mod support;

use support::Site;

#[test]
fn usage_is_64_and_help_is_0() {
    let site = Site::new();
    site.run(&["frobnicate"]).fails(64, &["frobnicate"]);
    site.run(&["get", "--output", "papyrus"])
        .fails(64, &["papyrus", "json"]);
    site.run(&["up", "--block", "1"]).fails(64, &["2..=250"]);
    site.run(&["vm", "create"]).fails(64, &["<NAME>"]);
    site.run(&["vm", "create", "x", "--cpu-min", "lots"])
        .fails(64, &["lots"]);
    site.run(&["top", "--interval", "0"]).fails(64, &["0.1"]);
    let help = site.run(&["--help"]).succeeds();
    assert!(
        help.out.contains("Exit codes") && help.out.contains("First steps"),
        "{help:#?}"
    );
    assert!(
        !help.out.contains("runner"),
        "the runner is not for people: {help:#?}"
    );
    for command in [
        "check", "up", "down", "get", "top", "resizes", "why", "ssh", "console", "image", "vm",
        "dump", "status", "psql",
    ] {
        let help = site.run(&[command, "--help"]).succeeds();
        assert!(help.out.contains("Usage: bellows"), "{help:#?}");
    }
    let version = site.run(&["version"]).succeeds();
    assert!(version.out.starts_with("bellows "), "{version:#?}");
}

#[test]
fn missing_instance_is_exit_75_with_the_start_command() {
    let site = Site::new();
    for arguments in [
        &["get"][..],
        &["top", "--once"],
        &["why", "pg"],
        &["ssh", "pg"],
        &["psql", "pg"],
        &["console", "pg"],
        &["kubectl", "get", "pods"],
    ] {
        site.run(arguments)
            .fails(75, &["does not exist", "bellows up"]);
    }
    for arguments in [&["status"][..], &["resizes"], &["dump"]] {
        site.run(arguments)
            .fails(75, &["no bellows up runs on", "bellows up"]);
    }
    let down = site.run(&["down"]).succeeds();
    assert!(down.out.contains("no bellows up ran"), "{down:#?}");
    assert!(
        !site.state().exists(),
        "asking must not make a state directory"
    );
}

#[test]
fn journal_of_policies_is_on_the_nodes_of_a_cluster() {
    let site = Site::new();
    for command in [
        &["policy", "report", "db"][..],
        &["policy", "run", "db.lua", "--vm", "pg"],
    ] {
        let words = [command, &["--kubeconfig", "cluster.kubeconfig"]].concat();
        site.run(&words).fails(
            69,
            &[
                "agents of a cluster keep their journals on the nodes",
                "kubectl bellows journal fetch DIR",
            ],
        );
    }
}

#[test]
fn purge_asks_and_removes_only_a_state_directory() {
    let site = Site::new();
    site.run(&["down", "--purge"])
        .fails(64, &["nobody can be asked", "--yes"]);
    std::fs::create_dir_all(site.state()).unwrap();
    std::fs::write(site.state().join("precious"), "x").unwrap();
    site.run(&["down", "--purge", "--yes"])
        .fails(64, &["no state directory"]);
    assert!(site.state().join("precious").exists());
    site.run(&["down", "--yes"]).fails(64, &["--purge"]);
}

#[test]
fn a_vm_is_printed_without_a_server_and_bad_sizes_name_the_rule() {
    let site = Site::new();
    let ran = site
        .run(&["vm", "create", "pg", "--dry-run", "-n", "team"])
        .succeeds();
    let object: serde_json::Value = serde_saphyr::from_str(&ran.out).unwrap();
    assert_eq!(object["metadata"]["namespace"], "team");
    assert_eq!(
        object["spec"]["guest"]["rootDisk"]["image"],
        "bellows/postgres:15"
    );
    site.run(&["vm", "create", "pg", "--memory-min", "1500Mi"])
        .fails(64, &["--memory-min 1500Mi", "rule:", "2Gi"]);
    site.run(&["vm", "create", "pg", "--cpu-min", "4"])
        .fails(64, &["--cpu-max 2"]);
}

/// Requirement: N46
#[test]
fn images_name_recipe_and_guest_programs_that_are_missing() {
    let site = Site::new();
    site.run(&["image", "build", "bellows/abacus"])
        .fails(64, &["bellows/abacus", "bellows/postgres:15"]);
    site.run(&["image", "build", "bellows/postgres:15"])
        .fails(69, &["vm-monitor", "cargo xtask guest-bins"]);
    let empty = site.cache();
    std::fs::create_dir_all(&empty).unwrap();
    let dir = empty.display().to_string();
    site.run(&[
        "image",
        "build",
        "bellows/postgres:15",
        "--guest-bin-dir",
        &dir,
    ])
    .fails(69, &[&dir, "has no file"]);
    let none = site.run(&["image", "ls", "-o", "json"]).succeeds();
    assert_eq!(none.json()["items"], serde_json::json!([]));
    site.run(&["image", "rm", "bellows/postgres:15"])
        .fails(1, &["there is no image"]);
    site.run(&["image", "rm", "../../etc"])
        .fails(64, &["no image name"]);
    site.run(&["image", "gc"]).succeeds();
}

#[test]
fn check_lists_what_is_missing_with_its_fix() {
    let site = Site::new();
    let ran = site
        .run(&["check", "-o", "json", "--no-probe"])
        .fails(69, &["QEMU", "guest image"]);
    let answer = ran.json();
    assert_eq!(answer["ok"], false);
    let items = answer["items"].as_array().unwrap();
    for item in items {
        let is_ok = item["verdict"] == "ok";
        assert_eq!(item["fix"].is_string(), !is_ok, "{item}");
        assert_eq!(item["needed_for"].is_string(), !is_ok, "{item}");
    }
    let qemu = items.iter().find(|item| item["name"] == "QEMU").unwrap();
    assert_eq!(qemu["fix"], "bellows image build bellows/qemu");
    assert!(
        !site.cache().join("bellows/store").exists(),
        "looking must not make a cache"
    );
    let table = site.run(&["check", "--no-probe"]).fails(69, &[]);
    assert!(table.out.contains("guest image (required)"), "{table:#?}");
    assert!(
        !table.out.contains('\u{1b}'),
        "no colours but on a terminal: {table:#?}"
    );
}

#[test]
fn completion_contains_the_commands() {
    let site = Site::new();
    for shell in ["bash", "zsh", "fish"] {
        let ran = site.run(&["completion", shell]).succeeds();
        assert!(ran.out.contains("resizes"), "{shell}");
    }
    let path = site.run(&["kubeconfig"]).succeeds();
    assert_eq!(
        path.out.trim(),
        site.state().join("kubeconfig").display().to_string()
    );
}
