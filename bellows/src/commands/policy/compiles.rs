//! Whether a version compiles, before it is applied.

use std::path::PathBuf;
use std::process::Command;

use policy_contract::{Scope, Spec};
use serde::Deserialize;

use super::program;
use crate::fail::{Fail, Outcome};
use crate::terminal::err;

/// Enough to see an answer that is always refused; a person runs the whole check.
const QUESTIONS: &str = "5";

/// What `bellows-policy check -o json` prints.
#[derive(Debug, Deserialize)]
struct Report {
    loads: bool,
    findings: Vec<Finding>,
}

#[derive(Debug, Deserialize)]
struct Finding {
    line: u32,
    rule: String,
}

impl Finding {
    fn text(&self) -> String {
        match self.line {
            0 => self.rule.clone(),
            line => format!("line {line}: {}", self.rule),
        }
    }
}

/// Refuses a version that does not compile. What else is found is a warning, since a candidate
/// decides nothing. Where `bellows-policy` is missing, nothing is looked at.
///
/// # Errors
///
/// 1 with the line and the rule.
pub(super) fn ensure(name: &str, spec: &Spec) -> Outcome {
    let Ok(program) = program::find() else {
        err("warning: bellows-policy is missing, so nobody has looked whether the policy compiles");
        return Ok(());
    };
    let report = check(program, spec)?;
    let found: Vec<String> = report.findings.iter().map(Finding::text).collect();
    if !report.loads {
        return Err(Fail::not_so(format!(
            "policy {name} does not compile: {}",
            found.join("; ")
        ))
        .rule("a version that no agent can load would answer nothing")
        .fix("mend it, and see the rest: bellows policy check FILE"));
    }
    // The made-up questions to a policy of sets are about sets that it may not know.
    if spec.scope == Scope::Vm {
        for one in found {
            err(&format!("warning: bellows policy check says: {one}"));
        }
    }
    Ok(())
}

fn check(program: PathBuf, spec: &Spec) -> Outcome<Report> {
    let failed =
        |error: &dyn std::fmt::Display| Fail::bug(format!("bellows-policy check: {error}"));
    let source = program::input(&spec.source)?;
    let mut command = Command::new(program);
    command.args(["check", "--output", "json", "--questions", QUESTIONS]);
    if spec.scope == Scope::Set {
        command.args(["--scope", "set"]);
    }
    for (name, number) in &spec.params {
        command.arg(format!("--params={name}={number}"));
    }
    for series in &spec.series {
        command.args(["--series", series.as_str()]);
    }
    for feed in &spec.feeds {
        command.args(["--feed", &feed.name]);
    }
    let output = command.arg(source.path()).output();
    let output = output.map_err(|error| failed(&error))?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr);
        failed(&said.trim())
    })
}
