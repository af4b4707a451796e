//! Growth of a guest during its turn: a guest at its smallest size takes memory while the new
//! program is on trial.

use std::process::Child;
use std::time::Instant;

use anyhow::{Context as _, Result};

use super::guests::{GUESTS, LOOK_EVERY, PATIENCE, SMALLEST_GIB, memory_gib, text};
use super::report::Growth;
use super::sampler::Sampler;
use crate::demo::load::{self, Database};
use crate::demo::site::Site;
use crate::interrupt;

/// Waits until all guests have their smallest size: only then can one grow. A boot is work for
/// which a guest grows.
pub(super) fn wait_for_smallest(site: &Site) -> Result<()> {
    let began = Instant::now();
    loop {
        interrupt::check()?;
        let mut sizes = Vec::new();
        for name in GUESTS {
            let vm = site.object("neonvm", name)?;
            sizes.push((memory_gib(&vm), text(&vm, "/status/phase").to_owned()));
        }
        let is_at_rest = |(gib, phase): &(f64, String)| *gib <= SMALLEST_GIB && phase == "Running";
        if sizes.iter().all(is_at_rest) {
            return Ok(());
        }
        anyhow::ensure!(
            began.elapsed() < PATIENCE,
            "guests did not shrink to their smallest size: {sizes:?}"
        );
        std::thread::park_timeout(LOOK_EVERY);
    }
}

/// Waits until a guest is on trial. Returns its name.
pub(super) fn first_on_trial(sampler: &Sampler) -> Result<String> {
    let began = Instant::now();
    loop {
        if let Some(name) = sampler.seen().on_trial.first() {
            return Ok(name.clone());
        }
        anyhow::ensure!(began.elapsed() < PATIENCE, "no guest came on trial");
        interrupt::check()?;
        std::thread::park_timeout(LOOK_EVERY);
    }
}

/// Starts to take memory in the database of a guest.
pub(super) fn take_memory(databases: &[Database], name: &str) -> Result<Child> {
    let index = GUESTS.iter().position(|guest| *guest == name);
    let database = index.and_then(|index| databases.get(index));
    load::start_burst(database.context("a guest of the demonstration")?)
}

/// Whether memory is still taken.
pub(super) fn goes_on(burst: &mut Child) -> Result<bool> {
    let status = burst.try_wait()?;
    if let Some(status) = status {
        anyhow::ensure!(status.success(), "the memory burst failed ({status})");
    }
    Ok(status.is_none())
}

/// How far a guest grew in its first trial.
pub(super) fn of_guest(sampler: &Sampler, guest: String) -> Growth {
    let memory = sampler.seen().memory(&guest);
    Growth {
        guest,
        before_gib: memory.before,
        in_trial_gib: memory.in_trial,
    }
}
