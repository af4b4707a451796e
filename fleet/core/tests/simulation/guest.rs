//! A played guest: its daemon, its program and its trial.

use std::collections::BTreeMap;

use fleet_core::judge::{Readings, Sample};
use fleet_core::permit::Gate;
use fleet_core::{Call, Facts, Observed, Outcome, PartFacts, Returned};
use protocol::parts::{NOT_KEPT, PartPhase, PartSource, PartState, TAKEN_BACK};

use super::sabotage::FleetSabotage;

/// What a release does in a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Release {
    /// The program of the image.
    Image,
    Good,
    Better,
    /// Ends after five seconds.
    Crashes,
    /// Its page never answers.
    Deaf,
    /// Passes its trials, then lets processes be killed.
    Harms,
    /// No revision names it.
    Forged,
}

impl Release {
    pub(super) const ALL: [Self; 7] = [
        Self::Image,
        Self::Good,
        Self::Better,
        Self::Crashes,
        Self::Deaf,
        Self::Harms,
        Self::Forged,
    ];

    pub(super) fn sha256(self) -> String {
        let digit = match self {
            Self::Image => "0",
            Self::Good => "1",
            Self::Better => "2",
            Self::Crashes => "3",
            Self::Deaf => "4",
            Self::Harms => "5",
            Self::Forged => "6",
        };
        digit.repeat(64)
    }

    pub(super) fn of(sha256: &str) -> Self {
        let found = Self::ALL.into_iter().find(|one| one.sha256() == sha256);
        found.unwrap_or(Self::Image)
    }

    /// Whether no trial of it ends well.
    pub(super) const fn is_bad(self) -> bool {
        matches!(self, Self::Crashes | Self::Deaf)
    }
}

#[derive(Debug, Clone)]
struct Trial {
    token: String,
    began: u64,
    ends: u64,
    before: Release,
}

#[derive(Debug, Clone)]
pub(super) struct PlayedGuest {
    pub(super) node: String,
    pub(super) boot: u32,
    pub(super) running: Release,
    staged: Option<(String, Release)>,
    trial: Option<Trial>,
    token: String,
    phase: PartPhase,
    reason: String,
    returned: Returned,
    epoch: u64,
    /// Trials that began, by token.
    pub(super) tries: BTreeMap<String, u32>,
    /// An order of a lower epoch was carried out.
    pub(super) took_lower: bool,
    kept: Vec<String>,
    /// Gate of the VM, while it is held.
    pub(super) held_by: Gate,
    pub(super) held_since: u64,
    pub(super) held_until: u64,
    /// Whether the environment selects it.
    pub(super) matches: bool,
    /// It reports another program until then.
    pub(super) lies_until: u64,
    pub(super) has_lied: bool,
    pub(super) cut_until: u64,
    pub(super) booted: Option<u64>,
    /// Second from which the program runs.
    runs_since: u64,
    sabotage: Option<FleetSabotage>,
}

impl PlayedGuest {
    pub(super) const fn new(node: String, sabotage: Option<FleetSabotage>) -> Self {
        Self {
            node,
            boot: 1,
            running: Release::Image,
            staged: None,
            trial: None,
            token: String::new(),
            phase: PartPhase::Settled,
            reason: String::new(),
            returned: Returned::Ended,
            epoch: 0,
            tries: BTreeMap::new(),
            took_lower: false,
            kept: Vec::new(),
            held_by: Gate::Resizing,
            held_since: 0,
            held_until: 0,
            matches: true,
            lies_until: 0,
            has_lied: false,
            cut_until: 0,
            booted: None,
            runs_since: 0,
            sabotage,
        }
    }

    /// A fresh overlay: the image's program, and no memory.
    pub(super) fn restart(&mut self, second: u64) {
        let fresh = Self::new(self.node.clone(), self.sabotage);
        *self = Self {
            boot: self.boot + 1,
            booted: Some(second),
            runs_since: second,
            matches: self.matches,
            has_lied: self.has_lied,
            ..fresh
        };
    }

    pub(super) fn tick(&mut self, second: u64) {
        let Some(trial) = &self.trial else { return };
        if second >= trial.ends && !self.is(FleetSabotage::EndlessTrials) {
            self.back(NOT_KEPT, Returned::NotKept, second);
        } else if self.running == Release::Crashes && second >= trial.began + 5 {
            self.back("the program ended", Returned::Ended, second);
        }
    }

    fn is(&self, sabotage: FleetSabotage) -> bool {
        self.sabotage == Some(sabotage)
    }

    fn back(&mut self, reason: &str, returned: Returned, second: u64) {
        if let Some(trial) = self.trial.take() {
            self.runs_since = second;
            self.running = trial.before;
            self.phase = PartPhase::Back;
            reason.clone_into(&mut self.reason);
            self.returned = returned;
        }
    }

    /// Seconds for which the program on trial has run.
    pub(super) fn trial_age(&self, second: u64) -> Option<u64> {
        self.trial.as_ref().map(|trial| second - trial.began)
    }

    /// Facts of a guest whose agent has run for some seconds.
    pub(super) const fn facts(&self, agent_seconds: u64) -> Facts {
        Facts {
            degraded: None,
            fault: None,
            check: None,
            agent_is_new: agent_seconds < 20,
            page_answers: Some(!matches!(self.running, Release::Deaf)),
            agent_connected: Some(agent_seconds >= 8),
        }
    }

    pub(super) fn gate(&self, second: u64) -> Option<Gate> {
        let hides = match self.held_by {
            Gate::PeerInFlight => FleetSabotage::HiddenPeers,
            Gate::Skew => FleetSabotage::HiddenSkew,
            _ => FleetSabotage::HiddenResizes,
        };
        let is_seen = second < self.held_until && !self.is(hides);
        is_seen.then_some(self.held_by)
    }

    /// What the guest went through with its program.
    pub(super) fn readings(&self, second: u64) -> Readings {
        let ran = second.saturating_sub(self.runs_since);
        let harms = self.running == Release::Harms && !self.is(FleetSabotage::HiddenHarm);
        let sample = |at, oom_kills| Sample {
            at,
            oom_kills,
            node_has_room: true,
            agent_connected: true,
            ..Sample::default()
        };
        let mut readings = Readings::default();
        readings.add(sample(0, 0));
        readings.add(sample(ran, if harms { ran / 30 } else { 0 }));
        readings.resize_millis.push(500);
        readings
    }

    pub(super) fn observed(&self, second: u64) -> Observed {
        if second < self.cut_until {
            return Observed::Unreachable;
        }
        let running = if second < self.lies_until {
            Release::Good
        } else if self.is(FleetSabotage::FalseReturns) && !self.matches {
            Release::Image
        } else {
            self.running
        };
        let left = self
            .trial
            .as_ref()
            .map_or(0, |trial| trial.ends.saturating_sub(second));
        Observed::Seen(PartFacts {
            state: PartState {
                version: format!("{running:?}"),
                sha256: running.sha256(),
                from: if running == Release::Image {
                    PartSource::Image
                } else {
                    PartSource::A
                },
                phase: self.phase,
                left_s: left,
                token: self.token.clone(),
                reason: self.reason.clone(),
                starts: 1,
                resident_bytes: 1 << 20,
            },
            returned: self.returned,
        })
    }

    /// Carries out an order as the guest's daemon does.
    pub(super) fn take(&mut self, call: &Call, second: u64) -> Outcome {
        if second < self.cut_until {
            return Outcome::Transient("no connection".to_owned());
        }
        match call {
            Call::Push(turn) => {
                if turn.epoch < self.epoch && !self.is(FleetSabotage::LowerEpochs) {
                    return Outcome::Conflict;
                }
                if self.trial.is_some() {
                    return Outcome::Busy("on trial".to_owned());
                }
                let is_known = self.kept.contains(&turn.token) || self.token == turn.token;
                if is_known && !self.is(FleetSabotage::ForgottenTokens) {
                    return Outcome::Done;
                }
                self.took_lower |= turn.epoch < self.epoch;
                self.epoch = turn.epoch;
                let brought = if self.is(FleetSabotage::ForgedPrograms) {
                    Release::Forged
                } else {
                    Release::of(&turn.sha256)
                };
                self.staged = Some((turn.token.clone(), brought));
                self.token.clone_from(&turn.token);
                self.phase = PartPhase::Staged;
                self.returned = Returned::Ended;
                Outcome::Done
            }
            Call::Try {
                token,
                epoch,
                seconds,
            } => self.begin(token, *epoch, *seconds, second),
            Call::Keep { .. } | Call::Back { .. } if self.is(FleetSabotage::EndlessTrials) => {
                Outcome::Transient("the order was lost".to_owned())
            }
            Call::Keep { token } => match &self.trial {
                Some(trial) if trial.token == *token => {
                    self.trial = None;
                    self.phase = PartPhase::Settled;
                    self.kept.push(token.clone());
                    Outcome::Done
                }
                _ if self.kept.contains(token) => Outcome::Done,
                _ => Outcome::GoneBack(self.reason.clone()),
            },
            Call::Back { token } => match &self.trial {
                Some(trial) if trial.token == *token => {
                    self.back(TAKEN_BACK, Returned::ByHost, second);
                    Outcome::Done
                }
                Some(_) => Outcome::Busy("on trial".to_owned()),
                // A new token: the program that is kept goes.
                None if self.token != *token && !self.kept.contains(token) => {
                    self.running = Release::Image;
                    self.runs_since = second;
                    self.phase = PartPhase::Settled;
                    self.token.clone_from(token);
                    Outcome::Done
                }
                None => Outcome::GoneBack(self.reason.clone()),
            },
        }
    }

    fn begin(&mut self, token: &str, epoch: u64, seconds: u64, second: u64) -> Outcome {
        if epoch < self.epoch && !self.is(FleetSabotage::LowerEpochs) {
            return Outcome::Conflict;
        }
        if self.tries.contains_key(token) && !self.is(FleetSabotage::ForgottenTokens) {
            return Outcome::Done;
        }
        let is_resized = second < self.held_until && self.held_by == Gate::Resizing;
        if is_resized && !self.is(FleetSabotage::ForgottenTokens) {
            return Outcome::Busy("a resize is under way".to_owned());
        }
        let Some((_, release)) = self.staged.clone().filter(|(staged, _)| staged == token) else {
            return Outcome::NothingStaged;
        };
        *self.tries.entry(token.to_owned()).or_default() += 1;
        let before = self
            .trial
            .as_ref()
            .map_or(self.running, |trial| trial.before);
        self.trial = Some(Trial {
            token: token.to_owned(),
            began: second,
            ends: second + seconds,
            before,
        });
        self.running = release;
        self.runs_since = second;
        self.phase = PartPhase::Trial;
        Outcome::Done
    }
}
