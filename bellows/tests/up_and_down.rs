//! `bellows up` as a process: one per state directory, stable addresses, clean and violent ends,
//! bad starts. No guest runs.

mod support;

use std::net::TcpListener;

use serde_json::{Value, json};
use support::{Site, is_private, wait_for};

/// Requirement: N01
#[test]
fn every_part_gets_ready_and_ends_well() {
    let site = Site::new();
    let mut up = site.up(&["--allocatable-cpu", "1500m", "--allocatable-memory", "1Gi"]);
    assert_eq!(up.ready["event"], "ready");
    assert_eq!(up.ready["pid"], up.pid());
    let part = |name: &str| {
        let parts = up.ready["parts"].as_array().unwrap();
        parts
            .iter()
            .find(|part| part["name"] == name)
            .unwrap_or_else(|| panic!("no part {name}"))
            .clone()
    };
    assert_eq!(
        part("apiserver")["address"],
        format!("https://127.{}.0.1:6443", site.block)
    );
    assert_eq!(
        part("scheduler")["address"],
        format!("http://127.{}.0.2:10299", site.block)
    );
    for name in ["agent", "controller", "node", "announcer", "metrics"] {
        assert_eq!(part(name)["phase"], "ready");
    }
    for private in ["admin.sock", "kubeconfig", "lock"] {
        assert!(is_private(&site.state().join(private)), "{private}");
    }
    let status = site.run(&["status", "-o", "json"]).succeeds().json();
    assert_eq!(status["ready"], true);
    assert_eq!(status["node"], "host-a");

    let nodes = site.run(&["get", "nodes", "-o", "json"]).succeeds().json();
    assert_eq!(nodes["items"][0]["name"], "host-a");
    assert_eq!(nodes["items"][0]["allocatable_cpu_milli"], 1500);
    assert_eq!(nodes["items"][0]["allocatable_memory_bytes"], 1 << 30);
    let name = format!("autoscale-scheduler-{:02x}41b6a685", site.block);
    let pods = site
        .run(&["get", "pods", "-n", "kube-system", "-o", "json"])
        .succeeds()
        .json();
    let pod = pods["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|pod| pod["name"] == name)
        .expect("the scheduler's pod");
    assert_eq!(
        (&pod["ready"], &pod["address"]),
        (&json!(true), &json!(format!("127.{}.0.2", site.block)))
    );

    assert_eq!(
        site.run(&["get", "vms", "-A", "-o", "json"])
            .succeeds()
            .json()["items"],
        json!([])
    );
    site.run(&["get", "vms", "none"])
        .fails(1, &["VM default/none does not exist"]);
    site.run(&["get", "vms", "none", "-A"])
        .fails(64, &["-n NAMESPACE"]);
    site.run(&["why", "none"]).fails(1, &["default/none"]);
    site.run(&["ssh", "none"]).fails(1, &["default/none"]);
    site.run(&["psql", "none"]).fails(1, &["default/none"]);
    site.run(&["vm", "delete", "none"])
        .fails(1, &["default/none"]);
    let top = site.run(&["top", "--once"]).succeeds();
    assert!(
        top.out.contains("node host-a") && top.out.contains("no VMs"),
        "{top:#?}"
    );
    let dump = site.run(&["dump"]).succeeds().json();
    for part in ["agent", "scheduler", "controller"] {
        assert!(!dump[part].is_null(), "n45: {part} has no dump: {dump}");
    }
    site.run(&["dump", "oracle"]).fails(64, &["agent"]);
    assert_eq!(
        site.run(&["resizes", "-o", "json"]).succeeds().json(),
        json!({"resizes": []})
    );

    assert_eq!(up.end("-TERM"), Some(0));
    assert!(!site.state().join("admin.sock").exists());
}

#[test]
fn a_second_up_names_the_first_and_changes_nothing() {
    let site = Site::new();
    let mut up = site.up(&[]);
    let pid = up.pid().to_string();
    for arguments in [&["up"][..], &["up", "--detach"]] {
        site.run(arguments)
            .fails(75, &[&format!("process {pid} holds"), "bellows down"]);
    }
    site.run(&["status"]).succeeds();
    let down = site.run(&["down"]).succeeds();
    assert!(down.out.contains("has ended"), "{down:#?}");
    assert_eq!(up.ended(), Some(0));
    site.run(&["status"]).fails(75, &[]);
}

#[test]
fn objects_and_addresses_survive_kill_minus_9() {
    let site = Site::new();
    let mut up = site.up(&[]);
    let made = site
        .run(&[
            "vm",
            "create",
            "keep",
            "--no-autoscale",
            "--image",
            "nobody/has-it",
        ])
        .succeeds();
    assert!(made.out.contains("default/keep created"), "{made:#?}");
    site.run(&["vm", "create", "keep"])
        .fails(1, &["default/keep"]);
    let refused = site
        .run(&["vm", "create", "Bad_Name"])
        .fails(64, &["Bad_Name"]);
    assert!(!refused.err.contains("panicked"));
    let uid = |site: &Site| -> Value {
        let ran = site.run(&["kubectl", "get", "neonvm", "keep", "-o", "json"]);
        ran.json()["metadata"]["uid"].clone()
    };
    let before = uid(&site);
    assert_eq!(up.end("-KILL"), None);
    let again = site.up(&[]);
    assert_eq!(again.ready["block"], up.ready["block"]);
    assert_eq!(uid(&site), before);
    let deleted = site.run(&["vm", "delete", "keep"]).succeeds();
    assert!(deleted.out.contains("deleted"), "{deleted:#?}");
    drop(again);
}

#[test]
fn taken_ports_are_named_with_their_holder() {
    for (last, port, what) in [
        (1, 6443, "the API server"),
        (2, 10299, "the permit server"),
        (1, 8080, "the metrics server"),
    ] {
        let site = Site::new();
        let address = format!("127.{}.0.{last}:{port}", site.block);
        let _holder = TcpListener::bind(&address).unwrap();
        let block = site.block.to_string();
        let me = format!("process {}", std::process::id());
        for more in [&[][..], &["--detach"]] {
            let arguments = [&["up", "--block", &block][..], more].concat();
            site.run(&arguments)
                .fails(75, &[&address, &me, what, "fix:"]);
        }
    }
}

#[test]
fn bad_starts_name_the_fix_and_lose_nothing() {
    let site = Site::new();
    std::fs::create_dir_all(site.state()).unwrap();
    std::fs::write(site.state().join("instance.json"), "{").unwrap();
    site.run(&["up"]).fails(64, &["instance.json"]);
    std::fs::remove_file(site.state().join("instance.json")).unwrap();

    let config = site.state().join("agent.json");
    std::fs::write(&config, r#"{"surprise": true}"#).unwrap();
    let path = config.display().to_string();
    site.run(&["up", "--agent-config", &path])
        .fails(64, &[&path, "surprise", "monitor"]);
    site.run(&["up", "--scheduler-config", &path])
        .fails(64, &[&path, "surprise", "watermark"]);
    site.run(&["up", "--allocatable-memory", "1Ei"])
        .fails(64, &["--allocatable-memory"]);

    // A damaged store of an earlier run gives an error. The file stays as it is.
    let store = site.state().join("api.redb");
    std::fs::write(&store, vec![7_u8; 4096]).unwrap();
    let block = site.block.to_string();
    site.run(&["up", "--block", &block])
        .fails(69, &["api.redb"]);
    assert_eq!(std::fs::read(&store).unwrap(), vec![7_u8; 4096]);
}

#[test]
fn a_state_directory_that_cannot_be_is_69() {
    let site = Site::new();
    std::fs::write(site.state(), "a file").unwrap();
    site.run(&["up"])
        .fails(69, &["cannot be made", "--state-dir"]);
    std::fs::remove_file(site.state()).unwrap();
}

#[test]
fn detached_up_returns_when_ready_and_down_ends_it() {
    let site = Site::new();
    let block = site.block.to_string();
    let ran = site
        .run(&[
            "up",
            "--detach",
            "--block",
            &block,
            "--node-name",
            "host-a",
            "--accel",
            "tcg",
        ])
        .succeeds();
    let line = ran.json();
    assert_eq!(
        (&line["event"], &line["ready"]),
        (&json!("ready"), &json!(true))
    );
    site.run(&["status"]).succeeds();
    assert!(is_private(&site.state().join("up.log")));
    site.run(&["down", "--purge", "--yes"]).succeeds();
    assert!(!site.state().exists());
    wait_for("the lock is gone", || {
        (!site.state().join("lock").exists()).then_some(())
    });
}

/// Requirement: V35
#[test]
fn applied_policy_is_in_the_journal_before_and_after() {
    let site = Site::new();
    let mut up = site.up(&[]);
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("db.lua");
    let apply = |text: &str| {
        std::fs::write(&source, text).unwrap();
        let file = source.to_str().unwrap();
        site.run(&["policy", "apply", file, "--reason", "a try"])
    };
    let policy = "return function(i) return { hold = true, reason = 'x' } end\n";
    let said = apply(policy).succeeds().out;
    apply(&"-".repeat(70_000)).fails(64, &["policy db"]);

    let people = site.state().join("journal/people");
    let exported = site
        .run(&["journal", "export", people.to_str().unwrap()])
        .succeeds();
    let records: Vec<Value> = exported
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|record: &Value| record["k"] == "A")
        .collect();
    let outcomes: Vec<&Value> = records.iter().map(|record| &record["ok"]).collect();
    let begun = &Value::Null;
    assert_eq!(outcomes, [begun, &json!(true), begun, &json!(false)]);
    let first = &records[0];
    assert_eq!(first["do"], "policy apply");
    assert_eq!(first["on"], "db");
    assert_eq!(first["why"], "a try");
    assert!(said.contains(first["to"].as_str().unwrap()), "{said}");
    assert!(first["by"].as_str().unwrap().contains("(uid "), "{first}");
    assert!(records[3]["note"].as_str().unwrap().contains("policy db"));
    site.run(&["journal", "verify"]).succeeds();
    let stat = site.run(&["journal", "stat"]).succeeds();
    assert!(stat.out.contains("people/"), "{stat:#?}");
    assert_eq!(up.end("-TERM"), Some(0));
}

/// Requirement: V35
#[test]
fn policy_is_not_applied_where_the_journal_cannot_be_written() {
    let site = Site::new();
    let mut up = site.up(&[]);
    std::fs::create_dir_all(site.state().join("journal")).unwrap();
    std::fs::write(site.state().join("journal/people"), "no folder").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("db.lua");
    std::fs::write(&source, "return function(i) return std.hold('x') end\n").unwrap();
    site.run(&["policy", "apply", source.to_str().unwrap()])
        .fails(69, &["cannot be recorded"]);
    let policies = site.run(&["policy", "list", "-o", "json"]).succeeds();
    assert_eq!(policies.json(), json!({"policies": []}));
    assert_eq!(up.end("-TERM"), Some(0));
}
