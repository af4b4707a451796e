//! VMs without load, before any agent.

use std::path::Path;

use anyhow::Result;

use super::follow::Sizes;
use super::guests::Guests;
use super::measure::IDLE;
use super::world::World;

/// Starts the guests and the control plane of `count` VMs, and follows their sizes.
pub(super) async fn start(
    bin_dir: &Path,
    block: u8,
    count: usize,
) -> Result<(World, Guests, Sizes)> {
    let guests = Guests::start(block, count).await?;
    (0..count).for_each(|n| guests.set_load(n, IDLE, true));
    let world = World::start(bin_dir, block).await?;
    world.populate(count).await?;
    let sizes = Sizes::default();
    sizes.follow(world.vms());
    Ok((world, guests, sizes))
}
