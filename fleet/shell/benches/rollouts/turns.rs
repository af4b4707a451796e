//! Many rollouts of a small fleet: from each start to the first try of a guest, and from each stop
//! to the last one.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::driver::Driver;
use crate::objects::Fleet;

const GUESTS: usize = 200;
const ROLLOUTS: u32 = 15;
/// Tries after which a rollout is stopped: half of those that may run at once.
const TRIES: usize = 10;
/// Between two looks at the fleet.
const LOOK: Duration = Duration::from_millis(5);
/// Longest wait. A stopped rollout lets trials of 20 s end.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) async fn figures() -> Map<String, Value> {
    let fleet = Fleet::start(GUESTS).await;
    let _driver = Driver::start(&fleet.api, fleet.path());
    let (mut starts, mut stops) = (Vec::new(), Vec::new());
    for number in 1..=ROLLOUTS {
        // Starts fall anywhere between two looks of the driver.
        tokio::time::sleep(Duration::from_millis((u64::from(number) * 137) % 1_000)).await;
        let (deployment, begun) = fleet.deploy(number.into());
        until("tries", || fleet.tries.since(begun) >= TRIES).await;
        let stopped = Instant::now();
        fleet.stop(&deployment);
        until("the end", || fleet.ended(&deployment).is_some()).await;
        starts.extend(fleet.tries.first_since(begun));
        stops.push(fleet.tries.last_since(stopped).unwrap_or_default());
    }
    let mut figures = Map::new();
    for (name, mut times) in [("start_to_try_s", starts), ("stop_to_last_try_s", stops)] {
        times.sort();
        let at = |rank: usize| json!(times[rank].as_secs_f64());
        figures.insert(format!("{name}_p50"), at(times.len() / 2));
        figures.insert(name.to_owned(), at(times.len() - 1));
    }
    figures
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what} never came");
        tokio::time::sleep(LOOK).await;
    }
}
