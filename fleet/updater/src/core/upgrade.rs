//! What does one run of `upgrade` do next?
//!
//! look ─► plan ─► record ─► refresh ─► fetch ─► keep ─► unmask ─► install ─► start ─► prove ─► end
//!
//! * No version, a lower major version and the installed version of a healthy monitor end the run.
//! * Attempts are 30 to 60 minutes apart. Each is recorded before it begins.
//! * The package of before is kept. It is put back if the new monitor is not proven in time.
//! * A version that was put back three times is left, until the monitor is unhealthy or the channel
//!   names another one.

mod plan;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use protocol::core::Core;
use protocol::time::{Span, Timestamp};
use semver::Version;
use serde::Serialize;

pub use plan::{Facts, Health, Plan, UnitState, plan};

/// Time in which a new monitor has to be proven.
pub const PROOF_WITHIN: Span = Span::from_secs(120);
/// Time for which it has to be healthy without a break.
pub const HEALTHY_FOR: Span = Span::from_secs(20);
/// Between two looks.
pub const LOOK_EVERY: Span = Span::from_secs(2);
/// Times that a version is put back before it is left.
pub const MOST_FAILURES: u32 = 3;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// What the plan rests on was read.
    Looked(Box<Facts>),
    /// The action of before ended well.
    Done,
    /// The action of before failed.
    Failed(String),
    /// The monitor's health was read.
    Health(Health),
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Read what the plan rests on.
    Look,
    /// Write down that an attempt begins.
    Record,
    /// Read the suite's lists.
    Refresh,
    /// Fetch the package of a version.
    Fetch(Version),
    /// Have the package of the installed version at hand. A failure leaves no way back.
    Keep(Version),
    /// Allow the unit to start.
    Unmask,
    /// Install a version.
    Install(Version),
    /// Start the unit, unless a person disabled it.
    Start,
    /// Read the monitor's health.
    Probe,
    /// Install the kept package of a version, without the network.
    PutBack(Version),
    /// Write down how the run ended. No action follows.
    End(Outcome),
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Outcome {
    /// The channel's version is installed, and the monitor is healthy or disabled.
    Current,
    /// No attempt was made.
    Waits {
        /// Cause, as a sentence.
        reason: String,
    },
    /// No attempt was made, and none will be for this version.
    Refused {
        /// Version that the channel names.
        version: String,
        /// Cause, as a sentence.
        reason: String,
    },
    /// The version was installed and proven.
    Upgraded {
        /// Version before, if there was one.
        from: Option<String>,
        /// Version that is installed and runs.
        version: String,
    },
    /// The version was not proven, and the one before is installed again.
    PutBack {
        /// Version that is installed.
        from: String,
        /// Version that failed.
        version: String,
        /// Cause, as a sentence.
        reason: String,
    },
    /// The attempt failed.
    Failed {
        /// Version that the attempt was to bring.
        version: String,
        /// Cause, as a sentence.
        reason: String,
    },
}

impl Outcome {
    /// Whether the attempt did not bring the version.
    #[must_use]
    pub const fn is_failure(&self) -> bool {
        matches!(self, Self::PutBack { .. } | Self::Failed { .. })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Proof {
    until: Timestamp,
    healthy_since: Option<Timestamp>,
    look_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Looking,
    /// An action of the attempt is in progress.
    Acting(Action),
    Proving(Proof),
    Over,
}

/// One run, from the first look to its outcome.
#[derive(Debug)]
pub struct Upgrade {
    step: Step,
    queue: VecDeque<Action>,
    from: Option<Version>,
    to: Option<Version>,
    had_agent: bool,
    is_kept: bool,
    reason: Option<String>,
}

impl Default for Upgrade {
    fn default() -> Self {
        Self {
            step: Step::Looking,
            queue: VecDeque::from([Action::Look]),
            from: None,
            to: None,
            had_agent: false,
            is_kept: false,
            reason: None,
        }
    }
}

impl Core for Upgrade {
    type Time = Timestamp;
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Timestamp, event: Event) {
        match (&self.step, event) {
            (Step::Looking, Event::Looked(facts)) => self.looked(now, &facts),
            (Step::Looking, Event::Failed(reason)) => self.end(Outcome::Waits { reason }),
            (Step::Acting(_), Event::Done) => self.acted(now),
            (Step::Acting(_), Event::Failed(reason)) => self.act_failed(now, reason),
            (Step::Proving(_), Event::Health(health)) => self.probed(now, &health),
            // Of an action that nobody waits for.
            (Step::Looking | Step::Acting(_) | Step::Proving(_) | Step::Over, _) => {}
        }
    }

    fn poll_action(&mut self, now: Timestamp) -> Option<Action> {
        if let Step::Proving(proof) = &mut self.step {
            proof.look_at.filter(|at| now >= *at)?;
            proof.look_at = None;
            return Some(Action::Probe);
        }
        let action = self.queue.pop_front()?;
        if !matches!(action, Action::Look | Action::End(_)) {
            self.step = Step::Acting(action.clone());
        }
        Some(action)
    }

    fn poll_deadline(&self) -> Option<Timestamp> {
        match &self.step {
            Step::Proving(proof) => proof.look_at,
            Step::Looking | Step::Acting(_) | Step::Over => None,
        }
    }
}

impl Upgrade {
    fn looked(&mut self, now: Timestamp, facts: &Facts) {
        let to = match plan(now, facts) {
            Plan::End(outcome) => return self.end(outcome),
            Plan::Go(to) => to,
        };
        self.from.clone_from(&facts.installed);
        self.had_agent = facts.health.has_agent;
        self.to = Some(to.clone());
        self.queue.push_back(Action::Record);
        self.queue.push_back(Action::Refresh);
        self.queue.push_back(Action::Fetch(to.clone()));
        let other = facts.installed.clone().filter(|installed| *installed != to);
        self.queue.extend(other.map(Action::Keep));
        self.queue.push_back(Action::Unmask);
        self.queue.push_back(Action::Install(to));
        self.queue.push_back(Action::Start);
        self.step = Step::Acting(Action::Look);
    }

    fn acted(&mut self, now: Timestamp) {
        let Step::Acting(action) = &self.step else {
            return;
        };
        match action {
            Action::Keep(_) => self.is_kept = true,
            Action::Start => {
                self.step = Step::Proving(Proof {
                    until: now + PROOF_WITHIN,
                    healthy_since: None,
                    look_at: Some(now),
                });
            }
            Action::PutBack(_) => self.is_back(),
            _ => {}
        }
    }

    fn act_failed(&mut self, now: Timestamp, reason: String) {
        let Step::Acting(action) = &self.step else {
            return;
        };
        match action {
            // Without the old package the upgrade still goes on.
            Action::Keep(_) => {}
            // The unit may start all the same; the proof shows that.
            Action::Unmask => {}
            Action::Install(_) | Action::Start => self.go_back(now, reason),
            Action::PutBack(version) => {
                let text = format!(
                    "{}; putting back {version} failed: {reason}",
                    self.reason.clone().unwrap_or_default()
                );
                self.end_failed(text);
            }
            _ => self.end_failed(reason),
        }
    }

    fn probed(&mut self, now: Timestamp, health: &Health) {
        let Step::Proving(proof) = &mut self.step else {
            return;
        };
        let is_proven = health.is_healthy() && (health.has_agent || !self.had_agent);
        if !is_proven {
            proof.healthy_since = None;
        }
        let since = is_proven.then(|| *proof.healthy_since.get_or_insert(now));
        let is_settled = since.is_some_and(|since| now.since(since) >= HEALTHY_FOR);
        if health.unit == UnitState::Disabled || is_settled {
            let (from, version) = (text(self.from.as_ref()), self.version());
            return self.end(Outcome::Upgraded { from, version });
        }
        if now < proof.until {
            proof.look_at = Some(now + LOOK_EVERY);
            return;
        }
        let reason = format!("the monitor was not healthy for 20 s within 120 s: {health}");
        self.go_back(now, reason);
    }

    /// Installs the package of before, if there is one.
    fn go_back(&mut self, _now: Timestamp, reason: String) {
        self.queue.clear();
        match self.from.clone().filter(|_| self.is_kept) {
            Some(from) => {
                self.reason = Some(reason);
                self.step = Step::Acting(Action::Look);
                self.queue.push_back(Action::PutBack(from));
            }
            None => self.end_failed(reason),
        }
    }

    fn is_back(&mut self) {
        self.end(Outcome::PutBack {
            from: text(self.from.as_ref()).unwrap_or_default(),
            version: self.version(),
            reason: self.reason.clone().unwrap_or_default(),
        });
    }

    fn end_failed(&mut self, reason: String) {
        let version = self.version();
        self.end(Outcome::Failed { version, reason });
    }

    fn end(&mut self, outcome: Outcome) {
        self.step = Step::Over;
        self.queue = VecDeque::from([Action::End(outcome)]);
    }

    fn version(&self) -> String {
        text(self.to.as_ref()).unwrap_or_default()
    }
}

fn text(version: Option<&Version>) -> Option<String> {
    version.map(ToString::to_string)
}
