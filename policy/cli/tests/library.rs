//! The library: each policy is short, passes its check and answers its fixtures, and `builtin.lua`
//! is the built-in goal.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use policy_cli::check::{QUESTIONS as QUESTIONS_OF_A_CHECK, check};
use policy_cli::made_up::{Subject, question};
use policy_cli::suite::{Differing, test};
use policy_contract::{FeedSource, History, Scope, Series, Spec, Want};
use policy_engine::Engine;

const QUESTIONS: u64 = 100_000;
const MAX_LINES: usize = 39;
/// Policies of sets.
const OF_SETS: [&str; 2] = ["web", "workers"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../library")
}

fn library() -> BTreeMap<String, PathBuf> {
    let entries = fs::read_dir(folder()).expect("the library").map(|entry| {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("a name").display().to_string();
        (name, path)
    });
    entries
        .filter(|(_, path)| path.extension().is_some_and(|it| it == "lua"))
        .collect()
}

fn spec(path: &Path) -> Spec {
    let mut spec = Spec::of_source(fs::read_to_string(path).expect("a source"));
    if OF_SETS
        .iter()
        .any(|name| path.ends_with(format!("{name}.lua")))
    {
        spec.scope = Scope::Set;
        spec.feeds = ["load", "jobs"].map(feed).into();
        return spec;
    }
    let series = ["lfc_hits", "lfc_misses"].map(Series::of);
    spec.series.extend(series.into_iter().flatten());
    spec.feeds.push(feed("jobs"));
    spec
}

fn feed(name: &str) -> FeedSource {
    FeedSource {
        name: name.to_owned(),
        port: 9200,
        metric: "ci_jobs_running".to_owned(),
    }
}

/// Requirement: V02
#[test]
fn v02_library_is_short_and_passes_its_check() {
    let library = library();
    let names = [
        "batch",
        "builtin",
        "cache",
        "ci_runner",
        "database",
        "office",
        "web",
        "workers",
    ];
    assert!(library.keys().eq(names));
    for (name, path) in library {
        let spec = spec(&path);
        let lines = spec.source.lines().count();
        assert!(lines <= MAX_LINES, "{name}: {lines} lines");
        let program = Path::new(env!("CARGO_BIN_EXE_bellows-policy"));
        let report = check(&spec, &[], QUESTIONS_OF_A_CHECK, program).expect("checked");
        assert!(report.ok, "{name}: {report:?}");
    }
}

/// Requirement: V02. Each statement of each policy runs in one of its fixtures.
#[test]
fn v02_library_answers_its_fixtures() {
    let program = Path::new(env!("CARGO_BIN_EXE_bellows-policy"));
    let report = test(&folder(), program, Differing::Found).expect("tested");
    assert!(report.ok, "{report:#?}");
    assert_eq!(report.policies.len(), library().len());
    for policy in &report.policies {
        assert!(policy.fixtures > 0 && policy.lines > 0, "{policy:#?}");
        assert!(policy.lines_not_run.is_empty(), "{policy:#?}");
        let beside = policy.file.with_extension("toml");
        let lines = fs::read_to_string(&beside)
            .expect("fixtures")
            .lines()
            .count();
        assert!(lines <= MAX_LINES, "{}: {lines} lines", beside.display());
    }
}

/// Requirement: V02
#[test]
fn v02_builtin_is_the_built_in_goal() {
    let engine = Engine::load(&spec(&library()["builtin"])).expect("it loads");
    let past = History::new(&[]);
    let made_up = (0..100).map(|number| question(&Subject::default(), number).input);
    for (number, mut input) in (0..QUESTIONS).zip(made_up.collect::<Vec<_>>().into_iter().cycle()) {
        input.builtin.cu = u32::try_from(number * 7919 % 1_000_003).expect("small");
        let reply = engine.ask(&input, &past, 0.0).expect("an answer");
        assert_eq!(reply.answer.want, Want::Units(input.builtin.cu), "{number}");
    }
}
