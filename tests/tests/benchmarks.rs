//! Benchmarks as programs: their exit status, and what signals leave behind.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use bellows_tests::patience::wait_for;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const PATIENCE: Duration = Duration::from_secs(60);

/// The agent's benchmark without a round. It shows only the measurements of the inner loops.
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

/// Killed when dropped.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        Self(command.spawn().expect("it starts"))
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id().cast_signed())
    }

    /// The letter of its state as `/proc` has it: `T` is stopped.
    fn state(&self) -> char {
        let process = procfs::process::Process::new(self.pid().as_raw()).expect("it is there");
        process.stat().expect("its state").state
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Without the fix, a signal ended the benchmark without dropping values, and the runner stayed
/// stopped.
async fn runner_goes_on_after(signal: Signal, status: i32) {
    let runner = Running::start(Command::new("sleep").arg("600"));
    let mut bench = Running::start(
        Command::new(env!("CARGO_BIN_EXE_bench-resize"))
            .args(["--hold", &runner.pid().to_string()])
            .stdout(Stdio::piped())
            .stderr(Stdio::null()),
    );
    let mut said = String::new();
    let stdout = bench.0.stdout.take().expect("its output");
    let read = BufReader::new(stdout).read_line(&mut said);
    read.expect("a line");
    assert_eq!(said, "stopped\n");
    // The kernel stops a process that runs when it next looks.
    let state = || async {
        let state = runner.state();
        if state == 'T' {
            Ok(())
        } else {
            Err(state.to_string())
        }
    };
    wait_for("a stopped process", PATIENCE, state)
        .await
        .expect("it is stopped");
    kill(bench.pid(), signal).expect("it runs");
    let ended = bench.0.wait().expect("it ends");
    assert_eq!(ended.code(), Some(status), "{ended}");
    assert_ne!(runner.state(), 'T', "the runner is still stopped");
}

#[tokio::test]
async fn sigterm_leaves_no_runner_stopped() {
    runner_goes_on_after(Signal::SIGTERM, 143).await;
}

#[tokio::test]
async fn sigint_leaves_no_runner_stopped() {
    runner_goes_on_after(Signal::SIGINT, 130).await;
}
