//! Routes and upkeep of the parts of this guest ([`neonvm_parts`]): brings programs, runs them on
//! trial, keeps them or takes them back.
//!
//! | route | does |
//! |---|---|
//! | `GET /v1/parts` | states of all parts, as in `GET /v1/state` |
//! | `PUT /v1/parts/NAME?sha256&version&token&epoch` | streams a program into the idle slot |
//! | `POST /v1/parts/NAME/try` | runs it on trial |
//! | `POST /v1/parts/NAME/keep`, `/back` | ends the trial |
//!
//! One order is carried out at a time. The scripts of the guest end a trial without this daemon.

mod carry;
mod monitor;
mod process;
pub mod route;
mod upload;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex as SyncMutex;
use std::time::Duration;

use neonvm_parts::core::orders;
use neonvm_parts::core::refusal::Refusal;
use neonvm_parts::core::state;
use neonvm_parts::shell::places::Places;
use protocol::parts::{PartName, PartState, PartStates};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use self::process::Identified;
use crate::core::facts::parts_differ;

/// Interval at which trials are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Folders and sockets of the parts.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Folder of the programs that were brought.
    pub parts: PathBuf,
    /// Folder of what the scripts write about processes. It is empty after a boot.
    pub run: PathBuf,
    /// Folder of the scripts `service` and `trial`.
    pub scripts: PathBuf,
    /// Control socket of the monitor.
    pub monitor_control: PathBuf,
    /// Mount point of procfs.
    pub procfs: PathBuf,
}

/// How this daemon's own process is to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewal {
    /// Execute this program in the same process.
    Execute(PathBuf),
    /// End. Init starts the program that is there now.
    End,
}

/// The parts of this guest.
#[derive(Debug)]
pub struct Parts {
    settings: Settings,
    /// Held while an order is carried out.
    turn: Mutex<()>,
    states: watch::Sender<PartStates>,
    renewals: mpsc::Sender<Renewal>,
    identified: SyncMutex<BTreeMap<PartName, Identified>>,
}

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The order is refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The file system failed.
    #[error("the guest's file system failed: {0}")]
    Files(#[from] io::Error),
}

/// Name of a part's service in `/etc/bellows/services`.
const fn service(part: PartName) -> &'static str {
    match part {
        PartName::Monitor => "vm-monitor",
        PartName::Guestd => "neonvmd",
        PartName::Agent => "autoscaler-agent",
        PartName::Scheduler => "autoscale-scheduler",
        PartName::Controller => "neonvm-controller",
        PartName::Fleet => "bellows-fleet",
    }
}

impl Parts {
    /// Parts of these folders. Their states go to `states`, changes of this daemon itself to
    /// `renewals`.
    #[must_use]
    pub fn new(
        settings: Settings,
        states: watch::Sender<PartStates>,
        renewals: mpsc::Sender<Renewal>,
    ) -> Self {
        Self {
            settings,
            turn: Mutex::new(()),
            states,
            renewals,
            identified: SyncMutex::default(),
        }
    }

    fn places(&self, part: PartName) -> Places {
        Places::new(&self.settings.parts, part)
    }

    /// Ends trials at their time, and publishes the states, until cancelled.
    pub async fn follow(&self, cancel: CancellationToken) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut has_failed = false;
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                _ = looks.tick() => {}
            }
            // An order in progress looks for itself.
            let Ok(turn) = self.turn.try_lock() else {
                continue;
            };
            let looked = self.look().await;
            drop(turn);
            if let Err(error) = &looked
                && !has_failed
            {
                warn!(%error, "failed to look after the parts, retrying every second");
            }
            has_failed = looked.is_err();
        }
    }

    async fn look(&self) -> Result<(), Failure> {
        // The scripts end the daemon's own trial: they work also if it does not.
        let part = PartName::Monitor;
        let places = self.places(part);
        let (record, sight) = (places.record()?, places.sight()?);
        let steps = orders::due(&record, &sight, self.uptime()?);
        if !steps.is_empty() {
            warn!(part = part.as_str(), "trial is over: going back");
            self.steps(part, &steps).await?;
        }
        self.publish().await
    }

    async fn publish(&self) -> Result<(), Failure> {
        let mut states = PartStates::new();
        for part in PartName::ALL {
            states.insert(part, self.state(part).await?);
        }
        self.states.send_if_modified(|shown| {
            let is_news = parts_differ(shown, &states);
            *shown = states;
            is_news
        });
        Ok(())
    }

    async fn state(&self, part: PartName) -> Result<PartState, Failure> {
        let places = self.places(part);
        let running = self.running(part).await;
        let (record, sight) = (places.record()?, places.sight()?);
        Ok(state::state(&record, &sight, &running, self.uptime()?))
    }

    /// Seconds since the guest's boot.
    fn uptime(&self) -> io::Result<u64> {
        let text = std::fs::read_to_string(self.settings.procfs.join("uptime"))?;
        crate::core::facts::parse_uptime(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

#[cfg(test)]
pub(super) mod tests;
