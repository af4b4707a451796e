//! `cargo xtask tidy`: rules of the house that no compiler knows. Every rule is checked, all
//! findings are shown at once.

mod arrows;
mod citations;
mod supply;
mod text;

use anyhow::{Result, bail};

use crate::{protocol_doc, shell};
pub(crate) use supply::left_out;

/// Runs every rule.
pub(crate) fn run() -> Result<()> {
    let mut findings = arrows::findings()?;
    findings.extend(text::findings()?);
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
