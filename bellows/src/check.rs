//! `bellows check`: what this machine lacks, each thing with the command that mends it.
//!
//! [`probes`] looks at this machine, [`cluster`] at a cluster, this module judges and prints. A
//! finding is *required* when `bellows up` or the default VM cannot work without it; the others
//! cost a feature or speed, and say which.

mod admission;
mod cluster;
mod finding;
mod images;
mod probes;
mod walls;

use clap::Args;
use finding::{Finding, Severity};

use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::output::{Cell, Format, Table, print_value};
use crate::progress::Progress;
use crate::terminal::{Tone, out};

/// Look whether this machine has everything; as `kubectl bellows check`, or with --kubeconfig,
/// whether the cluster has.
///
/// Exits with 0 when everything required is there, else with 69. Nothing is changed, except that
/// the answer to "does KVM work here" is remembered.
#[derive(Debug, Clone, Args)]
pub(crate) struct CheckArgs {
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
    /// Do not boot the tiny guest that shows whether KVM works; take what is remembered
    #[arg(long)]
    no_probe: bool,
}

pub(crate) async fn run(context: &Context, args: &CheckArgs) -> Outcome {
    let mut progress = Progress::new();
    let is_cluster = context.asks_cluster();
    let findings = if is_cluster {
        cluster::all(&context.api().await?).await?
    } else {
        probes::all(context, !args.no_probe, &mut progress).await?
    };
    progress.clear();
    let missing: Vec<&str> = findings
        .iter()
        .filter(|one| one.verdict == Severity::Missing)
        .map(|one| one.name)
        .collect();
    match args.output {
        Format::Json | Format::Yaml => {
            print_value(
                args.output,
                &serde_json::json!({"ok": missing.is_empty(), "items": findings}),
            )?;
        }
        Format::Table | Format::Wide => show(context, &findings),
    }
    if missing.is_empty() {
        return Ok(());
    }
    let who = if is_cluster {
        "the cluster"
    } else {
        "this machine"
    };
    Err(
        Fail::missing(format!("{who} lacks: {}", missing.join(", ")))
            .fix("run what stands after \"fix\" above"),
    )
}

fn show(context: &Context, findings: &[Finding]) {
    let paint = context.paint();
    for line in table(findings).lines(paint) {
        out(&line);
    }
    for line in fixes(findings) {
        out(&line);
    }
}

fn table(findings: &[Finding]) -> Table {
    let mut table = Table::new(&["", "WHAT", "FOUND"]);
    for finding in findings {
        let (tone, mark) = match finding.verdict {
            Severity::Ok => (Tone::Good, "ok"),
            Severity::Degraded => (Tone::Warn, "--"),
            Severity::Missing => (Tone::Bad, "!!"),
        };
        table.row(vec![
            Cell::toned(tone, mark),
            finding.name.into(),
            finding.found.clone().into(),
        ]);
    }
    table
}

/// What is not there, required things first.
fn fixes(findings: &[Finding]) -> Vec<String> {
    let mut lines = Vec::new();
    for (verdict, heading) in [
        (Severity::Missing, "required"),
        (Severity::Degraded, "optional"),
    ] {
        for finding in findings.iter().filter(|finding| finding.verdict == verdict) {
            lines.push(String::new());
            let needed = finding.needed_for.as_deref().unwrap_or_default();
            lines.push(format!("{} ({heading}): {needed}", finding.name));
            lines.push(format!(
                "  fix: {}",
                finding.fix.as_deref().unwrap_or_default()
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::Paint;

    fn findings() -> Vec<Finding> {
        vec![
            Finding::ok("kernel", "6.1.0"),
            Finding::degraded(
                "kubectl",
                "not installed",
                "looking at objects with it",
                "install kubectl",
            ),
            Finding::missing("guest image", "none", "making VMs", "bellows image build"),
        ]
    }

    #[test]
    fn required_fixes_come_first() {
        let mut lines = table(&findings()).lines(Paint::PLAIN);
        lines.extend(fixes(&findings()));
        insta::assert_snapshot!(lines.join("\n"), @r"
            WHAT         FOUND
        ok  kernel       6.1.0
        --  kubectl      not installed
        !!  guest image  none

        guest image (required): making VMs
          fix: bellows image build

        kubectl (optional): looking at objects with it
          fix: install kubectl
        ");
    }

    #[test]
    fn json_shape_is_stable() {
        insta::assert_snapshot!(serde_json::to_string(&findings()).unwrap(), @r#"[{"name":"kernel","verdict":"ok","found":"6.1.0"},{"name":"kubectl","verdict":"degraded","found":"not installed","needed_for":"looking at objects with it","fix":"install kubectl"},{"name":"guest image","verdict":"missing","found":"none","needed_for":"making VMs","fix":"bellows image build"}]"#);
    }
}
