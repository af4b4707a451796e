//! Ends of `bellows up` by signal 9, at random points that a seed repeats.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::demo::site::Site;

/// Kills that are left.
pub(super) struct Kills {
    pub(super) left: u32,
    state: u64,
    next: Instant,
}

impl Kills {
    pub(super) fn new(seed: u64, count: u32) -> Self {
        let mut kills = Self {
            left: count,
            // The generator stays at zero.
            state: seed.max(1),
            next: Instant::now(),
        };
        kills.wait();
        kills
    }

    /// Ends `bellows up` and starts it again, if a kill is due. Returns whether it did.
    pub(super) fn maybe(&mut self, site: &mut Site) -> Result<bool> {
        if self.left == 0 || Instant::now() < self.next {
            return Ok(false);
        }
        self.left -= 1;
        site.kill()?;
        std::thread::park_timeout(Duration::from_millis(self.below(3000)));
        site.start()?;
        self.wait();
        Ok(true)
    }

    fn wait(&mut self) {
        let pause = 2000 + self.below(10_000);
        self.next = Instant::now() + Duration::from_millis(pause);
    }

    /// A number below a bound, by a xorshift generator.
    fn below(&mut self, bound: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_repeats_its_points_and_another_has_others() {
        let points = |seed| {
            let mut kills = Kills::new(seed, 3);
            [0; 8].map(|_: u8| kills.below(1000))
        };
        assert_eq!(points(7), points(7));
        assert_ne!(points(7), points(8));
    }
}
