//! How long the steps of a run take, and the bound this gives to the next wait for the same step.
//!
//! A step is a place in a test together with what is waited for there. The first wait for a step
//! has the bound that the test names. Every later wait in the same run, in whatever process, may
//! take [`FACTOR`] times the longest of the earlier ones. So a step that becomes slow fails, and a
//! machine that is slow as a whole does not.

use std::collections::BTreeMap;
use std::panic::Location;
use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Record;

/// How many times the longest earlier wait a wait may take.
pub const FACTOR: u32 = 20;

/// A wait may take this long whatever the earlier ones took. On a shared machine without KVM a
/// guest of a quarter of a CPU has been seen to take 85 s to answer.
pub const FLOOR: Duration = Duration::from_secs(60);

/// A step that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    /// The place in the test and what was waited for, without its digits.
    pub step: String,
    /// Milliseconds until it happened.
    pub millis: u64,
    /// Milliseconds it might have taken.
    pub bound_millis: u64,
}

/// The longest wait for each step in this process and, at its start, in the run's file.
static LONGEST: LazyLock<Mutex<BTreeMap<String, Duration>>> =
    LazyLock::new(|| Mutex::new(recorded()));

/// The name of a step. Two waits that differ only in numbers are for the same step.
#[must_use]
pub fn step(place: &Location<'_>, what: &str) -> String {
    let what: String = what.chars().filter(|it| !it.is_ascii_digit()).collect();
    format!("{}:{} {what}", place.file(), place.line())
}

/// How long a wait may take, and the longest earlier one if that decides.
///
/// `first` bounds the first wait for the step and all later ones.
#[must_use]
pub fn bound(step: &str, first: Duration) -> (Duration, Option<Duration>) {
    let longest = LONGEST.lock().unwrap_or_else(PoisonError::into_inner);
    scaled(longest.get(step).copied(), first)
}

fn scaled(longest: Option<Duration>, first: Duration) -> (Duration, Option<Duration>) {
    let Some(longest) = longest else {
        return (first, None);
    };
    let bound = (longest * FACTOR).max(FLOOR);
    if bound < first {
        (bound, Some(longest))
    } else {
        (first, None)
    }
}

/// Records a step that happened after it was waited for.
///
/// # Panics
/// When the run's file cannot be written.
pub fn happened(step: String, took: Duration, bound: Duration) {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    crate::record(&Record::Wait(Wait {
        step: step.clone(),
        millis: millis(took),
        bound_millis: millis(bound),
    }));
    let mut longest = LONGEST.lock().unwrap_or_else(PoisonError::into_inner);
    let known = longest.entry(step).or_default();
    *known = took.max(*known);
}

fn recorded() -> BTreeMap<String, Duration> {
    let file = std::env::var_os(crate::FILE);
    let text = file.and_then(|file| std::fs::read_to_string(Path::new(&file)).ok());
    longest_of(&text.unwrap_or_default())
}

/// The longest wait for each step in the text of a run's file. Other processes may be in the middle
/// of a line, which is left out.
fn longest_of(text: &str) -> BTreeMap<String, Duration> {
    let mut longest = BTreeMap::new();
    for line in text.lines() {
        if let Ok(Record::Wait(wait)) = serde_json::from_str(line) {
            let known: &mut Duration = longest.entry(wait.step).or_default();
            *known = Duration::from_millis(wait.millis).max(*known);
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_secs(240);

    #[test]
    fn first_wait_has_the_bound_that_the_test_names() {
        assert_eq!(scaled(None, FIRST), (FIRST, None));
    }

    #[test]
    fn later_wait_has_a_multiple_of_the_longest_one() {
        let earlier = Duration::from_secs(4);
        let bound = Duration::from_secs(80);
        assert_eq!(scaled(Some(earlier), FIRST), (bound, Some(earlier)));
        let earlier = Duration::from_millis(100);
        assert_eq!(scaled(Some(earlier), FIRST), (FLOOR, Some(earlier)));
    }

    #[test]
    fn no_wait_takes_longer_than_the_test_names() {
        let earlier = Duration::from_secs(13);
        assert_eq!(scaled(Some(earlier), FIRST), (FIRST, None));
        let short = Duration::from_secs(5);
        assert_eq!(scaled(Some(Duration::ZERO), short), (short, None));
    }

    #[test]
    fn numbers_do_not_make_another_step() {
        let place = Location::caller();
        assert_eq!(step(place, "pod pg-1 on 7"), step(place, "pod pg-23 on 8"));
        assert_ne!(step(place, "a pod"), step(place, "a node"));
    }

    #[test]
    fn longest_waits_are_read_from_the_file_of_a_run() {
        let line = |step: &str, millis| {
            let step = step.to_owned();
            let wait = Wait {
                step,
                millis,
                bound_millis: 1,
            };
            serde_json::to_string(&Record::Wait(wait)).expect("encodes")
        };
        let lines = [line("a", 7), line("a", 9), line("b", 1), line("a", 8)];
        let text = lines.join("\n") + "\n{\"record\":\"wait\",\"st";
        let longest = longest_of(&text);
        let millis = |step| longest.get(step).map(Duration::as_millis);
        assert_eq!([millis("a"), millis("b")], [Some(9), Some(1)]);
    }

    #[test]
    fn step_that_happened_bounds_the_next_wait_for_it() {
        let step = step(Location::caller(), "a step of this test");
        assert_eq!(bound(&step, FIRST), (FIRST, None));
        let took = Duration::from_secs(5);
        happened(step.clone(), took, FIRST);
        assert_eq!(bound(&step, FIRST), (took * FACTOR, Some(took)));
    }
}
