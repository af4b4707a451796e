//! Runs the seeds of the fuzzer as tests. A crate of its own, so that the crates with fuzz targets
//! need no other test code.

#![forbid(unsafe_code)]
#![expect(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "for tests: a panic is a finding"
)]

use std::path::PathBuf;

/// Fewest seeds of a target.
const FEWEST: usize = 3;

/// A body, under the name of its target.
pub type Body<'a> = (&'a str, fn(&[u8]));

/// Runs each body on all seeds of its target. They include every input that the fuzzer once found.
pub fn hold(bodies: &[Body<'_>]) {
    for (name, body) in bodies {
        let seeds = std::fs::read_dir(folder().join(name)).expect(name);
        let seeds: Vec<_> = seeds.map(|entry| entry.expect(name).path()).collect();
        assert!(seeds.len() >= FEWEST, "{name} has {} seeds", seeds.len());
        for seed in seeds {
            body(&std::fs::read(&seed).expect(name));
        }
    }
}

/// Of the checkout that tests run in: they may have been compiled in another one.
fn folder() -> PathBuf {
    let here = std::env::current_dir().expect("a working directory");
    let mut folders = here.ancestors().map(|dir| dir.join("fuzz/seeds"));
    folders
        .find(|dir| dir.is_dir())
        .expect("seeds of the fuzzer, above the working directory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a seed that does not hold")]
    fn seed_that_does_not_hold_is_a_failure() {
        hold(&[("agent_frame", |_| panic!("a seed that does not hold"))]);
    }
}
