//! The inner loops of the agent, warm and alone: `agent/benches/hot_paths.rs` measures them, and
//! `cargo xtask bench agent` hands over what it printed.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use bellows_tests::figures::Figure;

const TARGETS: [(&str, f64); 3] = [
    ("decision_ns", 1_000.0),
    ("decision_journaled_ns", 3_000.0),
    ("scrape_parse_ns", 30_000.0),
];

/// A figure for each entry of `{"NAME":NANOSECONDS,…}`.
pub(super) fn figures(measured: Option<&str>) -> Result<Vec<Figure>> {
    let Some(measured) = measured else {
        return Ok(Vec::new());
    };
    let measured: BTreeMap<String, f64> =
        serde_json::from_str(measured).context("--hot-paths is not an object of numbers")?;
    Ok(measured
        .into_iter()
        .map(|(name, nanos)| {
            let target = TARGETS.iter().find(|(known, _)| *known == name);
            Figure::lower(name, nanos, "ns", target.map(|(_, target)| *target))
        })
        .collect())
}
