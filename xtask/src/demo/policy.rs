//! `cargo xtask demo --policy FILE`: the policy decides about the VM, and its recorded answers are
//! compared with the built-in goal.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::report::Compared;
use super::site::{Site, VM};
use crate::{interrupt, shell};

/// Name of the policy.
const NAME: &str = "demo";
/// Longest time until a version may be promoted: it must have answered, and without a fault.
const PATIENCE: Duration = Duration::from_secs(60);

/// Lets the policy of a file decide about the VM.
pub(super) fn decide(site: &Site, file: &Path) -> Result<()> {
    ensure!(file.is_file(), "{} is no file", file.display());
    let path = file.to_str().context("its path is no text")?;
    let apply = ["policy", "apply", path, "--name", NAME];
    shell::run("apply the policy", &mut site.command(&apply))?;
    let annotation = format!("autoscaling.neon.tech/policy={NAME}");
    let annotate = ["annotate", "neonvm", VM, &annotation];
    shell::run("let the VM have it", &mut site.kubectl(&annotate))?;
    let promote = ["policy", "promote", NAME, "--force", "--reason", "a demo"];
    let began = Instant::now();
    loop {
        interrupt::check()?;
        let shown = shell::output(&mut site.command(&["policy", "show", NAME, "-o", "json"]))?;
        let policy: Value = serde_json::from_str(&shown).context("read the policy")?;
        let refused = if policy["vms"][0]["answer"].is_object() {
            match shell::output(&mut site.command(&promote)) {
                Ok(_) => return Ok(()),
                Err(refused) => format!("{refused:#}"),
            }
        } else {
            shown
        };
        if began.elapsed() > PATIENCE {
            bail!("the policy does not decide after {PATIENCE:?}: {refused}");
        }
        std::thread::park_timeout(Duration::from_secs(1));
    }
}

/// The recorded answers beside the built-in goal.
pub(super) fn compared(site: &Site) -> Result<Compared> {
    let report = ["policy", "report", NAME, "-o", "json"];
    let text = shell::output(&mut site.command(&report))?;
    let report: Value = serde_json::from_str(&text).context("read the policy's report")?;
    let decided = |version: &&Value| version["role"] == "live";
    let versions = report["versions"].as_array().map_or(&[][..], Vec::as_slice);
    Ok(Compared {
        answers: report["total"]["compared"].as_u64().unwrap_or(0),
        equal: report["total"]["equal"].as_u64().unwrap_or(0),
        faults: report["total"]["faults"].as_u64().unwrap_or(0),
        decided: versions
            .iter()
            .filter(decided)
            .filter_map(|version| version["compared"].as_u64())
            .sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::judge;
    use super::super::report::Report;
    use super::*;

    #[test]
    fn policy_that_never_decided_fails_the_run() {
        let said = |decided| {
            let mut report = Report {
                policy: Some(Compared {
                    decided,
                    ..Compared::default()
                }),
                ..Report::default()
            };
            judge(&mut report);
            report.failures.contains(&"the policy never decided".into())
        };
        assert_eq!([0, 1].map(said), [true, false]);
    }
}
