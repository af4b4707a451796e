//! Whether an attempt is made, and of which version.

use std::fmt;

use fleet_core::decide::{Inputs, Urgency, decide, spacing_seconds};
use protocol::time::{Span, Timestamp};
use semver::Version;
use serde::Serialize;

use super::{MOST_FAILURES, Outcome};

/// What a plan rests on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Version of the channel, or why there is none.
    pub wanted: Result<Version, String>,
    /// Whether the channel calls its version critical.
    pub is_critical: bool,
    /// Version of the installed package. `None` without one.
    pub installed: Option<Version>,
    /// Health of the monitor.
    pub health: Health,
    /// Whether a schedule is in force. The timer then starts runs in its windows alone.
    pub has_schedule: bool,
    /// Number and time of the last attempt since the machine booted.
    pub last_attempt: Option<(u64, Timestamp)>,
    /// Version that was put back, and how often.
    pub failed: Option<(Version, u32)>,
    /// Name of this machine, which spreads attempts.
    pub machine: String,
}

/// What systemd says of the monitor's unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitState {
    /// It starts with the machine.
    Enabled,
    /// A person has not enabled it. The updater does not start it.
    Disabled,
    /// It cannot start.
    Masked,
    /// There is none.
    Absent,
}

/// Health of the monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Health {
    /// State of its unit.
    pub unit: UnitState,
    /// Whether its process runs.
    pub is_active: bool,
    /// Whether its page answers. True if no page is configured.
    pub is_answering: bool,
    /// Whether its page shows an agent.
    pub has_agent: bool,
}

impl Health {
    /// Whether the monitor works, or is not meant to.
    #[must_use]
    pub const fn is_healthy(self) -> bool {
        match self.unit {
            UnitState::Enabled => self.is_active && self.is_answering,
            UnitState::Disabled => true,
            UnitState::Masked | UnitState::Absent => false,
        }
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let yes = |value: bool| if value { "yes" } else { "no" };
        write!(
            f,
            "unit {:?}, active {}, page {}, agent {}",
            self.unit,
            yes(self.is_active),
            yes(self.is_answering),
            yes(self.has_agent)
        )
    }
}

/// Whether an attempt is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// Of this version.
    Go(Version),
    /// None is made.
    End(Outcome),
}

/// Plans a run.
#[must_use]
pub fn plan(now: Timestamp, facts: &Facts) -> Plan {
    let wanted = match &facts.wanted {
        Ok(wanted) => wanted,
        Err(reason) => return waits(format!("the channel has no version: {reason}")),
    };
    let is_healthy = facts.health.is_healthy();
    let is_current = facts.installed.as_ref() == Some(wanted);
    if is_current && is_healthy {
        return Plan::End(Outcome::Current);
    }
    let major = facts.installed.as_ref().map(|installed| installed.major);
    if major.is_some_and(|major| wanted.major < major) {
        return Plan::End(Outcome::Refused {
            version: wanted.to_string(),
            reason: "it has a lower major version than the installed one: install it by hand"
                .to_owned(),
        });
    }
    let is_left = facts
        .failed
        .as_ref()
        .is_some_and(|(version, times)| version == wanted && *times >= MOST_FAILURES);
    if is_left && is_healthy {
        return Plan::End(Outcome::Refused {
            version: wanted.to_string(),
            reason: format!("it was put back {MOST_FAILURES} times"),
        });
    }
    let urgency = decide(Inputs {
        is_critical: facts.is_critical,
        // Without a schedule nobody can name a window.
        is_unhealthy: !is_healthy || !facts.has_schedule,
        is_open: facts.has_schedule,
    });
    if urgency == Urgency::Wait {
        return waits("no window is open".to_owned());
    }
    match next_attempt(facts).filter(|next| now < *next) {
        Some(next) => {
            let left = next.since(now).as_millis().div_ceil(1000);
            waits(format!("the next attempt is in {left} s at the earliest"))
        }
        None => Plan::Go(wanted.clone()),
    }
}

fn next_attempt(facts: &Facts) -> Option<Timestamp> {
    let (number, at) = facts.last_attempt?;
    let spacing = spacing_seconds(&facts.machine, &number.to_string());
    Some(at + Span::from_secs(spacing))
}

fn waits(reason: String) -> Plan {
    Plan::End(Outcome::Waits { reason })
}
