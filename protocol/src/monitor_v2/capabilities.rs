//! Capabilities as names on the link. Unknown names have no effect.

use super::{Capabilities, METRICS_PERIODS};
use crate::time::Span;

impl Capabilities {
    /// All capabilities, with metrics at the given period.
    #[must_use]
    pub const fn all(metrics: Span) -> Self {
        Self {
            ask_details: true,
            refusal_details: true,
            refusal_again: true,
            observed: true,
            metrics: Some(metrics),
            schedule: true,
        }
    }

    /// Reads a list of names. Unknown ones, and values that do not read, are ignored; a period is
    /// brought within [`METRICS_PERIODS`].
    #[must_use]
    pub fn of_names(names: &[String]) -> Self {
        let mut found = Self::default();
        for name in names {
            match name.split_once('=') {
                None if name == "ask_details" => found.ask_details = true,
                None if name == "refusal_details" => found.refusal_details = true,
                None if name == "refusal_again" => found.refusal_again = true,
                None if name == "observed" => found.observed = true,
                None if name == "schedule" => found.schedule = true,
                Some(("metrics", period)) => {
                    let (least, most) = METRICS_PERIODS;
                    let period = period.parse().map(Span::from_millis);
                    found.metrics = period.ok().map(|period| period.clamp(least, most));
                }
                _ => {}
            }
        }
        found
    }

    /// The names, in the order of the table of `monitor_v2`.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let flags = [
            (self.ask_details, "ask_details"),
            (self.refusal_details, "refusal_details"),
            (self.refusal_again, "refusal_again"),
            (self.observed, "observed"),
        ];
        let named = flags.into_iter().filter(|(has, _)| *has);
        let mut names: Vec<String> = named.map(|(_, name)| name.to_owned()).collect();
        if let Some(period) = self.metrics {
            names.push(format!("metrics={}", period.as_millis()));
        }
        if self.schedule {
            names.push("schedule".to_owned());
        }
        names
    }
}
