//! The guests of a demo of rollouts: how they are made, and what they run.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;

use crate::demo::load::Database;
use crate::demo::site::{BOOT_PATIENCE, Site, quantity};
use crate::{interrupt, shell};

/// VMs of the demonstration, in the order of their creation.
pub(super) const GUESTS: [&str; 3] = ["one", "two", "three"];
/// Longest rollout, with kills and without KVM.
pub(super) const PATIENCE: Duration = Duration::from_secs(1200);
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Smallest memory of a guest.
pub(super) const SMALLEST_GIB: f64 = 6.0;
/// Sizes follow memory early and load late, so that a load average of 2.8 makes no guest grow.
const SCALING: &str = "autoscaling.neon.tech/config=\
     {\"loadAverageFractionTarget\":1.9,\"memoryUsageFractionTarget\":0.11}";

pub(super) fn create(site: &Site, name: &str) -> Result<()> {
    let create = [
        "vm",
        "create",
        name,
        "--image",
        "bellows/postgres:15",
        "--cpu-min",
        "0.5",
        "--cpu-max",
        "0.5",
        "--memory-min",
        "6Gi",
        "--memory-max",
        "8Gi",
        "--port",
        "5432",
        "--autoscale",
    ];
    shell::run("create a VM", &mut site.command(&create))?;
    let mut annotate = site.kubectl(&["annotate", "neonvm", name, SCALING]);
    shell::output(&mut annotate)?;
    Ok(())
}

pub(super) fn database(site: &Site, name: &str, vm: &Value) -> Result<Database> {
    let password = shell::output(&mut site.command(&["psql", name, "--show-password"]))?;
    Ok(Database {
        address: text(vm, "/status/podIP").to_owned(),
        password: password.trim().to_owned(),
    })
}

/// The monitor of each guest, as its runner reports it.
pub(super) fn monitors(site: &Site) -> Result<Vec<Value>> {
    let mut monitors = Vec::new();
    for name in GUESTS {
        let vm = site.object("neonvm", name)?;
        let state = site.runner_state(&vm)?;
        monitors.push(state["guest_parts"]["monitor"].clone());
    }
    Ok(monitors)
}

pub(super) fn wait_for_parts(site: &Site) -> Result<()> {
    let began = Instant::now();
    loop {
        interrupt::check()?;
        let monitors = monitors(site)?;
        if monitors.iter().all(|one| one["phase"] == "Settled") {
            return Ok(());
        }
        anyhow::ensure!(began.elapsed() < BOOT_PATIENCE, "no parts: {monitors:?}");
        std::thread::park_timeout(LOOK_EVERY);
    }
}

pub(super) fn memory_gib(vm: &Value) -> f64 {
    quantity(&vm["status"]["memorySize"]).unwrap_or(0.0) / f64::from(1 << 30)
}

pub(super) fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    let text = value.pointer(path).and_then(Value::as_str);
    text.unwrap_or_default()
}
