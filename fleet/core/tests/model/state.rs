//! One state of the model: objects, guests, two engines, and what is on its way.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};

use fleet_core::{Call, Engine, Guest, Now, World, Write};
use protocol::time::{Timestamp, WallTime};

use super::guest::PlayedGuest;
use super::objects::{Objects, Versions, environment, revisions};
use super::sabotage::FleetSabotage;

/// How much of each thing happens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) guests: u32,
    /// Answers to writes and calls that are lost.
    pub(crate) lost: u32,
    /// Writes that do not reach the store.
    pub(crate) refused: u32,
    pub(crate) crashes: u32,
    /// Steps of the time.
    pub(crate) ticks: u32,
    /// Whether a person stops the first deployment at some time.
    pub(crate) stops: bool,
    /// Whether a person starts a second deployment at some time.
    pub(crate) starts: bool,
    /// Whether the store ignores versions.
    pub(crate) is_blind: bool,
    pub(crate) sabotage: Option<FleetSabotage>,
}

impl Bounds {
    pub(crate) const SMALL: Self = Self {
        guests: 1,
        lost: 0,
        refused: 0,
        crashes: 0,
        ticks: 1,
        stops: false,
        starts: false,
        is_blind: false,
        sabotage: None,
    };
}

/// An engine, and its actions that have not ended.
#[derive(Debug, Clone)]
pub(crate) struct Running {
    pub(crate) engine: Engine,
    /// Versions of the objects as the engine's world holds them.
    pub(crate) read: Versions,
    pub(crate) write: Option<(u64, Write)>,
    pub(crate) calls: Vec<(u64, String, Call)>,
}

/// What an engine sent before it ended.
#[derive(Debug, Clone)]
pub(crate) enum Late {
    Write(Box<Write>, Versions),
    Call(String, Call),
}

#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) second: u64,
    pub(crate) objects: Objects,
    pub(crate) guests: BTreeMap<String, PlayedGuest>,
    pub(crate) engines: Vec<Running>,
    pub(crate) late: Vec<Late>,
    /// What may still happen.
    pub(crate) left: Bounds,
    /// Engines that began.
    pub(crate) runs: u64,
    /// A deployment that had not begun got a turn, or an epoch fell.
    pub(crate) fault: Option<&'static str>,
}

impl Running {
    pub(crate) fn new(epoch: u64) -> Self {
        Self {
            engine: Engine::new(epoch),
            read: Versions::new(),
            write: None,
            calls: Vec::new(),
        }
    }
}

impl State {
    pub(crate) fn new(bounds: Bounds) -> Self {
        let guests = (0..bounds.guests).map(|number| {
            let guest = PlayedGuest::new(format!("node-{number}"), bounds.sabotage);
            (format!("vm-{number}"), guest)
        });
        Self {
            second: 0,
            objects: Objects::new(),
            guests: guests.collect(),
            engines: vec![Running::new(1), Running::new(2)],
            late: Vec::new(),
            left: bounds,
            runs: 2,
            fault: None,
        }
    }

    pub(crate) fn now(&self) -> Now {
        let micros = self.second * 1_000_000;
        Now {
            monotonic: Timestamp(micros),
            wall: WallTime(1_700_000_000_000_000 + micros.cast_signed()),
        }
    }

    pub(crate) fn world(&self) -> World {
        let guests = self.guests.iter().map(|(name, played)| {
            let (turn, last) = self.objects.turns.get(name).cloned().unwrap_or_default();
            let guest = Guest {
                node: played.node.clone(),
                is_enrolled: true,
                boot: played.boot.to_string(),
                observed: played.observed(self.second),
                facts: played.facts(3_600),
                turn,
                last,
                ..Guest::default()
            };
            (name.clone(), guest)
        });
        World {
            environment: environment(&self.objects),
            revisions: revisions(),
            deployments: self.objects.deployments.clone(),
            guests: guests.collect(),
            is_critical: false,
        }
    }

    /// A number that equal states have in common. Ids of actions and numbers of versions only grow,
    /// so what counts is which action is under way and which copy is old.
    fn digest(&self) -> u64 {
        let mut into = Digest::default();
        let objects = &self.objects;
        let left = &self.left;
        let of_store = (
            &objects.status,
            objects.has_finalizer,
            &objects.deployments,
            &objects.turns,
        );
        let spent = (
            left.lost,
            left.refused,
            left.crashes,
            left.stops,
            left.starts,
        );
        write!(
            into,
            "{:?}",
            (self.second, of_store, &self.guests, spent, self.fault)
        )
        .expect("a hasher takes all");
        for one in &self.engines {
            let calls: Vec<_> = one
                .calls
                .iter()
                .map(|(_, guest, call)| (guest, call))
                .collect();
            let write = one.write.as_ref().map(|(_, write)| write);
            let stale = self.stale(&one.read);
            write!(into, "{:?}", (&one.engine, stale, write, calls)).expect("a hasher takes all");
        }
        for late in &self.late {
            let stale = match late {
                Late::Write(_, read) => self.stale(read),
                Late::Call(..) => Vec::new(),
            };
            let what = match late {
                Late::Write(write, _) => (Some(write), None),
                Late::Call(guest, call) => (None, Some((guest, call))),
            };
            write!(into, "{:?}", (stale, what)).expect("a hasher takes all");
        }
        into.hasher.finish()
    }

    /// Objects that have changed since they were read.
    pub(crate) fn stale(&self, read: &Versions) -> Vec<&String> {
        let all = self.objects.versions.iter();
        all.filter(|(key, version)| read.get(*key) != Some(version))
            .map(|(key, _)| key)
            .collect()
    }
}

/// Hashes the text of a state without counters: values of the members in [`COUNTERS`], and numbers
/// that are keys or name an action.
#[derive(Default)]
struct Digest {
    hasher: DefaultHasher,
    /// A number, until it is known whether it is a key.
    number: String,
    skips: bool,
}

/// Members of the engine that only grow.
const COUNTERS: [&str; 4] = ["next_id", "basis", "unknown_outcomes", "writing"];

impl std::fmt::Write for Digest {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if is_number {
            if !std::mem::take(&mut self.skips) {
                text.clone_into(&mut self.number);
            }
            return Ok(());
        }
        let number = std::mem::take(&mut self.number);
        if !text.starts_with(": ") {
            self.hasher.write(number.as_bytes());
        }
        if text.starts_with(", ") {
            self.skips = false;
        }
        self.hasher.write(text.as_bytes());
        self.skips |= COUNTERS.contains(&text);
        Ok(())
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest());
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.digest() == other.digest()
    }
}
