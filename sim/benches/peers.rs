//! Machines without a cluster on a virtual clock: until all know of one that joins, until all know
//! that the leader died, and until the next leader plans.
//!
//! Prints a JSON object of seconds. `cargo xtask bench policy` shows them with their targets.

use protocol::time::Span;
use serde_json::{Map, Value};
use sim::peers::{Measured, Options, death, join};

const MACHINES: usize = 16;
/// Chance that a message is lost, in a million.
const LOSS: u32 = 50_000;
const SEEDS: u64 = 300;

#[expect(clippy::print_stdout, reason = "the figures are its output")]
fn main() {
    let joined = all("join", join);
    let died = all("death", death);
    let figures: Map<String, Value> = [
        ("peers_16_join_known", p99(&joined, |run| run.known)),
        ("peers_16_death_known", p99(&died, |run| run.known)),
        ("peers_16_next_plan", p99(&died, |run| run.planned)),
    ]
    .into_iter()
    .map(|(name, seconds)| (format!("{name}_s_p99"), seconds.into()))
    .collect();
    println!("{}", Value::Object(figures));
}

/// Runs all seeds. One that does not hold ends the program.
fn all(what: &str, run: fn(Options) -> Result<Measured, String>) -> Vec<Measured> {
    let one = |seed| {
        let options = Options {
            seed,
            machines: MACHINES,
            loss: LOSS,
            sabotage: None,
        };
        match run(options) {
            Ok(measured) => measured,
            Err(error) => panic!("{what}, seed {seed}: {error}"),
        }
    };
    (1..=SEEDS).map(one).collect()
}

/// The time that 99 of 100 runs do not exceed, seconds.
fn p99(runs: &[Measured], time: fn(&Measured) -> Span) -> f64 {
    let mut times: Vec<Span> = runs.iter().map(time).collect();
    times.sort();
    times[(times.len() * 99).div_ceil(100) - 1].as_secs_f64()
}
