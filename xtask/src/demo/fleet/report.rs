//! The report of a demo of rollouts, the content of `--report FILE`.

use std::fmt;

use serde::Serialize;

use crate::shell::say;

#[derive(Debug, Default, Serialize)]
pub(super) struct FleetReport {
    pub(super) seed: u64,
    /// Ends of `bellows up` by signal 9.
    pub(super) kills: u32,
    /// Those of them during a rollout or its return.
    pub(super) kills_in_rollouts: u32,
    pub(super) rollouts: Vec<Rollout>,
    pub(super) growth: Growth,
    /// Looks at the runners' states.
    pub(super) samples: u64,
    /// Fewest guests that were settled and healthy in a sample.
    pub(super) least_settled_healthy: usize,
    pub(super) guest_restarts: usize,
    /// Reasons why the run failed. Empty if it passed.
    pub(super) failures: Vec<String>,
}

/// One rollout with its end.
#[derive(Debug, Default, Serialize)]
pub(super) struct Rollout {
    pub(super) id: String,
    pub(super) version: String,
    pub(super) state: String,
    /// Guests that were seen with the version.
    pub(super) reached: usize,
    /// Guests that kept it, and guests whose turn ended badly.
    pub(super) kept: u64,
    pub(super) bad: u64,
    pub(super) seconds: f64,
    /// What led to its end.
    pub(super) evidence: String,
}

/// Growth of a guest during its turn.
#[derive(Debug, Default, Serialize)]
pub(super) struct Growth {
    pub(super) guest: String,
    pub(super) before_gib: f64,
    /// Most while the new program was on trial.
    pub(super) in_trial_gib: f64,
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, most) = (self.before_gib, self.in_trial_gib);
        let guest = &self.guest;
        write!(f, "{guest} grew from {before:.2} to {most:.2} GiB on trial")
    }
}

/// The last page.
pub(super) fn summary(report: &FleetReport) {
    say("");
    say(&format!(
        "{:<8} {:<8} {:<10} {:>4} {:>4} {:>8}  EVIDENCE",
        "ROLLOUT", "VERSION", "STATE", "KEPT", "BAD", "SECONDS"
    ));
    for one in &report.rollouts {
        say(&format!(
            "{:<8} {:<8} {:<10} {:>4} {:>4} {:>8.1}  {}",
            one.id, one.version, one.state, one.kept, one.bad, one.seconds, one.evidence
        ));
    }
    say("");
    say(&report.growth.to_string());
    say(&format!(
        "{} kills, {} of them in rollouts (seed {}), {} samples, at least {} guests settled and \
         healthy, {} guest restarts",
        report.kills,
        report.kills_in_rollouts,
        report.seed,
        report.samples,
        report.least_settled_healthy,
        report.guest_restarts
    ));
    say(if report.failures.is_empty() {
        "green"
    } else {
        "RED"
    });
}
