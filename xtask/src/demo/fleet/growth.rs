//! Growth of a guest during its turn: a guest at its smallest size takes memory while the new
//! program is on trial.

use std::process::Child;
use std::time::Instant;

use anyhow::{Context as _, Result};

use super::guests::{GUESTS, LOOK_EVERY, memory_gib, text};
use super::report::Growth;
use super::{PATIENCE, Show};
use crate::demo::load;
use crate::demo::site::{Site, quantity};
use crate::interrupt;

/// Smallest size of a guest.
const SMALLEST_GIB: f64 = 1.0;
const SMALLEST_CPUS: f64 = 0.25;

/// Waits until all guests have their smallest size: only then can one grow. A boot is work for
/// which a guest grows.
pub(super) fn wait_for_smallest(site: &Site) -> Result<()> {
    let began = Instant::now();
    loop {
        interrupt::check()?;
        let mut sizes = Vec::new();
        for name in GUESTS {
            let vm = site.object("neonvm", name)?;
            let cpus = quantity(&vm["status"]["cpus"]).unwrap_or(0.0);
            let is_smallest = memory_gib(&vm) <= SMALLEST_GIB && cpus <= SMALLEST_CPUS;
            let phase = text(&vm, "/status/phase").to_owned();
            let is_at_rest = is_smallest && phase == "Running";
            sizes.push((is_at_rest, cpus, memory_gib(&vm), phase));
        }
        if sizes.iter().all(|(is_at_rest, ..)| *is_at_rest) {
            return Ok(());
        }
        anyhow::ensure!(
            began.elapsed() < PATIENCE,
            "guests did not shrink to their smallest size: {sizes:?}"
        );
        std::thread::park_timeout(LOOK_EVERY);
    }
}

impl Show {
    /// Takes memory in the first guest on trial, and measures how far that guest grows on trial.
    pub(super) fn grow_in_a_turn(&mut self) -> Result<()> {
        let name = self.first_on_trial()?;
        let index = GUESTS.iter().position(|guest| *guest == name);
        let database = index.and_then(|index| self.databases.get(index));
        let mut burst = load::start_burst(database.context("a guest of the demonstration")?)?;
        self.say(&format!("{name} is on trial: take memory in its database"));
        self.until_ended(&mut burst)?;
        let memory = self.sampler.seen().memory(&name);
        self.say(&format!(
            "{name} grew from {:.2} to {:.2} GiB on trial",
            memory.before, memory.in_trial
        ));
        if memory.in_trial <= memory.before {
            let text = "growth asked for in a turn did not come in it";
            self.report.failures.push(text.to_owned());
        }
        self.report.growth = Growth {
            guest: name,
            before_gib: memory.before,
            in_trial_gib: memory.in_trial,
        };
        Ok(())
    }

    fn first_on_trial(&self) -> Result<String> {
        let began = Instant::now();
        loop {
            if let Some(name) = self.sampler.seen().on_trial.first() {
                return Ok(name.clone());
            }
            anyhow::ensure!(began.elapsed() < PATIENCE, "no guest came on trial");
            interrupt::check()?;
            std::thread::park_timeout(LOOK_EVERY);
        }
    }

    fn until_ended(&mut self, burst: &mut Child) -> Result<()> {
        loop {
            if let Some(status) = burst.try_wait()? {
                anyhow::ensure!(status.success(), "the memory burst failed ({status})");
                return Ok(());
            }
            self.step()?;
        }
    }
}
