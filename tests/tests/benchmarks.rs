//! Benchmarks as programs: what their exit status says.

use std::process::{Command, Output};

/// The agent's benchmark without a round: what was measured of the inner loops is all it shows.
fn bench_agent(hot_paths: &str, options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bench-agent"))
        .args(["--vms", "0", "--hot-paths", hot_paths])
        .args(options)
        .output()
        .expect("it runs")
}

fn complaints(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn missed_target_fails_a_checked_benchmark_and_is_named() {
    let figures = r#"{"decision_ns":1000.5,"decision_journaled_ns":2,"scrape_parse_ns":31000}"#;
    let output = bench_agent(figures, &["--check"]);
    assert_eq!(output.status.code(), Some(1));
    let expected = "missed: decision_ns, 1000.50 ns, target at most 1000.00 ns\n\
                    missed: scrape_parse_ns, 31000.00 ns, target at most 30000.00 ns\n";
    assert_eq!(complaints(&output), expected);
}

#[test]
fn missed_target_does_not_fail_a_benchmark_that_is_not_checked() {
    let output = bench_agent(r#"{"decision_ns":5000}"#, &[]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(complaints(&output), "");
    assert!(String::from_utf8_lossy(&output.stdout).contains(" NO"));
}

#[test]
fn met_targets_and_figures_without_one_pass_a_check() {
    let figures = r#"{"decision_ns":1000,"of_no_promise_ns":1e12}"#;
    let output = bench_agent(figures, &["--check"]);
    assert_eq!(output.status.code(), Some(0), "{}", complaints(&output));
    assert_eq!(complaints(&output), "");
}

#[test]
fn figures_are_written_when_a_target_is_missed() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("figures.json");
    let json = file.to_str().expect("a path");
    let output = bench_agent(r#"{"decision_ns":5000}"#, &["--check", "--json", json]);
    assert_eq!(output.status.code(), Some(1));
    let text = std::fs::read_to_string(&file).expect("the figures");
    let written: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(written["figures"][0]["met"], false);
}
