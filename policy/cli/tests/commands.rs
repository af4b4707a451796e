//! The commands as a person calls them: what they print, and their exit codes.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use policy_contract::Input;
use tempfile::TempDir;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bellows-policy"))
        .args(arguments)
        .output()
        .expect("the program runs")
}

/// A policy in a file, checked: exit code, standard output, standard error.
fn checked(source: &str, more: &[&str]) -> (Option<i32>, String, String) {
    let dir = TempDir::new().expect("a directory");
    let file = write(dir.path(), "policy.lua", source);
    let output = run(&[&["check", &file], more].concat());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&file, "FILE");
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

fn write(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    fs::write(&path, text).expect("written");
    path.display().to_string()
}

#[test]
fn check_of_a_good_policy_says_ok_and_its_cost() {
    let source = "return function(i) return {cu = i.builtin.cu, reason = 'builtin'} end";
    let (code, output, _) = checked(source, &[]);
    assert_eq!(code, Some(0), "{output}");
    assert!(output.starts_with("ok FILE: digest "), "{output}");
    assert!(output.contains(" 200 questions, at most "), "{output}");
}

#[test]
fn v04_step_from_old_is_no_fixpoint() {
    let source = "return function(i)
      local old = i.old and i.old.cu or 0
      return {cu = old + 1, reason = 'x'} end";
    let (code, output, _) = checked(source, &[]);
    assert_eq!(code, Some(1));
    assert!(output.contains("not_fixpoint: answers "), "{output}");
    let instead = "write instead: a step from i.vm.use_cu, not from i.old.cu";
    assert!(output.contains(instead), "{output}");
}

/// Addresses differ from process to process, and they order keys that are tables.
#[test]
fn v04_order_of_tables_as_keys_is_not_deterministic() {
    let source = "return function(i)
      local t, n = {}, 0
      for k = 1, 64 do t[{}] = k end
      for _, k in pairs(t) do n = (n * 31 + k) % 1000003 end
      return {cu = n, reason = 'x'} end";
    let (code, output, _) = checked(source, &[]);
    assert_eq!(code, Some(1));
    assert!(output.contains("nondeterministic: "), "{output}");
}

#[test]
fn findings_name_line_rule_and_what_to_write() {
    let source = "return function(i)\n  local now = os.time()\n  return std.hold('x')\nend";
    let (code, output, _) = checked(source, &[]);
    assert_eq!(code, Some(1));
    assert!(
        output.starts_with("FILE:2: `os` is not there\n"),
        "{output}"
    );
    assert!(output.contains("  write instead: i.time"), "{output}");

    let (code, output, _) = checked("return function(i)\n  return {cu = }\nend", &[]);
    assert_eq!(code, Some(1));
    assert!(output.starts_with("FILE:2: "), "{output}");

    let source = "return function(i)\n  return {cu = i.h:max('used', 60) / 2, reason = 'x'}\nend";
    let (code, output, _) = checked(source, &[]);
    assert_eq!(code, Some(1));
    assert!(output.starts_with("FILE:2: syntax: "), "{output}");
    assert!(output.contains("(made-up question "), "{output}");

    let (code, output, _) = checked("return function(i) while true do end end", &[]);
    assert_eq!(code, Some(1));
    assert!(
        output.contains(": steps: more than 10000 steps"),
        "{output}"
    );
}

#[test]
fn series_that_the_version_does_not_have_is_named() {
    let source = "return function(i)
  local used, wait = i.h:max(\"memory\", 60), i.h:mean(\"pressure\", 60)
  return std.hold(used and wait and \"calm\" or \"no_data\")
end";
    let (code, output, _) = checked(source, &[]);
    assert_eq!(code, Some(1));
    assert!(output.contains(":2: `memory` is no series of the policy, so it is always nil"));
    assert!(
        output.contains("one of load1, load5, used, cached, pressure"),
        "{output}"
    );
    assert!(
        output.contains("--series pressure, here and at apply"),
        "{output}"
    );
    let known = source.replace("memory", "used");
    let (code, output, _) = checked(&known, &["--series", "pressure"]);
    assert_eq!(code, Some(0), "{output}");
    let feed = known.replace("pressure", "feed:jobs");
    let (code, output, _) = checked(&feed, &[]);
    assert_eq!(
        (code, output.contains("--feed jobs here")),
        (Some(1), true),
        "{output}"
    );
    assert_eq!(checked(&feed, &["--feed", "jobs"]).0, Some(0));
}

#[test]
fn check_in_json_has_the_same_findings() {
    let source = "return function(i)\n  return {cu = 2.5, reason = 'x'}\nend";
    let (code, output, _) = checked(source, &["-o", "json"]);
    assert_eq!(code, Some(1));
    let report: serde_json::Value = serde_json::from_str(&output).expect("JSON");
    assert_eq!(
        (&report["ok"], &report["file"]),
        (&false.into(), &"FILE".into())
    );
    let rule = report["findings"][0]["rule"].as_str().expect("a rule");
    assert!(rule.starts_with("output: "), "{rule}");
}

#[test]
fn parameters_and_feeds_reach_the_policy() {
    let source = "return function(i)
      local jobs = i.feeds.jobs and i.feeds.jobs.value or 0
      return {cu = jobs * i.params.factor, reason = 'x'} end";
    let (code, output, _) = checked(source, &["--params", "factor=2", "--feed", "jobs"]);
    assert_eq!(code, Some(0), "{output}");
    let (code, _, _) = checked(source, &[]);
    assert_eq!(code, Some(1));
}

#[test]
fn run_asks_once() {
    let dir = TempDir::new().expect("a directory");
    let source = "return function(i) return {cu = i.h:max('load1', 60), reason = 'x'} end";
    let policy = write(dir.path(), "policy.lua", source);
    let input = serde_json::to_string(&Input::sample()).expect("JSON");
    let input = write(dir.path(), "input.json", &input);
    let past = r#"{"now": 7, "series": {"load1": [[2, 1], [4, 2], [6, 5]]}}"#;
    let past = write(dir.path(), "past.json", past);
    let output = run(&["run", &policy, "--input", &input, "--past", &past]);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(answer["answer"]["cu"], 5);
    assert_eq!(answer["answer"]["reason"], "x");
    let output = run(&["run", &policy, "--input", &input]);
    assert_eq!(output.status.code(), Some(1));
    let output = run(&["run", &policy, "--input", &policy]);
    assert_eq!(output.status.code(), Some(64));
}

/// A policy with its fixtures, tested: exit code and standard output.
fn tested(dir: &Path, more: &[&str]) -> (Option<i32>, String) {
    let folder = dir.display().to_string();
    let output = run(&[&["test", &folder], more].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    (output.status.code(), text.replace(&folder, "DIR"))
}

#[test]
fn other_answer_is_named_with_line_and_what_to_write() {
    let dir = TempDir::new().expect("a directory");
    let source = "return function(i)
      if i.builtin.cu > 2 then
        return {cu = 9, reason = 'much'}
      end
      return {cu = i.builtin.cu, reason = 'x'} end";
    write(dir.path(), "p.lua", source);
    let fixtures = "# kept\n[[fixture]]\nname = \"two\"\ninput.builtin.cu = 2\nanswer = { cu = 3, reason = \"x\" }\n";
    let fixtures = write(dir.path(), "p.toml", fixtures);
    let (code, output) = tested(dir.path(), &[]);
    assert_eq!(code, Some(1), "{output}");
    assert!(
        output.starts_with("DIR/p.toml:3: \"two\": answers "),
        "{output}"
    );
    let instead = "  write instead: answer = { cu = 2, reason = \"x\" }\n";
    assert!(output.contains(instead), "{output}");
    assert!(output.contains("without 3\n"), "{output}");

    let (code, output) = tested(dir.path(), &["-o", "json"]);
    assert_eq!(code, Some(1));
    let report: serde_json::Value = serde_json::from_str(&output).expect("JSON");
    assert_eq!(report["ok"], false);
    let policy = &report["policies"][0];
    assert_eq!(policy["linesNotRun"], serde_json::json!([3]));
    assert_eq!(policy["findings"][0]["line"], 3);

    let (code, output) = tested(dir.path(), &["--update"]);
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("1 answers written"), "{output}");
    let updated = fs::read_to_string(fixtures).expect("fixtures");
    assert!(
        updated.starts_with("# kept\n") && updated.contains("cu = 2, "),
        "{updated}"
    );
    assert_eq!(tested(dir.path(), &[]).0, Some(0));
}

#[test]
fn fixtures_find_what_is_no_fixpoint_and_what_is_by_chance() {
    let dir = TempDir::new().expect("a directory");
    let fixture = "[[fixture]]\nname = \"one\"\nexpect = {}\n";
    let step = "return function(i)
      return {cu = (i.old and i.old.cu or 0) + 1, reason = 'x'} end";
    write(dir.path(), "step.lua", step);
    write(dir.path(), "step.toml", fixture);
    let chance = "return function(i)
      local t, n = {}, 0
      for k = 1, 64 do t[{}] = k end
      for _, k in pairs(t) do n = (n * 31 + k) % 1000003 end
      return {cu = n, reason = 'x'} end";
    write(dir.path(), "chance.lua", chance);
    write(dir.path(), "chance.toml", fixture);
    write(dir.path(), "bare.lua", step);
    let (code, output) = tested(dir.path(), &["--update"]);
    assert_eq!(code, Some(1), "{output}");
    for part in [
        "DIR/step.toml:2: \"one\": not_fixpoint: answers ",
        "DIR/chance.toml:2: \"one\": nondeterministic: answers ",
        "DIR/bare.lua: has no fixtures",
    ] {
        assert!(output.contains(part), "{part}: {output}");
    }
}

#[test]
fn expected_fault_is_no_finding() {
    let dir = TempDir::new().expect("a directory");
    write(
        dir.path(),
        "p.lua",
        "return function(i) while true do end end",
    );
    let fixture = "[[fixture]]\nname = \"loops\"\nfault = \"steps\"\n";
    write(dir.path(), "p.toml", fixture);
    let (code, output) = tested(dir.path(), &[]);
    assert_eq!(code, Some(0), "{output}");
    write(dir.path(), "p.toml", &fixture.replace("steps", "memory"));
    let (code, output) = tested(dir.path(), &[]);
    assert_eq!(code, Some(1));
    assert!(
        output.contains("write instead: fault = \"steps\""),
        "{output}"
    );
    let empty = TempDir::new().expect("a directory");
    assert_eq!(tested(empty.path(), &[]).0, Some(64));
}

#[test]
fn exit_codes_are_those_of_bellows() {
    assert_eq!(run(&["check"]).status.code(), Some(64));
    assert_eq!(run(&["check", "/nowhere.lua"]).status.code(), Some(64));
    assert_eq!(run(&["--help"]).status.code(), Some(0));
    let stubs = run(&["stubs"]);
    assert_eq!(stubs.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&stubs.stdout).contains("export type Input"));
}

/// Requirement: V07
#[test]
fn v07_replay_says_what_is_wrong_with_policy_and_journal() {
    let dir = TempDir::new().expect("a directory");
    let replayed = |source: &str, journal: &str| {
        let file = write(dir.path(), "policy.lua", source);
        let output = run(&["replay", "--policy", &file, journal]);
        let text = String::from_utf8_lossy(&output.stderr).replace(&file, "FILE");
        (output.status.code(), text)
    };
    let journal = write(dir.path(), "0000000001.bj", "");
    let (code, text) = replayed("return function(i)\n  return {cu = }\nend", &journal);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.starts_with("FILE:2: "), "{text}");
    let good = "return function(i) return {cu = 1, reason = 'x'} end";
    let (code, text) = replayed(good, &journal);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("the journal has no VM"), "{text}");
    let (code, text) = replayed(good, "/no/such/journal.bj");
    assert_eq!(code, Some(64), "{text}");
    assert!(
        text.contains("failed to read /no/such/journal.bj"),
        "{text}"
    );
}

/// A journal has the checksum of each question about sets, and not the question.
///
/// Requirement: V07
#[test]
fn v07_policy_of_sets_is_not_replayed_and_not_taken_for_one_of_vms() {
    let dir = TempDir::new().expect("a directory");
    let web = format!("{}/../library/web.lua", env!("CARGO_MANIFEST_DIR"));
    let spec = serde_json::json!({"contract": 1, "scope": "set", "source": "return 1"});
    let kept = write(dir.path(), "version.json", &spec.to_string());
    let journal = format!(
        "{}/../../bellows/testdata/journal_format_1",
        env!("CARGO_MANIFEST_DIR")
    );
    let ended = |words: &[&str]| {
        let output = run(&[words, &[&*journal]].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), text)
    };
    for words in [
        &["replay", "--policy", &*web, "--scope", "set"][..],
        &["replay", "--policy", &*kept],
        &["judge", "--policy", &*kept],
    ] {
        let (code, text) = ended(words);
        assert_eq!(code, Some(69), "{text}");
        assert!(text.contains("no journal has the questions"), "{text}");
        assert!(text.contains("bellows policy report"), "{text}");
    }
    let (code, text) = ended(&["replay", "--policy", &*web]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("answered none of the"), "{text}");
    assert!(text.contains("--scope set"), "{text}");
}

/// Requirement: V07
#[test]
fn v07_judge_reads_a_kept_version_and_sets_canaries_beside_other_vms() {
    let dir = TempDir::new().expect("a directory");
    let source = "return function(i) return {cu = 1, reason = 'x'} end";
    let spec = serde_json::json!({"contract": 1, "scope": "vm", "source": source});
    let file = write(dir.path(), "version.json", &spec.to_string());
    let journal = format!(
        "{}/../../bellows/testdata/journal_format_1",
        env!("CARGO_MANIFEST_DIR")
    );
    let judged = |more: &[&str]| -> serde_json::Value {
        let output = run(&[&["judge", "--policy", &file], more, &[&*journal]].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{text}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let groups = |value: &serde_json::Value| {
        ["canary", "others"].map(|group| value[group]["vmHours"].as_f64().expect("hours") > 0.0)
    };
    let all = judged(&[]);
    assert_eq!(groups(&all), [false, true], "{all}");
    let vm = all["vms"][0].as_str().expect("a name");
    let of_vm = judged(&["--canary", vm])["canaryVms"].clone();
    assert!(
        of_vm[vm]["vmHours"].as_f64().expect("hours") > 0.0,
        "{of_vm}"
    );
    let one = judged(&["--vm", vm, "--canary", vm]);
    assert_eq!(groups(&one), [true, false], "{one}");
    assert_eq!(one["vms"], serde_json::json!([vm]));
}

/// Requirement: V07
#[test]
fn v07_recorded_day_is_judged_against_the_database_policy_with_a_page() {
    let dir = TempDir::new().expect("a directory");
    let root = format!("{}/../..", env!("CARGO_MANIFEST_DIR"));
    let page = dir.path().join("report.html").display().to_string();
    let policy = format!("{root}/policy/library/database.lua");
    let journal = format!("{root}/tests/data/day.bj.zst");
    let output = run(&["replay", "--policy", &policy, "--html", &page, &journal]);
    let text = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}{complaint}");
    assert!(text.starts_with("Model's error: "), "{text}");
    assert!(text.contains(": no fault."), "{text}");
    assert!(text.contains("default/vm-0000  candidate"), "{text}");
    let page = fs::read_to_string(page).expect("a page");
    assert!(
        page.contains("default/vm-0000") && page.contains("<svg"),
        "{page}"
    );
}
