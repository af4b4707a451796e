//! Alerts of the chart: Prometheus' own tool says when each fires.

use std::collections::BTreeSet;
use std::process::Command;

use bellows_tests::checkout;
use test_records::{Missing, skip};

use super::{chart, read, texts, yaml};

const RULES: &str = "bellows.yaml";

#[test]
fn every_alert_is_silent_until_it_has_a_reason() {
    let test = "every_alert_is_silent_until_it_has_a_reason";
    let rules = read(&chart().join("rules").join(RULES));
    let cases = read(&checkout().join("tests/tests/install/alerts.yaml"));
    let named = |text: &str, member: &str| {
        let text = yaml(text);
        let mut names = Vec::new();
        texts(&text, &[member], &mut names);
        names
            .into_iter()
            .map(str::to_owned)
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(named(&rules, "alert"), named(&cases, "alertname"));
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join(RULES), &rules).expect("written");
    let judged = |cases: &str| {
        std::fs::write(dir.path().join("cases.yaml"), cases).expect("written");
        let mut promtool = Command::new("promtool");
        promtool.args(["test", "rules", "cases.yaml"]);
        promtool.current_dir(dir.path()).output()
    };
    let Ok(output) = judged(&cases) else {
        return skip(test, Missing::Tool, "promtool is not there");
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    // The tool notices an alert that does not fire.
    let planted = cases.replacen("1x10 0x10", "1x10 1x10", 1);
    let output = judged(&planted).expect("it is there");
    assert!(!output.status.success(), "a case without a reason passed");
}
