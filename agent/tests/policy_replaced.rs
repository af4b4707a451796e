//! Policies, their worker and their agent are replaced while a VM is sized, and what lies around
//! them is bad: nothing of the size or the record is lost.

mod peers;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicI64, Ordering};

use agent::{Oracle, Reasked, Replay, StateHandle};
use daemon_kit::clock::Clock;
use peers::guest::Page;
use peers::{Seen, World, patched_to, position, until};
use policy_contract::{Answer, Input, Spec};
use protocol::journal::{Record, scan};
use serde_json::{Value, json};
use test_records::{Missing, skip};

const POLICY: &str = "autoscaling.neon.tech/policy";
/// Replacements of a test.
const ROUNDS: u32 = 20;
/// Versions of a round, should a busy machine make the answers of one late.
const TRIES: u32 = 5;
const HOUR_US: i64 = 3_600_000_000;

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
fn put_program(folder: &Path, build: u32) -> PathBuf {
    let script = WORKER.replace("FOLDER", &folder.display().to_string());
    let (path, draft) = (folder.join("bellows-policy"), folder.join("draft"));
    std::fs::write(&draft, script.replace("BUILD", &build.to_string())).expect("a script");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&draft, mode).expect("a mode");
    std::fs::rename(draft, &path).expect("renamed");
    path
}

/// Questions by version, in their order.
fn asked(folder: &Path) -> Vec<(u32, Value)> {
    let text = std::fs::read_to_string(folder.join("asked")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let read = |(version, line): (&str, &str)| {
        Some((version.parse().ok()?, serde_json::from_str(line).ok()?))
    };
    lines.filter_map(read).collect()
}

/// Kills the worker, unless it has ended by itself, by a late answer.
fn kill_worker(folder: &Path) {
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
async fn world(folder: &Path, journal: &Path) -> World {
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

fn spec(version: u32) -> Spec {
    Spec::of_source(format!("return {version}"))
}

/// Lets a version decide.
fn put_version(world: &World, version: u32) {
    let spec = spec(version);
    let status = json!({"live": {"digest": spec.digest()}});
    world
        .api
        .put_policy_with("db", json!({"source": spec.source}), status);
}

fn policy(world: &World) -> Value {
    let dump = world.state.dump();
    dump.pointer("/pods/0/policy").cloned().unwrap_or_default()
}

fn decides(world: &World, version: u32) -> bool {
    policy(world)["answer"]["reason"] == format!("v{version}")
}

/// Two late answers set a version aside, as on a busy machine.
fn is_set_aside(world: &World) -> bool {
    let dump = world.state.dump();
    let aside = dump["policies"]["known"][0]["setAside"].as_array().cloned();
    aside.is_some_and(|all| !all.is_empty())
}

/// Lets versions from `first` on decide until one has answered. Returns it.
async fn until_decided(world: &World, first: u32) -> u32 {
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

async fn restart(world: &mut World) {
    world.stop().await;
    world.state = StateHandle::new();
    world.start_connected().await;
}

/// Answers as the program does.
#[derive(Debug, Default)]
struct Three {
    versions: BTreeMap<String, u32>,
}

impl Oracle for Three {
    fn spec(&mut self, digest: &str) -> Option<std::sync::Arc<Spec>> {
        let version = (0..ROUNDS * TRIES + 1).find(|one| spec(*one).digest().to_string() == digest);
        self.versions.insert(digest.to_owned(), version?);
        Some(spec(version?).into())
    }

    fn forget(&mut self, _: u32) {}

    fn sample(&mut self, _: u32, _: f64, _: BTreeMap<String, f64>) {}

    fn ask(&mut self, digest: &str, _: u32, _: f64, _: &Input) -> Option<Reasked> {
        let reason = format!("v{}", self.versions.get(digest)?);
        let answer = json!({"cu": 3, "reason": reason});
        Some(Ok(Answer::read(&answer).expect("an answer")))
    }
}

/// Records of each run of the agent, in their order.
fn runs(journal: &Path) -> Vec<Vec<Record>> {
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

/// Requirement: V09
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v09_each_question_but_the_first_has_the_last_answer_of_its_version() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut world = world(folder.path(), &folder.path().join("journal")).await;
    world.config["metrics"]["system"]["secondsBetweenRequests"] = json!(1);
    world.start_connected().await;
    world.guest.set(Page::Good(0.9, 0.0));
    let questions = |version: u32| {
        let all = asked(folder.path()).into_iter();
        let own = all.filter(|(of, _)| *of == version);
        own.map(|(_, question)| question).collect::<Vec<_>>()
    };
    let mut versions = [0, 0];
    for _ in 0..TRIES {
        let live = until_decided(&world, versions[1] + 1).await;
        versions = [live, live + 1];
        let status = json!({"live": {"digest": spec(live).digest()}});
        let newest = json!({"source": spec(live + 1).source});
        world.api.put_policy_with("db", newest, status);
        let is_asked = || {
            versions
                .iter()
                .all(|version| questions(*version).len() >= 5)
        };
        until("both versions are asked again and again", || {
            is_asked() || is_set_aside(&world)
        })
        .await;
        if is_asked() {
            break;
        }
    }
    world.stop().await;
    for version in versions {
        let all = questions(version);
        let old = |question: &Value| question["i"]["old"].clone();
        assert_eq!(old(&all[0]), Value::Null, "version {version}");
        // An answer that came too late is no answer, so another question may be without.
        let later: Vec<Value> = all
            .iter()
            .skip(1)
            .map(old)
            .filter(Value::is_object)
            .collect();
        assert!(
            later.len() + 2 >= all.len() - 1,
            "version {version}: {later:?}"
        );
        for old in later {
            let own = format!("v{version}");
            assert_eq!((&old["cu"], &old["reason"]), (&json!(3), &json!(own)));
            let age = old["age_s"].as_f64();
            assert!(age.is_some_and(|age| (0.0..30.0).contains(&age)), "{old}");
        }
    }
}

/// Twenty times a version, the worker with its program, or the agent is replaced while the load
/// changes. The VM is never made smaller than its policy wants, and each run replays as it was.
///
/// Requirement: V31
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v31_twenty_replacements_under_load_lose_no_size_and_no_record() {
    let folder = tempfile::tempdir().expect("a folder");
    let journal = folder.path().join("journal");
    let mut world = world(folder.path(), &journal).await;
    world.start_connected().await;
    let grown = |all: &[Seen]| position(all, patched_to(3));
    let at = world.trace.until("its policy's size", grown).await;
    let mut version = 0;
    for round in 0..ROUNDS {
        let load = f64::from(round % 4) * 0.2;
        world.guest.set(Page::Good(load, 0.0));
        match round % 3 {
            0 => {}
            1 => {
                put_program(folder.path(), round);
                kill_worker(folder.path());
            }
            _ => restart(&mut world).await,
        }
        version = until_decided(&world, version + 1).await;
    }
    let all = world.trace.all();
    let is_smaller = |seen: &Seen| matches!(seen, Seen::Patch(_, slots, _) if *slots < 3);
    assert_eq!(position(&all[at..], is_smaller), None, "{all:?}");
    world.stop().await;

    let runs = runs(&journal);
    assert!(runs.len() >= 6, "{} runs", runs.len());
    let mut answers = 0;
    for records in runs {
        answers += records
            .iter()
            .filter(|record| matches!(record, Record::Answered(one) if one.fault.is_none()))
            .count();
        let mut replay = Replay::new().with_oracle(Box::new(Three::default()));
        records.into_iter().for_each(|record| replay.take(record));
        let report = replay.finish();
        assert!(report.is_equal(), "{report:#?}");
    }
    assert!(answers >= 20, "{answers} answers are recorded");
}

/// A small file system, full from now on.
struct FullDisk(tempfile::TempDir);

impl FullDisk {
    /// `None` without the permission to mount.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64k,mode=700", "bellows-test"]);
        let mounted = mount.arg(folder.path()).status();
        if !mounted.is_ok_and(|status| status.success()) {
            return None;
        }
        let disk = Self(folder);
        // It fails at the end of the disk.
        let _full = std::fs::write(disk.0.path().join("filler"), vec![1; 1 << 20]);
        Some(disk)
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// Requirement: V32
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v32_policy_decides_while_the_state_directory_is_full() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(disk) = FullDisk::new() else {
        let test = "v32_policy_decides_while_the_state_directory_is_full";
        return skip(test, Missing::Root, "nothing may be mounted");
    };
    let mut world = world(folder.path(), &disk.0.path().join("journal")).await;
    world.start_connected().await;
    world
        .trace
        .until("its policy's size", |all| position(all, patched_to(3)))
        .await;
    assert!(!disk.0.path().join("journal/policies/known.json").exists());
    // What is lost with the disk is the copy for a start without the API.
    restart(&mut world).await;
    until("the version decides again", || decides(&world, 0)).await;
    std::fs::remove_file(disk.0.path().join("filler")).expect("removed");
    put_version(&world, 1);
    until("the next version decides", || decides(&world, 1)).await;
    until("it is stored where there is room again", || {
        let stored = disk.0.path().join("journal/policies/known.json");
        let text = std::fs::read_to_string(stored).unwrap_or_default();
        text.contains(&spec(1).digest().to_string())
    })
    .await;
    world.stop().await;
}

/// All state is in memory, and lost between two agents: the next one follows the API.
///
/// Requirement: V32
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v32_agent_without_its_state_directory_goes_on_by_the_api() {
    let folder = tempfile::tempdir().expect("a folder");
    let journal = folder.path().join("journal");
    let mut world = world(folder.path(), &journal).await;
    world.start_connected().await;
    let grown = |all: &[Seen]| position(all, patched_to(3));
    let at = world.trace.until("its policy's size", grown).await;
    world.stop().await;
    std::fs::remove_dir_all(&journal).expect("removed");
    world.state = StateHandle::new();
    world.start_connected().await;
    until("the version decides again", || decides(&world, 0)).await;
    let is_smaller = |seen: &Seen| matches!(seen, Seen::Patch(_, slots, _) if *slots < 3);
    assert_eq!(position(&world.trace.all()[at..], is_smaller), None);
    world.stop().await;
    let again = runs(&journal);
    assert_eq!(again.len(), 1, "it writes a new journal");
}

/// Requirement: V33
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v33_built_in_goal_decides_at_once_about_vms_whose_policy_is_deleted() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut world = world(folder.path(), &folder.path().join("journal")).await;
    world.start_connected().await;
    let grown = |all: &[Seen]| position(all, patched_to(3));
    let at = world.trace.until("its policy's size", grown).await;
    world.api.delete_policy("db");
    let shrunk = |all: &[Seen]| position(&all[at..], patched_to(1));
    world.trace.until("the built-in goal's size", shrunk).await;
    until("an event says so", || {
        world.api.events("PolicyUnknown").len() == 1
    })
    .await;
    assert_eq!(policy(&world)["unknown"], "db");
    put_version(&world, 0);
    until("the version decides again", || decides(&world, 0)).await;
    world
        .until_metric("autoscaling_agent_policy_unknown 0")
        .await;
    world.stop().await;
    assert_eq!(world.api.events("PolicyUnknown").len(), 1, "once");
}

/// Requirement: V25. The past and ages go by the monotonic clock when the calendar is set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v25_past_and_ages_of_questions_do_not_follow_a_clock_that_is_set() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut world = world(folder.path(), &folder.path().join("journal")).await;
    let offset: &'static AtomicI64 = Box::leak(Box::default());
    world.clock = Clock::with_wall_offset(offset);
    world.config["metrics"]["system"]["secondsBetweenRequests"] = json!(1);
    world.start_connected().await;
    for (count, hours) in [(2, -1), (4, 24), (6, 0)] {
        until("it is asked", || asked(folder.path()).len() >= count).await;
        offset.store(hours * HOUR_US, Ordering::Relaxed);
    }
    until("it is asked", || asked(folder.path()).len() >= 8).await;
    world.stop().await;
    let questions = asked(folder.path());
    let at = |(_, question): &(u32, Value)| question["t"].as_f64().expect("a time");
    for pair in questions.windows(2) {
        let after = at(&pair[1]) - at(&pair[0]);
        assert!((0.0..60.0).contains(&after), "{after} s: {pair:?}");
    }
    for (_, question) in &questions {
        let age = question["i"]["old"]["age_s"].as_f64().unwrap_or_default();
        assert!((0.0..60.0).contains(&age), "{question}");
    }
    // The records carry the calendar of their begin, so the time of a question is the same when it
    // is asked again.
    let minute = |(_, question): &(u32, Value)| question["i"]["time"]["minute"].as_u64();
    let first = minute(&questions[0]).expect("a minute");
    for question in &questions {
        let later = (minute(question).expect("a minute") + 1440 - first) % 1440;
        assert!(later <= 2, "{later} minutes later: {question:?}");
    }
}

/// Requirement: V33. The agent asks no program that it cannot run or of another contract. It sizes
/// by the built-in goal, and says which file is at fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v33_program_that_cannot_be_run_or_has_another_contract_is_named_and_not_asked() {
    let script = |version: &str| format!("#!/bin/sh\necho '{version}'\n");
    for (script, mode, problem) in [
        (
            script("bellows-policy 0.1.0 (contract 1)"),
            0o644,
            "ermission denied",
        ),
        (
            script("bellows-policy 9.0.0 (contract 2)"),
            0o755,
            "is another version",
        ),
        (script("bellows-policy 0.0.1"), 0o755, "is another version"),
        ("\u{1}".repeat(64), 0o755, "--version failed"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut world = world(folder.path(), &folder.path().join("journal")).await;
        let path = folder.path().join("bellows-policy");
        std::fs::write(&path, script).expect("a program");
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&path, mode).expect("a mode");
        world.start_connected().await;
        world.guest.set(Page::Good(0.9, 0.0));
        world
            .trace
            .until("it grows", |all| position(all, patched_to(4)))
            .await;
        let said = || world.state.policy_reports().first()?.problem.clone();
        until("the report names the program", || {
            let said = said().unwrap_or_default();
            said.contains(problem) && said.contains(&path.display().to_string())
        })
        .await;
        let reports = world.state.policy_reports();
        assert_eq!(
            reports[0].alarms.faults_in_a_row, 0,
            "it is no fault of the version"
        );
        assert_eq!(world.state.dump()["policies"]["known"][0]["loaded"], false);
        assert!(asked(folder.path()).is_empty());
        world.stop().await;
    }
}
