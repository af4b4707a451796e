//! The only source of chance: one seed, several streams, so that more faults do not change the
//! loads.

use protocol::time::Span;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A million: the denominator of every chance.
pub const MILLION: u32 = 1_000_000;

/// What a stream of chance is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// How the world is built.
    World,
    /// What the guests do.
    Load,
    /// How long things take, and which of them go wrong.
    Fault,
    /// How the VMs are to be scaled.
    Settings,
}

/// A seeded stream of chance.
#[derive(Debug, Clone)]
pub struct Dice(ChaCha8Rng);

impl Dice {
    /// The stream of a seed. The same pair always gives the same numbers.
    #[must_use]
    pub fn new(seed: u64, stream: Stream) -> Self {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(match stream {
            Stream::World => 1,
            Stream::Load => 2,
            Stream::Fault => 3,
            Stream::Settings => 4,
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

    /// A place in a list of `len` things.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// Whether something of this many in a million happens.
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
