//! List, watch, and list again: how every program of ours follows objects of the API.
//!
//! A stream never ends by itself. It passes on every failure, then pauses and takes the watch up
//! again. Objects that a new list lacks get no event of their own.

mod metrics;

use std::fmt::Debug;
use std::time::Duration;

use backon::ExponentialBuilder;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{DefaultBackoff, ExponentialBackoff, watch_object, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

pub use kube::runtime::watcher::{Config, Error, Event};
pub use metrics::{EventTypes, WatchMetrics};

/// Objects in one page of a list. A page bounds the memory of a program that drops most objects.
const PAGE: u32 = 500;

/// Events of all objects of a watch.
pub type Events<K> = BoxStream<'static, Result<Event<K>, Error>>;
/// States of one object; `None` while it does not exist.
pub type States<K> = BoxStream<'static, Result<Option<K>, Error>>;

/// Pauses after failures. A success in between starts them again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Always 0.5 to 1 s, for many clients of which each must soon see a change.
    Steady,
    /// 50 ms, doubled up to 5 s, for the only client of its kind.
    Quick,
    /// 0.8 s, doubled up to 30 s and jittered, as client-go does.
    Patient,
}

impl Retry {
    /// Pauses without an end.
    #[must_use]
    pub fn pauses(self) -> Box<dyn Backoff> {
        let endless = ExponentialBuilder::new().without_max_times();
        let millis = Duration::from_millis;
        match self {
            Self::Steady => {
                let same = endless.with_min_delay(millis(500)).with_factor(1.0);
                let steady = same.with_max_delay(millis(500)).with_jitter();
                Box::new(ExponentialBackoff::from(steady))
            }
            Self::Quick => {
                let quick = endless.with_min_delay(millis(50)).with_factor(2.0);
                Box::new(ExponentialBackoff::from(
                    quick.with_max_delay(millis(5_000)),
                ))
            }
            Self::Patient => Box::new(DefaultBackoff::default()),
        }
    }
}

/// Lists and watches the objects that `config` selects.
pub fn objects<K>(api: Api<K>, config: Config, retry: Retry) -> Events<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watcher(api, config.page_size(PAGE))
        .backoff(retry.pauses())
        .boxed()
}

/// Watches the object of this name. `api` is of one namespace, or its objects have none.
pub fn object<K>(api: Api<K>, name: &str, retry: Retry) -> States<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watch_object(api, name).backoff(retry.pauses()).boxed()
}

/// The step that failed, as the label `source` of metrics.
#[must_use]
pub const fn source(error: &Error) -> &'static str {
    match error {
        Error::InitialListFailed(_) | Error::NoResourceVersion => "List",
        Error::WatchStartFailed(_) => "Watch",
        Error::WatchError(_) | Error::WatchFailed(_) => "Watch.Event",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_stay_in_their_range_and_have_no_end() {
        let within = |retry: Retry, nth: usize, from_ms: u128, to_ms: u128| {
            let pause = retry.pauses().nth(nth).expect("a pause");
            // Doubled as a float, so it may be a nanosecond off.
            let pause_ms = (pause + Duration::from_micros(500)).as_millis();
            let range = from_ms..=to_ms;
            assert!(range.contains(&pause_ms), "{retry:?} {nth}: {pause:?}");
        };
        for nth in [0, 1, 1_000] {
            within(Retry::Steady, nth, 500, 1_000);
        }
        for (nth, ms) in [(0, 50), (1, 100), (2, 200), (1_000, 5_000)] {
            within(Retry::Quick, nth, ms, ms);
        }
        within(Retry::Patient, 0, 800, 1_600);
        within(Retry::Patient, 1_000, 30_000, 60_000);
    }
}
