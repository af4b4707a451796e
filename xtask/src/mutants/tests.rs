use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::cores::{CORES, chosen};
use super::explained::Explained;
use super::list::{Mutant, draw, exactly, parse};
use super::outcomes::{self, MutantResult, Tested};
use super::report::{Counts, Report};
use super::workplace::copy;

const FILE: &str = "agent/src/core/calm.rs";

fn mutant(line: u32, function: &str, change: &str) -> Mutant {
    Mutant {
        name: format!("{FILE}:{line}:9: {change} in {function}"),
        file: FILE.to_owned(),
        line,
        column: 9,
        function: function.to_owned(),
        change: change.to_owned(),
    }
}

fn pool(size: u32) -> Vec<Mutant> {
    (0..size)
        .map(|line| mutant(line, "f", "replace < with <="))
        .collect()
}

fn explained(text: &str) -> Explained {
    Explained::parse(text).expect("entries")
}

const ENTRY: &str = "
# a remark
file: agent/src/core/calm.rs
function: Calm::until
change: replace || with &&
why: both are equal: there is one caller
";

#[test]
fn listing_is_read_with_and_without_a_function() {
    let mutants = parse(
        r#"[{"name":"a/src/core/b.rs:7:2: replace < with <= in B::f","file":"a/src/core/b.rs",
             "function":{"function_name":"B::f","return_type":"-> bool"},"package":"a",
             "span":{"start":{"line":7,"column":2},"end":{"line":7,"column":3}},
             "replacement":"<=","genre":"BinaryOperator","diff":""},
            {"name":"a/src/core/a.rs:1:20: replace * with +","file":"a/src/core/a.rs",
             "function":null,"span":{"start":{"line":1,"column":20}}}]"#,
    )
    .expect("a listing");
    let shown = mutants.iter().map(|it| {
        (
            it.file.as_str(),
            it.line,
            it.function.as_str(),
            it.change.as_str(),
        )
    });
    assert_eq!(
        shown.collect::<Vec<_>>(),
        [
            ("a/src/core/a.rs", 1, "", "replace * with +"),
            ("a/src/core/b.rs", 7, "B::f", "replace < with <="),
        ]
    );
    assert!(parse("warning: no files").is_err());
}

#[test]
fn same_seed_draws_the_same_mutants_and_another_seed_others() {
    let pool = pool(500);
    let first = draw(&pool, 20, 7);
    assert_eq!(first, draw(&pool, 20, 7));
    assert_ne!(first, draw(&pool, 20, 8));
    let names: BTreeSet<&str> = first.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names.len(), 20);
}

#[test]
fn draw_reaches_every_mutant_about_equally_often() {
    let pool = pool(10);
    let mut times = [0_u32; 10];
    for seed in 0..1000 {
        for drawn in draw(&pool, 2, seed) {
            times[drawn.line as usize] += 1;
        }
    }
    // 200 is expected, with a standard deviation of 13.
    assert!(
        times.iter().all(|count| (130..270).contains(count)),
        "{times:?}"
    );
}

#[test]
fn draw_of_more_than_there_are_takes_all() {
    let pool = pool(3);
    let drawn: BTreeSet<u32> = draw(&pool, 60, 1).iter().map(|it| it.line).collect();
    assert_eq!(drawn, BTreeSet::from([0, 1, 2]));
    assert!(draw(&[], 60, 1).is_empty());
}

#[test]
fn pattern_of_a_name_escapes_what_expressions_read() {
    assert_eq!(
        exactly("a/b_c.rs:7:2: replace || -> Vec<[u8]> with .* in B"),
        r"^a\/b_c\.rs\:7\:2\: replace \|\| \-> Vec<\[u8\]> with \.\* in B$"
    );
}

#[test]
fn cores_are_chosen_by_name() {
    let agent = chosen(&["agent".to_owned()]).expect("a core");
    assert_eq!(agent, [&CORES[0]]);
    assert!(agent[0].holds(&mutant(1, "f", "delete !")));
    let module = Mutant {
        file: "agent/src/core.rs".to_owned(),
        ..mutant(1, "f", "delete !")
    };
    assert!(agent[0].holds(&module));
    let other = Mutant {
        file: "agent/src/cores.rs".to_owned(),
        ..mutant(1, "f", "delete !")
    };
    assert!(!agent[0].holds(&other));
    assert_eq!(chosen(&[]).expect("all").len(), CORES.len());
    let error = chosen(&["agents".to_owned()]).expect_err("no such core");
    assert!(error.to_string().contains("agent, scheduler"), "{error}");
}

#[test]
fn folders_and_tests_of_cores_exist() {
    let root = crate::shell::root();
    for core in &CORES {
        let glob = core.glob();
        let folder = root.join(glob.trim_end_matches("{.rs,/**}"));
        assert!(folder.is_dir(), "{}", folder.display());
        let package = glob.split("src/").next().unwrap_or_default();
        for target in core.passes.concat() {
            if let Some(test) = target.strip_prefix("--test=") {
                let file = root.join(package).join(format!("tests/{test}.rs"));
                assert!(file.is_file(), "{}", file.display());
            }
        }
    }
}

#[test]
fn explained_entry_names_its_mutant_at_any_line() {
    let all = [
        mutant(3, "Calm::until", "replace || with &&"),
        mutant(4, "Calm::until", "replace < with <="),
    ];
    let names = explained(ENTRY).resolve(&all).expect("named");
    assert_eq!(names, BTreeSet::from([all[0].name.clone()]));
}

#[test]
fn explained_entry_without_a_mutant_fails() {
    let all = [mutant(3, "Calm::since", "replace || with &&")];
    let error = explained(ENTRY).resolve(&all).expect_err("stale");
    assert!(error.to_string().contains("strike the entry"), "{error}");
}

#[test]
fn explained_entry_for_several_mutants_says_which() {
    let all = [
        mutant(30, "Calm::until", "replace || with &&"),
        mutant(4, "Calm::until", "replace || with &&"),
    ];
    let error = explained(ENTRY).resolve(&all).expect_err("ambiguous");
    assert!(error.to_string().contains("add `which:`"), "{error}");
    let which = |number: u32| explained(&format!("{ENTRY}which: {number}\n")).resolve(&all);
    let first = BTreeSet::from([all[1].name.clone()]);
    assert_eq!(which(1).expect("the first"), first);
    let second = BTreeSet::from([all[0].name.clone()]);
    assert_eq!(which(2).expect("the second"), second);
    assert!(which(3).is_err() && which(0).is_err());
    let twice = format!("{ENTRY}which: 1\n{ENTRY}which: 1\n");
    let error = explained(&twice).resolve(&all).expect_err("twice");
    assert!(error.to_string().contains("explained twice"), "{error}");
}

#[test]
fn explained_entry_needs_every_field() {
    for key in ["file", "function", "change", "why"] {
        let is_other = |line: &&str| !line.starts_with(&format!("{key}:"));
        let text: Vec<&str> = ENTRY.lines().filter(is_other).collect();
        let error = Explained::parse(&text.join("\n")).expect_err(key);
        assert!(error.to_string().contains(key), "{error}");
    }
    assert!(Explained::parse(&format!("{ENTRY}line: 7\n")).is_err());
    assert!(Explained::parse(&format!("{ENTRY}why: twice\n")).is_err());
    assert!(Explained::parse(&ENTRY.replace("why: both", "why:\nboth")).is_err());
}

#[test]
fn committed_entries_are_understood() {
    let file = crate::shell::root().join(super::EXPLAINED);
    Explained::read(&file).expect("understood");
}

fn outcome(summary: &str) -> String {
    format!(
        r#"{{"summary":"{summary}","scenario":{{"Mutant":{{"name":"{FILE}:3:9: delete ! in f",
            "file":"{FILE}","function":{{"function_name":"f"}},
            "span":{{"start":{{"line":3,"column":9}}}}}}}},"phase_results":[]}}"#
    )
}

#[test]
fn outcomes_of_mutants_are_read_and_the_baseline_is_not_one() {
    let summaries = ["CaughtMutant", "Timeout", "MissedMutant", "Unviable"].map(outcome);
    let text = format!(
        r#"{{"outcomes":[{{"scenario":"Baseline","summary":"Success"}},{}],"total_mutants":4}}"#,
        summaries.join(",")
    );
    let tested = outcomes::parse(&text);
    let verdicts: Vec<MutantResult> = tested.iter().map(|it| it.verdict).collect();
    assert_eq!(
        verdicts,
        [
            MutantResult::Caught,
            MutantResult::TimedOut,
            MutantResult::Missed,
            MutantResult::Unviable
        ]
    );
    assert_eq!(tested[0].mutant, mutant(3, "f", "delete !"));
    assert!(outcomes::parse(&text[..text.len() / 2]).is_empty());
    assert!(outcomes::read(Path::new("/no/such/file")).is_empty());
}

#[test]
fn outcome_of_a_mutant_outside_the_sample_does_not_count() {
    let tested = [1, 2, 3].map(|line| Tested {
        mutant: mutant(line, "f", "delete field a from struct B expression"),
        verdict: MutantResult::Caught,
    });
    let drawn = [&tested[0].mutant, &tested[2].mutant];
    let counted: Vec<Tested> = outcomes::of_sample(tested.to_vec(), &drawn).collect();
    assert_eq!(counted, [tested[0].clone(), tested[2].clone()]);
}

/// A report on so many mutants of each verdict; the first missed one is explained.
fn report(caught: u32, timed_out: u32, missed: u32, unviable: u32) -> Report {
    let verdicts = [
        (MutantResult::Missed, missed + 1),
        (MutantResult::Caught, caught),
        (MutantResult::TimedOut, timed_out),
        (MutantResult::Unviable, unviable),
    ];
    let verdicts = verdicts.map(|(verdict, count)| vec![verdict; count as usize]);
    let mutants = (1..).map(|line| mutant(line, "Calm::until", "delete !"));
    let mut report = Report::new(42, 900, BTreeSet::from([mutant_name(1)]));
    for (verdict, mutant) in verdicts.concat().into_iter().zip(mutants) {
        report.add("agent", Tested { mutant, verdict });
    }
    report
}

fn mutant_name(line: u32) -> String {
    mutant(line, "Calm::until", "delete !").name
}

#[test]
fn explained_and_unviable_mutants_are_counted_apart() {
    let counts = Counts {
        caught: 17,
        timed_out: 1,
        missed: 2,
        explained: 1,
        unviable: 3,
    };
    let report = report(17, 1, 2, 3);
    assert_eq!(report.total(), counts);
    let text = report.text();
    assert!(
        text.contains("tests caught 18 of 20 viable (90.0 %); 24 of 900 drawn by --seed 42"),
        "{text}"
    );
    assert!(text.contains("\n2 survive:\n"), "{text}");
    assert!(
        text.contains("  agent/src/core/calm.rs:2  Calm::until: delete !\n"),
        "{text}"
    );
    assert!(!text.contains("calm.rs:1 "), "{text}");
    let row = text.lines().find(|line| line.contains("agent   "));
    let columns: Vec<&str> = row.expect("a row").split_whitespace().collect();
    assert_eq!(columns, ["agent", "17", "1", "2", "1", "3", "90.0"]);
}

#[test]
fn check_wants_95_per_cent_of_the_viable() {
    report(18, 1, 1, 5).check().expect("95 % exactly");
    let error = report(18, 0, 1, 5).check().expect_err("94.7 %");
    assert!(
        error.to_string().contains("94.7 % of the viable"),
        "{error}"
    );
    let error = report(0, 0, 0, 4).check().expect_err("nothing was tested");
    assert!(error.to_string().contains("no mutant"), "{error}");
}

#[test]
fn explained_mutant_that_a_test_catches_is_shown() {
    let mut report = Report::new(1, 1, BTreeSet::from([mutant_name(1)]));
    let mutant = mutant(1, "Calm::until", "delete !");
    let verdict = MutantResult::Caught;
    report.add("agent", Tested { mutant, verdict });
    let text = report.text();
    assert!(text.contains("1 are explained, and yet"), "{text}");
    assert_eq!(report.total().caught, 1);
}

#[test]
fn progress_says_how_many_of_all_and_for_how_long() {
    let line = report(2, 1, 1, 0).progress(60, Duration::from_secs(125));
    let last = mutant_name(5);
    assert_eq!(
        line,
        format!("[5/60, 2:05, caught 3, missed 1] timeout  {last}")
    );
}

#[test]
fn json_has_figures_and_survivors() {
    let json: serde_json::Value =
        serde_json::from_str(&report(17, 1, 1, 3).json()).expect("an object");
    assert_eq!(json["seed"], 42);
    assert_eq!(json["total"]["viable"], 19);
    assert_eq!(json["cores"]["agent"]["timed_out"], 1);
    let survivor = &json["survivors"][0];
    assert_eq!(survivor["line"], 2);
    assert_eq!(survivor["function"], "Calm::until");
    assert_eq!(json["survivors"].as_array().map(Vec::len), Some(1));
}

#[test]
fn copy_follows_the_checkout_and_leaves_equal_files_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    std::fs::create_dir_all(from.join("src")).expect("created");
    let git = Command::new("git")
        .arg("init")
        .arg("-q")
        .arg(&from)
        .status();
    assert!(git.expect("git runs").success());
    let write = |path: &Path, text: &str| std::fs::write(path, text).expect("written");
    for name in ["src/a.rs", "src/b.rs", "src/gone.rs", "ignored"] {
        write(&from.join(name), name);
    }
    write(&from.join(".gitignore"), "/ignored\n");
    copy(&from, &to).expect("copied");
    let modified = |name: &str| to.join(name).metadata().and_then(|it| it.modified()).ok();
    let before = modified("src/a.rs");
    assert!(before.is_some() && !to.join("ignored").exists());

    // A mutant that an interrupted run has left, a file of a test, and a file that is gone.
    write(&to.join("src/b.rs"), "mutated");
    write(&to.join("src/left.txt"), "left");
    std::fs::remove_file(from.join("src/gone.rs")).expect("removed");
    copy(&from, &to).expect("copied");
    let text = std::fs::read_to_string(to.join("src/b.rs")).expect("read");
    assert_eq!(text, "src/b.rs");
    assert!(!to.join("src/left.txt").exists() && !to.join("src/gone.rs").exists());
    assert_eq!(modified("src/a.rs"), before);
}
