//! The commands before the shipped API server. Where no engine runs, tests write what it would.

mod cron;
mod images;
mod played;
mod releases;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use protocol::fleet::KEY_ENROLLED;
use serde_json::{Value, json};
use test_api::TestApi;

use crate::cli::{Cli, Command};
use crate::context::Context;
use crate::fail::Outcome;
use played::Fleet;

const NAMESPACE: &str = "default";

/// An API, and a state directory whose kubeconfig names it.
struct Site {
    api: TestApi,
    folder: tempfile::TempDir,
}

impl Site {
    async fn new() -> Self {
        let api = TestApi::start().await;
        let folder = tempfile::tempdir().expect("a folder");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "t",
            "clusters": [{"name": "t", "cluster": {"server": api.url()}}],
            "users": [{"name": "t", "user": {}}],
            "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
        });
        let path = folder.path().join("kubeconfig");
        std::fs::write(path, config.to_string()).expect("it is written");
        Self { api, folder }
    }

    /// Runs a command line behind `bellows fleet`.
    async fn run(&self, line: &str) -> Outcome {
        let folder = self.folder.path().display().to_string();
        let words = ["bellows", "--state-dir", &folder, "fleet"].into_iter();
        let cli = Cli::try_parse_from(words.chain(line.split_whitespace())).expect(line);
        let Command::Fleet(args) = cli.command else {
            panic!("not fleet")
        };
        super::run(&Context::new(cli.global), &args).await
    }

    /// Exit code and text of a command that must fail.
    async fn refused(&self, line: &str) -> (u8, String) {
        let fail = self.run(line).await.expect_err(line);
        (fail.exit() as u8, fail.to_string())
    }

    /// A static program that prints a version. The smallest ELF file that the kernel runs.
    fn program(&self, version: &str) -> PathBuf {
        let path = self.folder.path().join(format!("program-{version}"));
        executable(&path, &printing(&format!("part {version}\n")));
        path
    }

    fn names(&self, plural: &str) -> Vec<String> {
        let all = self.api.list(plural);
        let names = all.iter().map(|one| one["metadata"]["name"].as_str());
        names
            .map(|name| name.unwrap_or_default().to_owned())
            .collect()
    }

    fn vm(&self, name: &str, labels: &Value) {
        let object = json!({
            "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
            "spec": {"guest": {
                "cpus": {"min": 1, "use": 1, "max": 1},
                "memorySlots": {"min": 1, "use": 1, "max": 1},
                "rootDisk": {"image": "app"},
            }},
            "status": {"phase": "Running", "node": "n"},
        });
        self.api.put("virtualmachines", object);
    }

    fn end(&self, deployment: &str, status: &Value) {
        self.api
            .edit("fleetdeployments", NAMESPACE, deployment, |one| {
                one["status"] = status.clone();
            });
    }

    fn get(&self, plural: &str, name: &str) -> Value {
        self.api.get(plural, NAMESPACE, name).expect(name)
    }
}

fn executable(path: &Path, content: &[u8]) {
    std::fs::write(path, content).expect("it is written");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path, mode).expect("its mode is set");
}

/// An ELF file for x86-64 or AArch64 that writes a text to standard output and ends.
fn printing(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).expect("a short text");
    let code = code(length);
    let size = u64::try_from(120 + code.len() + text.len()).expect("a small file");
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    file.extend(2_u16.to_le_bytes());
    file.extend(neonvm_parts::core::elf::MACHINE.to_le_bytes());
    file.extend(1_u32.to_le_bytes());
    for word in [0x40_0078_u64, 64, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 1, 0, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1_u32.to_le_bytes());
    file.extend(5_u32.to_le_bytes());
    for word in [0, 0x40_0000, 0x40_0000, size, size, 0x1000] {
        file.extend(word.to_le_bytes());
    }
    file.extend(code);
    file.extend(text.as_bytes());
    file
}

/// `write(1, the bytes behind the code, length)` and `exit(0)`.
#[cfg(target_arch = "x86_64")]
fn code(length: u32) -> Vec<u8> {
    let mut code = vec![0xb8, 1, 0, 0, 0, 0xbf, 1, 0, 0, 0];
    // lea rsi, [rip + 16]: the text follows the 16 bytes after this instruction.
    code.extend([0x48, 0x8d, 0x35, 16, 0, 0, 0, 0xba]);
    code.extend(length.to_le_bytes());
    code.extend([0x0f, 0x05, 0xb8, 60, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05]);
    code
}

#[cfg(target_arch = "aarch64")]
fn code(length: u32) -> Vec<u8> {
    let words = [
        0xd280_0020_u32,             // mov x0, 1
        0x1000_00e1,                 // adr x1, 28
        0xd280_0002 | (length << 5), // mov x2, length
        0xd280_0808,                 // mov x8, 64
        0xd400_0001,                 // svc 0
        0xd280_0000,                 // mov x0, 0
        0xd280_0ba8,                 // mov x8, 93
        0xd400_0001,                 // svc 0
    ];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

async fn with_program(version: &str) -> (Site, String) {
    let site = Site::new().await;
    let file = site.program(version).display().to_string();
    (site, file)
}

/// Requirement: B08
#[tokio::test]
async fn environment_is_made_with_a_revision_and_without_a_deployment() {
    let (site, file) = with_program("1.1.0").await;
    let line = format!("env create m --part monitor --to 1.1.0 --program {file} --min-healthy 66");
    site.run(&line).await.expect("it is made");
    let env = site.get("fleetenvironments", "m");
    assert_eq!(env["spec"]["rollout"]["minHealthyPercent"], 66);
    let revision = site.get("controllerrevisions", "m-r1");
    assert_eq!(revision["data"]["resolved"]["version"], "1.1.0");
    let sha256 = revision["data"]["resolved"]["sha256"]
        .as_str()
        .expect("a hash");
    let programs = fleet_store::Programs::new(site.folder.path().join("fleet/programs"));
    let kept = programs.read(sha256).expect("the program is kept");
    assert_eq!(kept, printing("part 1.1.0\n"));
    assert_eq!(site.names("fleetdeployments"), Vec::<String>::new());
    assert_eq!(site.refused(&line).await.0, 1, "it exists");
}

/// Requirement: B09
#[tokio::test]
async fn change_makes_a_revision_and_an_equal_one_is_reused() {
    let (site, file) = with_program("1.1.0").await;
    site.run(&format!(
        "env create m --part monitor --to 1.1.0 --program {file}"
    ))
    .await
    .expect("it is made");
    site.run("env set m --trial 30").await.expect("it changes");
    let first = site.get("controllerrevisions", "m-r1");
    assert_eq!(first["data"]["spec"]["rollout"]["trialSeconds"], 60);
    let second = site.get("controllerrevisions", "m-r2");
    assert_eq!(second["data"]["spec"]["rollout"]["trialSeconds"], 30);
    site.run("env set m --trial 60")
        .await
        .expect("it changes back");
    let mut names = site.names("controllerrevisions");
    names.sort_unstable();
    assert_eq!(names, ["m-r1", "m-r2"]);
}

/// Requirement: B13
#[tokio::test]
async fn value_that_is_not_given_stays_and_nothing_is_deployed() {
    let (site, file) = with_program("1.1.0").await;
    let create = "env create m --part monitor --to 1.1.0 --selector tier=gold --retries 7";
    site.run(&format!("{create} --max-in-flight 3 --program {file}"))
        .await
        .expect("it is made");
    let before = site.get("fleetenvironments", "m")["spec"].clone();
    site.run("env set m --min-healthy 50")
        .await
        .expect("it changes");
    let mut expected = before;
    expected["rollout"]["minHealthyPercent"] = json!(50);
    assert_eq!(site.get("fleetenvironments", "m")["spec"], expected);
    assert!(site.names("fleetdeployments").is_empty());
}

/// Requirement: B10
#[tokio::test]
async fn start_names_a_kept_revision() {
    let (site, file) = with_program("1.1.0").await;
    site.run(&format!(
        "env create m --part monitor --to 1.1.0 --program {file}"
    ))
    .await
    .expect("it is made");
    let (code, text) = site.refused("start m --revision m-r9").await;
    assert_eq!(code, 1);
    assert!(text.contains("--revision: m-r9"), "{text}");
    site.run("start m --revision m-r1 --reason a-try")
        .await
        .expect("it starts");
    let one = site.get("fleetdeployments", "m-r1-1");
    assert_eq!(one["spec"]["revision"], "m-r1");
    assert_eq!(one["spec"]["kind"], "User");
    assert_eq!(one["spec"]["reason"], "a-try");
}

/// Requirement: B36
#[tokio::test]
async fn rollout_that_is_repeated_starts_one_deployment() {
    let (site, file) = with_program("1.1.0").await;
    let line = format!("rollout monitor --to 1.1.0 --program {file}");
    for _ in 0..3 {
        site.run(&line).await.expect("it starts");
    }
    assert_eq!(site.names("fleetdeployments"), ["monitor-r1-1"]);
    site.end("monitor-r1-1", &json!({"state": "Complete"}));
    let keyed = format!("{line} --id again");
    site.run(&keyed).await.expect("it starts");
    site.end("again", &json!({"state": "Complete"}));
    site.run(&keyed).await.expect("it was started");
    let mut names = site.names("fleetdeployments");
    names.sort_unstable();
    assert_eq!(names, ["again", "monitor-r1-1"]);
}

#[tokio::test]
async fn watched_rollout_ends_as_its_deployment_does() {
    let (site, file) = with_program("1.1.0").await;
    let line = format!("rollout monitor --to 1.1.0 --program {file}");
    site.run(&line).await.expect("it starts");
    let watched = format!("{line} --id monitor-r1-1 --watch");
    for (state, code) in [
        ("Complete", 0),
        ("Unhealthy", 1),
        ("Stopped", 1),
        ("TimedOut", 1),
    ] {
        site.end(
            "monitor-r1-1",
            &json!({"state": state, "evidence": ["vm-a: it ended"]}),
        );
        let result = site.run(&watched).await;
        let found = result.map_or_else(|fail| fail.exit() as u8, |()| 0);
        assert_eq!(found, code, "{state}");
    }
    site.end("monitor-r1-1", &json!({"state": "InProgress"}));
    let (code, text) = site.refused(&format!("{watched} --timeout 0")).await;
    assert_eq!(code, 75, "{text}");
}

#[tokio::test]
async fn wrong_programs_are_refused_before_anything_is_written() {
    let (site, file) = with_program("1.1.0").await;
    let folder = site.folder.path();
    let script = folder.join("script");
    executable(&script, b"#!/bin/sh\necho part 1.1.0\n");
    let empty = folder.join("empty");
    executable(&empty, b"");
    let mut foreign = printing("part 1.1.0\n");
    foreign[18] ^= 0xff;
    let other = folder.join("foreign");
    executable(&other, &foreign);
    let large = folder.join("large");
    executable(&large, &printing("part 1.1.0\n"));
    let sparse = std::fs::OpenOptions::new().write(true).open(&large);
    sparse
        .and_then(|file| file.set_len((32 << 20) + 1))
        .expect("it grows");
    let silent = folder.join("silent");
    executable(&silent, &printing("\n"));
    let cases = [
        (script, "is a script"),
        (empty, "is empty"),
        (other, "another kind of machine"),
        (large, "above 32 MiB"),
        (silent, "prints no version"),
        (folder.join("missing"), "No such file"),
        (folder.to_owned(), "must be a file"),
        (site.program("1.2.0"), "it prints version 1.2.0, not 1.1.0"),
    ];
    for (program, part_of_text) in cases {
        let program = program.display();
        let line = format!("rollout monitor --to 1.1.0 --program {program}");
        let (code, text) = site.refused(&line).await;
        assert_eq!(code, 64, "{text}");
        assert!(text.contains("--program"), "{text}");
        assert!(text.contains(part_of_text), "{text}");
    }
    let (code, text) = site.refused("rollout monitor --to 1.1.0").await;
    assert_eq!(code, 64, "{text}");
    let hundred = format!("rollout monitor --to 1.1.0 --program {file} --min-healthy 100");
    let (code, text) = site.refused(&hundred).await;
    assert_eq!(code, 64, "{text}");
    assert!(text.contains("minHealthyPercent"), "{text}");
    assert!(
        site.names("fleetenvironments").is_empty(),
        "nothing was written"
    );
    assert!(!folder.join("fleet").exists(), "nothing was kept");
}

#[tokio::test]
async fn dry_run_writes_no_object() {
    let (site, file) = with_program("1.1.0").await;
    site.run(&format!(
        "rollout monitor --to 1.1.0 --program {file} --dry-run"
    ))
    .await
    .expect("it is checked");
    for plural in [
        "fleetenvironments",
        "fleetdeployments",
        "controllerrevisions",
    ] {
        assert!(site.names(plural).is_empty(), "{plural}");
    }
}

/// Requirement: B06
#[tokio::test]
async fn second_environment_of_the_same_guests_is_refused() {
    let (site, file) = with_program("1.1.0").await;
    site.vm("pg", &json!({"tier": "gold", "zone": "a"}));
    let create = |name: &str, selector: &str, part: &str| {
        format!("env create {name} --part {part} --to 1.1.0 --program {file} --selector {selector}")
    };
    site.run(&create("m", "tier=gold", "monitor"))
        .await
        .expect("it is made");
    let (code, text) = site.refused(&create("n", "zone=a", "monitor")).await;
    assert_eq!(code, 1);
    assert!(
        text.contains("--selector") && text.contains("VM pg"),
        "{text}"
    );
    let (code, _) = site.refused(&create("n", "tier=gold", "monitor")).await;
    assert_eq!(code, 1);
    site.run(&create("n", "zone=b", "monitor"))
        .await
        .expect("no VM is in both");
    site.run(&create("g", "zone=a", "guestd"))
        .await
        .expect("it is another part");
}

/// Requirement: B17
#[tokio::test]
async fn rollback_starts_the_revision_before() {
    let (site, file) = with_program("1.1.0").await;
    site.run(&format!("rollout monitor --to 1.1.0 --program {file}"))
        .await
        .expect("it starts");
    let (code, _) = site.refused("rollback monitor").await;
    assert_eq!(code, 1, "there is none before");
    site.end("monitor-r1-1", &json!({"state": "Complete"}));
    let second = site.program("1.2.0").display().to_string();
    site.run(&format!("rollout monitor --to 1.2.0 --program {second}"))
        .await
        .expect("it starts");
    site.run("rollback monitor --reason slow")
        .await
        .expect("it goes back");
    let one = site.get("fleetdeployments", "monitor-r1-2");
    assert_eq!(one["spec"]["revision"], "monitor-r1");
    site.run("rollback monitor --to monitor-r2")
        .await
        .expect("it is in progress");
    for line in [
        "history monitor -o json",
        "history monitor",
        "env show monitor -o yaml",
    ] {
        site.run(line).await.expect(line);
    }
}

/// Requirement: B18
#[tokio::test]
async fn stop_orders_the_end_of_the_deployment_in_progress() {
    let (site, file) = with_program("1.1.0").await;
    let (code, _) = site.refused("stop monitor").await;
    assert_eq!(code, 1, "there is no environment");
    site.run(&format!("rollout monitor --to 1.1.0 --program {file}"))
        .await
        .expect("it starts");
    site.run("stop monitor").await.expect("it is ordered");
    assert_eq!(
        site.get("fleetdeployments", "monitor-r1-1")["spec"]["stop"],
        true
    );
    site.end("monitor-r1-1", &json!({"state": "Stopped"}));
    let (code, text) = site.refused("stop monitor").await;
    assert_eq!(code, 1, "{text}");
}

/// Requirement: B19
#[tokio::test]
async fn environment_in_use_is_not_deleted() {
    let (site, file) = with_program("1.1.0").await;
    site.run(&format!("rollout monitor --to 1.1.0 --program {file}"))
        .await
        .expect("it starts");
    let (code, text) = site.refused("env delete monitor --yes").await;
    assert_eq!(code, 1);
    assert!(text.contains("monitor-r1-1 is not over"), "{text}");
    site.end("monitor-r1-1", &json!({"state": "Complete"}));
    site.run("env delete monitor --yes").await.expect("it goes");
    assert!(site.names("fleetenvironments").is_empty());
}

/// Requirement: B20
#[tokio::test]
async fn lists_work_with_and_without_objects() {
    let (site, file) = with_program("1.1.0").await;
    let lines = [
        "",
        "-o json",
        "env list",
        "env list -A -o wide",
        "env list -o json",
        "instances --outdated",
        "instances --unassigned -o json",
        "instances --unmanaged",
    ];
    for line in lines {
        site.run(line).await.expect(line);
    }
    for line in ["env show x", "history x", "plan x", "env diff x", "why x"] {
        assert_eq!(site.refused(line).await.0, 1, "{line}");
    }
    site.vm("pg", &json!({}));
    site.run(&format!("rollout monitor --to 1.1.0 --program {file}"))
        .await
        .expect("it starts");
    for line in lines {
        site.run(line).await.expect(line);
    }
    for line in [
        "plan monitor",
        "plan monitor -o json",
        "why pg",
        "why pg -o json",
        "env diff monitor",
        "env diff monitor -o json",
    ] {
        site.run(line).await.expect(line);
    }
    assert_eq!(
        site.refused("plan monitor --revision monitor-r9").await.0,
        1
    );
}

#[tokio::test]
async fn vm_is_kept_out_and_let_in_by_its_label() {
    let site = Site::new().await;
    site.vm("pg", &json!({"tier": "gold"}));
    site.run("optout pg --reason pinned")
        .await
        .expect("it stays out");
    let label = || site.get("virtualmachines", "pg")["metadata"]["labels"][KEY_ENROLLED].clone();
    assert_eq!(label(), "false");
    site.run("optin pg").await.expect("it takes part");
    assert_eq!(label(), Value::Null);
    assert_eq!(site.refused("optout other").await.0, 1);
}

/// Requirement: B39
#[tokio::test]
async fn orders_fail_at_once_while_the_api_is_away() {
    let (site, file) = with_program("1.1.0").await;
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = gone.local_addr().expect("it is bound");
    drop(gone);
    let path = site.folder.path().join("kubeconfig");
    let text = std::fs::read_to_string(&path).expect("it is there");
    let text = text.replace(&site.api.url(), &format!("http://{address}"));
    std::fs::write(&path, text).expect("it is written");
    let rollout = format!("rollout monitor --to 1.1.0 --program {file} --watch");
    for line in ["env list", "stop monitor", "history monitor", &rollout] {
        assert_eq!(site.refused(line).await.0, 75, "{line}");
    }
}

/// Environment `monitor` of three VMs, with the guests' engine. Version 1.2.0 is bad.
async fn fleet_of_three() -> (Site, Fleet) {
    let site = Site::new().await;
    let vms = ["a", "b", "c"];
    for name in vms {
        site.vm(name, &json!({}));
    }
    let fleet = Fleet::new(site.api.client(), &vms, "1.2.0");
    (site, fleet)
}

impl Site {
    /// A line that rolls a version of the monitor out.
    fn rollout(&self, version: &str) -> String {
        let file = self.program(version).display().to_string();
        format!("rollout monitor --to {version} --program {file} --min-healthy 66 --trial 20")
    }
}

/// Requirement: B12
#[tokio::test]
async fn first_start_activates_an_environment_and_its_stop_ends_that() {
    let (site, mut fleet) = fleet_of_three().await;
    let file = site.program("1.1.0").display().to_string();
    site.run(&format!(
        "env create monitor --part monitor --to 1.1.0 --program {file}"
    ))
    .await
    .expect("it is made");
    let state = || site.get("fleetenvironments", "monitor")["status"]["state"].clone();
    fleet.run("monitor").await;
    assert_eq!((state(), fleet.trials.len()), (json!("Inactive"), 0));
    site.run("start monitor --revision monitor-r1")
        .await
        .expect("it starts");
    fleet.run("monitor").await;
    assert_eq!((state(), fleet.trials.len()), (json!("Active"), 3));
    site.run("stop monitor").await.expect("it stops");
    fleet.run("monitor").await;
    assert_eq!(state(), "Inactive");
    assert_eq!(fleet.versions(), ["1.1.0"; 3], "guests keep what they have");
}

/// Requirement: B11
#[tokio::test]
async fn rollout_goes_as_its_plan_said() {
    let (site, mut fleet) = fleet_of_three().await;
    site.run(&site.rollout("1.1.0")).await.expect("it starts");
    let world = fleet.world("monitor").await;
    let plan = super::plan::of(world, "monitor-r1", protocol::time::WallTime(0));
    let plan = json!(plan.expect("a plan"));
    fleet.run("monitor").await;
    let done: Vec<Value> = fleet.trials.iter().map(|(name, _)| json!([name])).collect();
    assert_eq!(plan["batches"], json!(done));
    assert_eq!(fleet.versions(), ["1.1.0"; 3]);
    let watched = format!("{} --id monitor-r1-1 --watch", site.rollout("1.1.0"));
    site.run(&watched).await.expect("it is complete");
}

/// Requirement: B17
#[tokio::test]
async fn bad_version_stops_at_the_first_guest_and_is_taken_back() {
    let (site, mut fleet) = fleet_of_three().await;
    site.run(&site.rollout("1.1.0")).await.expect("it starts");
    fleet.run("monitor").await;
    site.run(&site.rollout("1.2.0")).await.expect("it starts");
    fleet.run("monitor").await;
    let of_bad = fleet
        .trials
        .iter()
        .filter(|(_, version)| version == "1.2.0");
    assert_eq!(of_bad.count(), 1, "{:?}", fleet.trials);
    assert_eq!(fleet.versions(), ["1.1.0"; 3]);
    let watched = format!("{} --id monitor-r2-1 --watch", site.rollout("1.2.0"));
    let (code, text) = site.refused(&watched).await;
    assert_eq!(code, 1);
    assert!(text.contains("ended unhealthy"), "{text}");
    let back = site.get("fleetdeployments", "monitor-r2-1-rollback");
    assert_eq!(back["spec"]["revision"], "monitor-r1");
    assert_eq!(back["status"]["state"], "Complete");
    for line in ["why a", "history monitor -o wide", "", "env diff monitor"] {
        site.run(line).await.expect(line);
    }
}
