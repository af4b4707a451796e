//! The only source of chance. One seed has several streams, so that more faults leave the loads as
//! they are.

use protocol::time::Span;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A million: the denominator of every chance.
pub const MILLION: u32 = 1_000_000;

/// Use of a stream of random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Shape of the world: nodes, VMs and bounds.
    World,
    /// Loads of the guests.
    Load,
    /// Delays, losses and the choice of faults.
    Fault,
    /// Scaling settings of the VMs.
    Settings,
    /// Answers of policies.
    Policy,
}

/// A seeded stream of random numbers.
#[derive(Debug, Clone)]
pub struct Rng(ChaCha8Rng);

impl Rng {
    /// The stream of a seed. The same pair gives the same numbers on every machine.
    #[must_use]
    pub fn new(seed: u64, stream: Stream) -> Self {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(match stream {
            Stream::World => 1,
            Stream::Load => 2,
            Stream::Fault => 3,
            Stream::Settings => 4,
            Stream::Policy => 5,
        });
        Self(generator)
    }

    /// From 0 to `n` - 1; 0 for an `n` of 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // The bias of a remainder is far below anything a simulation could notice.
        self.0.next_u64().checked_rem(n).unwrap_or(0)
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// Index into a list of `len` entries. 0 for an empty list.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// True with a chance of `ppm` in a million.
    pub fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(MILLION.into()) < u64::from(ppm)
    }

    /// A time from `low` to `high`.
    pub fn span(&mut self, low: Span, high: Span) -> Span {
        Span(self.between(low.0, high.0))
    }

    /// A time in milliseconds.
    pub fn millis(&mut self, low: u64, high: u64) -> Span {
        self.span(Span::from_millis(low), Span::from_millis(high))
    }
}
