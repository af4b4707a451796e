//! A worker that answers at once, and a world whose VM has a policy.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use agent::StateHandle;
use policy_contract::Spec;
use protocol::journal::{Record, scan};
use serde_json::{Value, json};

use super::{Seen, World, patched_to, position, until};

const POLICY: &str = "autoscaling.neon.tech/policy";
/// Versions of a round, should a busy machine make the answers of one late.
pub const TRIES: u32 = 5;

/// Answers three units. The reason is the number that the policy's source returns. It appends the
/// lines that it reads to the file `asked`, each behind that number, and writes its process to the
/// file `worker`.
const WORKER: &str = r#"#!/bin/sh
[ "$1" = --version ] && { echo "BUILD (contract 1)"; exit; }
echo $$ >FOLDER/worker
while read -r line; do
  case "$line" in
    *'"op":"load"'*)
      version=${line#*'"source":"return '} version=${version%%\"*}
      echo '{"op":"loaded","id":1}' ;;
    *'"op":"fill"'*)
      vm=${line#*'"vm":'}
      echo "{\"op\":\"filled\",\"vm\":${vm%%,*}}" ;;
    *'"op":"ask"'*)
      n=${line#*'"n":'}
      echo "{\"op\":\"said\",\"n\":${n%%,*},\"cu\":3,\"r\":\"v$version\",\"steps\":1}"
      echo "$version $line" >>FOLDER/asked ;;
  esac
done
"#;

/// Puts a build of the program in the place of the one before.
pub fn put_program(folder: &Path, build: u32) -> PathBuf {
    let script = WORKER.replace("FOLDER", &folder.display().to_string());
    let (path, draft) = (folder.join("bellows-policy"), folder.join("draft"));
    std::fs::write(&draft, script.replace("BUILD", &build.to_string())).expect("a script");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&draft, mode).expect("a mode");
    std::fs::rename(draft, &path).expect("renamed");
    path
}

/// Questions by version, in their order.
pub fn asked(folder: &Path) -> Vec<(u32, Value)> {
    let text = std::fs::read_to_string(folder.join("asked")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let read = |(version, line): (&str, &str)| {
        Some((version.parse().ok()?, serde_json::from_str(line).ok()?))
    };
    lines.filter_map(read).collect()
}

/// Kills the worker, unless it has ended by itself, by a late answer.
pub fn kill_worker(folder: &Path) {
    let pid = std::fs::read_to_string(folder.join("worker")).expect("a worker has run");
    let pid = pid.trim();
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let own = folder.join("bellows-policy").display().to_string();
    // The number may be another process's by now.
    if String::from_utf8_lossy(&command).contains(&own) {
        let _ended = Command::new("kill").args(["-KILL", pid]).output();
    }
}

/// A world whose VM has a policy, with the program in `folder` and the journal in `journal`.
pub async fn world(folder: &Path, journal: &Path) -> World {
    let mut world = World::new().await;
    world.config["policies"] = json!({});
    world.policy_program = Some(put_program(folder, 0));
    world.journal = Some(journal.to_owned());
    world.api.change_vm("vm", |vm| {
        vm["metadata"]["annotations"] = json!({POLICY: "db"});
    });
    put_version(&world, 0);
    world
}

pub fn spec(version: u32) -> Spec {
    Spec::of_source(format!("return {version}"))
}

/// Lets a version decide.
pub fn put_version(world: &World, version: u32) {
    let spec = spec(version);
    let status = json!({"live": {"digest": spec.digest()}});
    world
        .api
        .put_policy_with("db", json!({"source": spec.source}), status);
}

pub fn policy(world: &World) -> Value {
    let dump = world.state.dump();
    dump.pointer("/pods/0/policy").cloned().unwrap_or_default()
}

pub fn decides(world: &World, version: u32) -> bool {
    policy(world)["answer"]["reason"] == format!("v{version}")
}

/// Two late answers set a version aside, as on a busy machine.
pub fn is_set_aside(world: &World) -> bool {
    let dump = world.state.dump();
    let aside = dump["policies"]["known"][0]["setAside"].as_array().cloned();
    aside.is_some_and(|all| !all.is_empty())
}

/// Lets versions from `first` on decide until one has answered. Returns it.
pub async fn until_decided(world: &World, first: u32) -> u32 {
    for version in first..first + TRIES {
        put_version(world, version);
        until("the version decides or is set aside", || {
            decides(world, version) || is_set_aside(world)
        })
        .await;
        if decides(world, version) {
            return version;
        }
    }
    panic!("each of {TRIES} versions was set aside: {}", policy(world));
}

pub async fn restart(world: &mut World) {
    world.stop().await;
    world.state = StateHandle::new();
    world.start_connected().await;
}

/// Starts the agent and waits until the policy's size is in use. Returns the version that decides,
/// and the number of steps that the peers had seen by then.
pub async fn start_decided(world: &mut World) -> (u32, usize) {
    world.start_connected().await;
    let version = until_decided(world, 0).await;
    let grown = |all: &[Seen]| position(all, patched_to(3));
    let at = world.trace.until("its policy's size", grown).await;
    (version, at)
}

/// Records of each run of the agent, in their order.
pub fn runs(journal: &Path) -> Vec<Vec<Record>> {
    let part = std::fs::read_dir(journal.join("agent")).expect("a journal");
    let paths = part.map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<PathBuf> = paths.filter(|path| path.is_file()).collect();
    paths.sort();
    let mut runs: Vec<(u64, Vec<Record>)> = Vec::new();
    for path in paths {
        let bytes = daemon_kit::journal::files::read(&path).expect("a segment");
        let scan = scan(&bytes);
        let Some(head) = &scan.head else { continue };
        assert!(scan.is_good(), "{}: {:?}", path.display(), scan.damages);
        if runs.last().is_none_or(|(run, _)| *run != head.run) {
            runs.push((head.run, Vec::new()));
        }
        let records = scan.lines.into_iter();
        let records = records.map(|line| line.record.expect("a record"));
        runs.last_mut().expect("a run").1.extend(records);
    }
    runs.into_iter().map(|(_, records)| records).collect()
}
