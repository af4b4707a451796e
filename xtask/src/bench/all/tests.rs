use super::*;
use anyhow::anyhow;

const MET: &str = r#"{"name":"rss","value":3,"unit":"MiB","target":4,"met":true}"#;
const MISSED: &str = r#"{"name":"reply_p99","value":1.5,"unit":"ms","target":1,"met":false}"#;
const UNTARGETED: &str = r#"{"name":"reply_p50","value":1,"unit":"ms","target":null,"met":null}"#;

fn ran(figures: &[&str], ended: Result<()>) -> Result<Ran> {
    let figures = figures.join(",");
    let text = format!(r#"{{"bench":"x","figures":[{figures}]}}"#);
    Ok(Ran {
        report: Some(Report::parse(&text)?),
        ended,
    })
}

fn entry(label: &str, figures: &[&str]) -> Entry {
    Entry::of(label.to_owned(), ran(figures, Ok(())), true)
}

fn line(entries: &[Entry], checked: bool) -> String {
    let error = verdict(entries, checked).expect_err("it fails");
    error.to_string()
}

#[test]
fn table_has_every_figure_with_a_target_and_every_benchmark_without_figures() {
    let entries = [
        entry("monitor", &[MET, UNTARGETED]),
        entry("scheduler", &[MISSED]),
        Entry::left_out("walls".to_owned(), "needs root"),
        Entry::of("agent".to_owned(), Err(anyhow!("no compiler")), true),
    ];
    let expected = "\
benchmark  figure        value   target  met
monitor    rss        3.00 MiB 4.00 MiB  met
scheduler  reply_p99   1.50 ms  1.00 ms  MISSED
walls      left out: needs root
agent      failed: no compiler";
    let lines = |text: &str| -> Vec<Vec<String>> {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        text.lines().map(words).collect()
    };
    assert_eq!(lines(&table(&entries)), lines(expected));
}

#[test]
fn missed_target_fails_only_when_checked() {
    let entries = [entry("a", &[MET, MISSED]), entry("b", &[MISSED])];
    assert_eq!(line(&entries, true), "targets missed: 2");
    verdict(&entries, false).expect("not checked");
}

#[test]
fn met_targets_and_benchmarks_left_out_pass() {
    let entries = [
        entry("a", &[MET, UNTARGETED]),
        Entry::left_out("cluster".to_owned(), "needs root"),
    ];
    verdict(&entries, true).expect("all is met");
}

#[test]
fn benchmark_that_failed_fails_the_run_checked_or_not() {
    let failed = || Entry::of("agent".to_owned(), Err(anyhow!("no compiler")), false);
    assert_eq!(line(&[failed()], false), "benchmarks failed: agent");
    let both = [failed(), entry("b", &[MISSED])];
    assert_eq!(line(&both, false), "benchmarks failed: agent");
    let expected = "targets missed: 1; benchmarks failed: agent";
    assert_eq!(line(&both, true), expected);
}

/// A program exits with 1 for a missed target when it checks them. Without a missed target, or
/// without a check, that status has another reason.
#[test]
fn exit_status_is_a_failure_unless_a_missed_target_explains_it() {
    let of = |figures: &[&str], checked| {
        let ran = ran(figures, Err(anyhow!("exit status: 1")));
        Entry::of("oom".to_owned(), ran, checked).problem
    };
    assert_eq!(of(&[MISSED], true), None);
    let failed = Some(Problem::Failed("exit status: 1".to_owned()));
    assert_eq!(of(&[MISSED], false), failed);
    assert_eq!(of(&[MET], true), failed);
}

#[test]
fn figures_of_a_failed_benchmark_are_not_recorded() {
    let of = |figures: &[&str], ended| Entry::of("oom".to_owned(), ran(figures, ended), true);
    let is_recorded = |entry: &Entry| matches!(entry.part().outcome, Outcome::Figures(_));
    assert!(is_recorded(&of(&[MET], Ok(()))));
    assert!(is_recorded(&of(&[MISSED], Err(anyhow!("exit status: 1")))));
    let failed = of(&[MET], Err(anyhow!("exit status: 1")));
    assert!(matches!(failed.part().outcome, Outcome::Failed));
    let left_out = Entry::left_out("walls".to_owned(), "needs root");
    let outcome = left_out.part().outcome;
    assert!(matches!(outcome, Outcome::LeftOut("needs root")));
}

#[test]
fn json_holds_all_reports_as_they_were_written() {
    let entries = [
        entry("a", &[MET, UNTARGETED]),
        Entry::left_out("walls".to_owned(), "needs root"),
        Entry::of("b".to_owned(), Err(anyhow!("no compiler")), true),
    ];
    let whole = whole(&entries);
    assert_eq!(whole["benches"][0]["bench"], "x");
    assert_eq!(whole["benches"][0]["figures"][1]["name"], "reply_p50");
    assert_eq!(whole["benches"].as_array().map(Vec::len), Some(1));
    let left_out = json!([{"bench": "walls", "reason": "needs root"}]);
    assert_eq!(whole["left_out"], left_out);
    let failed = json!([{"bench": "b", "reason": "no compiler"}]);
    assert_eq!(whole["failed"], failed);
}
