//! Samples of the guests' monitors, every 100 ms from the states of their runners.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::http;

const EVERY: Duration = Duration::from_millis(100);

/// What the samples have shown so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    pub(super) samples: u64,
    /// Fewest guests that were settled and healthy in a sample.
    pub(super) least: Option<usize>,
    /// Guests on trial in the last sample.
    pub(super) on_trial: Vec<String>,
    /// Programs that each guest has run.
    programs: BTreeMap<String, BTreeSet<String>>,
    /// Boots of each guest.
    boots: BTreeMap<String, BTreeSet<String>>,
}

impl Seen {
    /// Guests that have run a program.
    pub(super) fn reached(&self, sha256: &str) -> Vec<String> {
        let all = self.programs.iter();
        let of_it = all.filter(|(_, programs)| programs.contains(sha256));
        of_it.map(|(guest, _)| guest.clone()).collect()
    }

    /// Boots beyond the first of each guest.
    pub(super) fn restarts(&self) -> usize {
        let boots = self.boots.values();
        boots.map(|boots| boots.len().saturating_sub(1)).sum()
    }

    fn add(&mut self, states: &[(String, Option<Value>)]) {
        self.samples += 1;
        self.on_trial.clear();
        let mut healthy = 0;
        for (guest, state) in states {
            let Some(state) = state else { continue };
            let monitor = &state["guest_parts"]["monitor"];
            let phase = monitor["phase"].as_str().unwrap_or_default();
            let is_silent = !state["guest_silent"].is_null();
            if phase == "Trial" {
                self.on_trial.push(guest.clone());
            } else if !phase.is_empty() && !is_silent {
                healthy += 1;
            }
            let note = |to: &mut BTreeMap<String, BTreeSet<String>>, value: &Value| {
                if let Some(value) = value.as_str().filter(|text| !text.is_empty()) {
                    let of_guest = to.entry(guest.clone()).or_default();
                    of_guest.insert(value.to_owned());
                }
            };
            note(&mut self.programs, &monitor["sha256"]);
            note(&mut self.boots, &state["boot_id"]);
        }
        self.least = Some(self.least.map_or(healthy, |least| least.min(healthy)));
    }
}

/// A thread that samples until it is dropped.
pub(super) struct Sampler {
    seen: Arc<Mutex<Seen>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// Samples guests by the control sockets of their runners.
    pub(super) fn start(sockets: Vec<(String, PathBuf)>) -> Self {
        let (seen, ends) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicBool>::default());
        let (to, until) = (Arc::clone(&seen), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            while !until.load(Ordering::Acquire) {
                let began = Instant::now();
                let states: Vec<(String, Option<Value>)> = sockets
                    .iter()
                    .map(|(guest, socket)| (guest.clone(), state_of(socket)))
                    .collect();
                to.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .add(&states);
                std::thread::park_timeout(EVERY.saturating_sub(began.elapsed()));
            }
        });
        Self {
            seen,
            ends,
            thread: Some(thread),
        }
    }

    /// What was seen until now.
    pub(super) fn seen(&self) -> Seen {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.clone()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            let _ = thread.join();
        }
    }
}

fn state_of(socket: &Path) -> Option<Value> {
    let text = http::get_unix(socket, "/v1/state").ok()?;
    serde_json::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn state(phase: &str, sha256: &str, boot: &str) -> Option<Value> {
        Some(json!({
            "boot_id": boot, "guest_silent": null,
            "guest_parts": {"monitor": {"phase": phase, "sha256": sha256}},
        }))
    }

    #[test]
    fn guests_on_trial_and_guests_that_do_not_answer_are_not_settled() {
        let mut seen = Seen::default();
        let row = |a, b, c| {
            [a, b, c]
                .into_iter()
                .zip(["a", "b", "c"])
                .map(|(state, name)| (name.to_owned(), state))
                .collect::<Vec<_>>()
        };
        let settled = || state("Settled", "1", "x");
        seen.add(&row(settled(), settled(), state("Back", "1", "x")));
        assert_eq!(seen.least, Some(3));
        seen.add(&row(settled(), state("Trial", "2", "x"), settled()));
        assert_eq!((seen.least, seen.on_trial.len()), (Some(2), 1));
        seen.add(&row(None, settled(), settled()));
        assert_eq!(seen.least, Some(2));
        seen.add(&row(None, state("Trial", "2", "x"), settled()));
        assert_eq!(seen.least, Some(1));
        assert_eq!(seen.reached("2"), ["b"]);
        assert_eq!(seen.restarts(), 0);
        seen.add(&row(settled(), state("Settled", "1", "y"), settled()));
        assert_eq!(seen.restarts(), 1);
    }
}
