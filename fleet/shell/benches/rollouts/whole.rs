//! A whole rollout: from its start to its end, and the writes and the memory that it takes.

use std::time::Duration;

use serde_json::{Map, Value, json};
use test_api::TestApi;

use crate::driver::Driver;
use crate::objects::Fleet;

/// Time after which a rollout counts as stuck.
const PATIENCE: Duration = Duration::from_secs(3_600);
/// Time in which nothing is to be written.
const IDLE: Duration = Duration::from_secs(70);
/// Time in which the driver has seen all guests.
const SETTLE: Duration = Duration::from_secs(35);

fn writes(api: &TestApi) -> usize {
    let of = |verb| api.count(verb, |_| true);
    of("PUT ") + of("PATCH ") + of("POST ")
}

pub(crate) async fn figures(guests: usize) -> Map<String, Value> {
    let fleet = Fleet::start(guests).await;
    let driver = Driver::start(&fleet.api, fleet.path());
    tokio::time::sleep(SETTLE).await;
    let before = writes(&fleet.api);
    let (deployment, begun) = fleet.deploy(1);
    let ended = loop {
        if let Some(status) = fleet.ended(&deployment) {
            break status;
        }
        assert!(begun.elapsed() < PATIENCE, "the rollout is stuck");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let took = begun.elapsed();
    assert_eq!(ended["state"], "Complete", "{ended}");
    // The lock is given back, and an event tells people of the end.
    tokio::time::sleep(SETTLE).await;
    let of_rollout = writes(&fleet.api) - before;
    tokio::time::sleep(IDLE).await;
    let idle = writes(&fleet.api) - before - of_rollout;
    let first = fleet
        .tries
        .first_since(begun)
        .expect("guests were upgraded");
    let count = |number: usize| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
    [
        ("rollout_s", took.as_secs_f64()),
        ("writes_per_guest", count(of_rollout) / count(guests)),
        ("idle_writes", count(idle)),
        ("resident_peak_mib", driver.peak_mib()),
        ("start_to_try_all_s", first.as_secs_f64()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), json!(value)))
    .collect()
}
