//! One VM and an agent that has just started: the first patch it writes in its life.
//!
//! Its connection to the API server has carried next to nothing, so the kernel has no reason to
//! acknowledge at once. A client that leaves Nagle's algorithm on then waits 40 ms for half of its
//! own request. The medians of a busy agent do not show that; the 99th percentile here does.

use std::path::Path;

use anyhow::{Context as _, Result};
use bellows_tests::figures::{Figure, percentile};
use bellows_tests::patience::wait_for;

use super::follow::Sizes;
use super::guests::Guests;
use super::measure::{IDLE, PATIENCE, TWO_UNITS, millis, tell};
use super::start::start;
use super::world::{Extra, World, name};

const P99_TARGET_MS: f64 = 10.0;

struct Fixture {
    world: World,
    guests: Guests,
    sizes: Sizes,
    vms: [String; 1],
}

/// Starts `repeats` agents one after the other and times the first patch of each.
pub(super) async fn run(bin_dir: &Path, block: u8, repeats: usize) -> Result<Vec<Figure>> {
    let (world, guests, sizes) = start(bin_dir, block, 1).await?;
    let fixture = Fixture {
        world,
        guests,
        sizes,
        vms: [name(0)],
    };
    let mut took = Vec::new();
    for number in 1..=repeats {
        tell(&format!("1 VM: fresh agent {number} of {repeats}"));
        took.push(fixture.first_patch().await?);
    }
    let figure = |percent, target| {
        let name = format!("fresh_metric_to_patch_ms_p{percent}@1");
        Figure::lower(name, percentile(&took, percent), "ms", target)
    };
    Ok(vec![
        figure(50, None),
        figure(99, Some(P99_TARGET_MS)).made_of(&took),
    ])
}

impl Fixture {
    /// Milliseconds from the first reading of a higher load to the patched object. The agent ends
    /// when the VM is small again.
    async fn first_patch(&self) -> Result<f64> {
        let agent = self.world.agent(&Extra::default())?;
        self.world.permitted(&agent, 1).await?;
        wait_for("an agent at the guest", PATIENCE, || async {
            let is_there = self.guests.attended() == 1;
            is_there.then_some(()).ok_or_else(|| "none".to_owned())
        })
        .await?;
        self.guests.set_load(0, TWO_UNITS, false);
        let is_up = |units| units == 2;
        let grown = self.sizes.until("first patch", &self.vms, PATIENCE, is_up);
        let seen = grown.await?;
        let read = self.guests.first_read(0).context("the load was not read")?;
        self.guests.set_load(0, IDLE, true);
        let is_down = |units| units == 1;
        let shrunk = self.sizes.until("shrink", &self.vms, PATIENCE, is_down);
        shrunk.await?;
        Ok(millis(seen, read))
    }
}
