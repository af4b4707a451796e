//! Samples of the guests' monitors, every 100 ms from the states of their runners.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::demo::site::quantity;
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
    /// Memory of each guest around its first trial.
    memory: BTreeMap<String, Memory>,
}

/// Memory of a guest, GiB.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Memory {
    /// Just before its first trial.
    pub(super) before: f64,
    /// Most in its first trial.
    pub(super) in_trial: f64,
    /// The trial is over.
    is_over: bool,
}

impl Memory {
    fn add(&mut self, gib: f64, is_on_trial: bool) {
        let was_on_trial = self.in_trial > 0.0;
        if is_on_trial && !self.is_over {
            self.in_trial = self.in_trial.max(gib);
        } else if !was_on_trial {
            self.before = gib;
        } else {
            self.is_over = true;
        }
    }
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

    /// Memory of a guest around its first trial.
    pub(super) fn memory(&self, guest: &str) -> Memory {
        self.memory.get(guest).copied().unwrap_or_default()
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
            let memory = self.memory.entry(guest.clone()).or_default();
            memory.add(memory_gib(state), phase == "Trial");
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

fn memory_gib(state: &Value) -> f64 {
    let bytes = |name: &str| quantity(&state["memory"][name]).unwrap_or(0.0);
    (bytes("base") + bytes("plugged")) / f64::from(1 << 30)
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
    fn memory_is_that_around_the_first_trial() {
        let mut seen = Seen::default();
        let looks = [
            ("Settled", "0"),
            ("Trial", "0"),
            ("Trial", "2Gi"),
            ("Trial", "1Gi"),
            ("Settled", "3Gi"),
            ("Trial", "4Gi"),
        ];
        for (phase, plugged) in looks {
            let mut state = state(phase, "1", "x").expect("a state");
            state["memory"] = json!({"base": "1Gi", "plugged": plugged});
            seen.add(&[("a".to_owned(), Some(state))]);
        }
        let memory = seen.memory("a");
        assert_eq!((memory.before, memory.in_trial), (1.0, 3.0));
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
