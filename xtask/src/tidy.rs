//! `cargo xtask tidy`: rules of the house that no compiler knows. Every rule is checked, all
//! findings are shown at once.

mod arrows;
pub(crate) mod circles;
pub(crate) mod citations;
mod commits;
mod debts;
pub(crate) mod house;
mod names;
pub(crate) mod source;
pub(crate) mod stubs;
mod supply;
pub(crate) mod text;

use anyhow::{Result, bail};
use clap::Args;

use crate::protocol_doc;
use crate::shell;
pub(crate) use supply::left_out;

/// Options of `tidy`.
#[derive(Args)]
pub(crate) struct Options {
    /// Check the subjects of commits instead; without RANGE, that of the newest one
    #[arg(long, value_name = "RANGE", num_args = 0..=1, default_missing_value = "HEAD^!")]
    commits: Option<String>,
    /// Lower the list of known findings to what is found now
    #[arg(long, conflicts_with = "commits")]
    settle: bool,
}

/// Runs what the options choose.
pub(crate) fn chosen(options: &Options) -> Result<()> {
    if options.settle {
        house::settle()?;
    }
    match &options.commits {
        Some(range) => commits::run(range),
        None => run(),
    }
}

/// Runs every rule.
pub(crate) fn run() -> Result<()> {
    let mut findings = arrows::findings()?;
    findings.extend(text::findings()?);
    findings.extend(house::findings()?);
    findings.extend(supply::findings()?);
    findings.extend(protocol_doc::findings()?);
    findings.extend(citations::findings()?);
    if findings.is_empty() {
        shell::say("tidy: nothing to mend");
        return Ok(());
    }
    findings.sort();
    bail!(
        "tidy found {} things to mend:\n  {}",
        findings.len(),
        findings.join("\n  ")
    )
}
