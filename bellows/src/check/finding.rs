//! A finding of `bellows check`: what was found, what needs it and how to fix it.

use serde::Serialize;

/// Fix for a component that is not installed.
pub(super) const INSTALL: &str = "install the chart or the manifests: docs/install-cluster.md";

/// Result of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    Ok,
    /// A feature or speed is lost without it.
    Degraded,
    /// `bellows up` or the default VM does not work without it.
    Missing,
}

/// Result of one check, with its reason. An item of `bellows check -o json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// The thing that was checked.
    pub(crate) name: &'static str,
    pub(crate) verdict: Severity,
    /// The state that was found.
    pub(crate) found: String,
    /// The feature that needs it. `None` if the verdict is `ok`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) needed_for: Option<String>,
    /// The command or change that mends it. `None` if the verdict is `ok`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fix: Option<String>,
}

impl Finding {
    pub(crate) fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            verdict: Severity::Ok,
            found: found.into(),
            needed_for: None,
            fix: None,
        }
    }

    /// A finding about something optional.
    pub(crate) fn degraded(
        name: &'static str,
        found: impl Into<String>,
        needed_for: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let (needed_for, fix) = (Some(needed_for.into()), Some(fix.into()));
        Self {
            name,
            verdict: Severity::Degraded,
            found: found.into(),
            needed_for,
            fix,
        }
    }

    /// A finding about something required.
    pub(crate) fn missing(
        name: &'static str,
        found: impl Into<String>,
        needed_for: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Severity::Missing,
            ..Self::degraded(name, found, needed_for, fix)
        }
    }
}
