//! Results for people.

use std::path::Path;

use policy_cli::check;
use policy_cli::suite::Tested;

/// Result of a check.
pub(crate) fn checked(file: &Path, report: &check::Report) -> String {
    let file = file.display();
    let mut text = String::new();
    for finding in &report.findings {
        let place = match finding.line {
            0 => format!("{file}"),
            line => format!("{file}:{line}"),
        };
        text += &format!("{place}: {}", finding.rule);
        if let Some(question) = finding.question {
            text += &format!(" (made-up question {question})");
        }
        text += "\n";
        if !finding.instead.is_empty() {
            text += &format!("  write instead: {}\n", finding.instead);
        }
    }
    if report.ok {
        text += &format!(
            "ok {file}: digest {}, {} questions, at most {} steps, {} us\n",
            report.digest, report.questions, report.steps_max, report.time_p50_us
        );
    }
    text
}

/// Result of the fixtures of one policy.
pub(crate) fn tested(tested: &Tested) -> String {
    let mut text = String::new();
    for finding in &tested.findings {
        let file = finding.file.display();
        let place = match finding.line {
            0 => format!("{file}"),
            line => format!("{file}:{line}"),
        };
        let name = finding.fixture.as_ref();
        let name = name.map_or_else(String::new, |name| format!(" {name:?}:"));
        text += &format!("{place}:{name} {}\n", finding.rule);
        if !finding.instead.is_empty() {
            text += &format!("  write instead: {}\n", finding.instead);
        }
    }
    let word = if tested.findings.is_empty() {
        "ok"
    } else {
        "failed"
    };
    let ran = tested.lines - tested.lines_not_run.len();
    text += &format!(
        "{word} {}: {} fixtures, {ran} of {} lines",
        tested.file.display(),
        tested.fixtures,
        tested.lines
    );
    if !tested.lines_not_run.is_empty() {
        let lines: Vec<String> = tested.lines_not_run.iter().map(u32::to_string).collect();
        text += &format!(", without {}", lines.join(", "));
    }
    if tested.updated > 0 {
        text += &format!(", {} answers written", tested.updated);
    }
    text + "\n"
}
