//! A finding of `bellows check`: what was found, what needs it and how to mend it.

use serde::Serialize;

/// What mends what is not installed.
pub(super) const INSTALL: &str = "install the chart or the manifests: docs/install-cluster.md";

/// How one look ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// It is there.
    Ok,
    /// It is not, and that costs something.
    Degraded,
    /// It is not, and nothing works without it.
    Missing,
}

/// One finding. Shape of an item of `bellows check -o json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// What was looked at.
    pub(crate) name: &'static str,
    /// How it ended.
    pub(crate) verdict: Verdict,
    /// What was found.
    pub(crate) found: String,
    /// What it is needed for, if it is not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) needed_for: Option<String>,
    /// What mends it, if it is not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fix: Option<String>,
}

impl Finding {
    /// All is well.
    pub(crate) fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            verdict: Verdict::Ok,
            found: found.into(),
            needed_for: None,
            fix: None,
        }
    }

    /// Something optional is not there.
    pub(crate) fn degraded(
        name: &'static str,
        found: impl Into<String>,
        needed_for: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let (needed_for, fix) = (Some(needed_for.into()), Some(fix.into()));
        Self {
            name,
            verdict: Verdict::Degraded,
            found: found.into(),
            needed_for,
            fix,
        }
    }

    /// Something required is not there.
    pub(crate) fn missing(
        name: &'static str,
        found: impl Into<String>,
        needed_for: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Missing,
            ..Self::degraded(name, found, needed_for, fix)
        }
    }
}
