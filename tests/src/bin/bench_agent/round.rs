//! One agent with a number of VMs, and what is measured of it.

use std::time::Duration;

use super::follow::Sizes;
use super::guests::Guests;
use super::world::Agent;

/// One round with a number of VMs.
pub(super) struct Round {
    pub vms: Vec<String>,
    pub guests: Guests,
    pub sizes: Sizes,
    pub agent: Agent,
    /// VMs that are measured one by one: the first ones.
    pub samples: usize,
    /// Time over which an idle agent is measured.
    pub window: Duration,
}
