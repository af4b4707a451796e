//! Load averages of runnable tasks only, measured exactly.
//!
//! The kernel's own load average misleads an autoscaler in three ways, all seen on real guests:
//! * it counts uninterruptible sleep, and a shrink of memory makes a kernel worker sleep just so;
//! * it counts that worker while it runs, for seconds, and everything that waits for the CPU
//!   meanwhile, so that a shrink looks like load and is taken back;
//! * it looks at one instant each five seconds. In a guest whose CPU is a fraction of one,
//!   everything that waited through a pause of that CPU is runnable at the same instant, which is
//!   just when the kernel looks.
//!
//! So this average is made from how long tasks ran and waited to run, which the scheduler counts to
//! the nanosecond. While memory goes that is more than the load, never less: for so long, which is
//! bounded, the average may fall but not rise. Pressure on memory is watched all the same.

use std::collections::BTreeMap;

use protocol::time::{Span, Timestamp};
use protocol::units::Bytes;
use serde::Serialize;

/// Time between two readings.
pub const PERIOD: Span = Span::from_secs(2);

/// Time constants of the two averages, seconds: those of the kernel's load1 and load5.
const ONE_SECONDS: f64 = 60.0;
const FIVE_SECONDS: f64 = 300.0;

/// How long it must have been read before it is shown: a monitor that has just started in a busy
/// machine must not say that the machine is idle.
const WARM_UP_SECONDS: f64 = 60.0;
/// Memory that went this recently is still going.
const STILL_GOING: Span = Span::from_secs(5);
/// How long the averages may be kept from rising: a shrink that takes longer must not hide a load
/// for ever.
const HOLD_LIMIT: Span = Span::from_secs(120);

/// Scheduler counters and `MemTotal`, read once each [`PERIOD`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// For each CPU online: how long tasks have run or waited to run there since boot, nanoseconds.
    pub runnable_ns: BTreeMap<u32, u64>,
    /// The machine's `MemTotal`, where it could be read: it falls only while memory is taken away.
    pub total: Option<Bytes>,
}

/// An average that forgets, in which what was before the first reading does not weigh.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
struct Average {
    value: f64,
    /// From 0, nothing known, to 1.
    weight: f64,
}

impl Average {
    fn add(&mut self, tasks: f64, seconds: f64, constant: f64) {
        let kept = self.weight * (-seconds / constant).exp();
        let new = 1.0 - (-seconds / constant).exp();
        self.weight = kept + new;
        self.value = (self.value * kept + tasks * new) / self.weight;
    }
}

/// The averages so far.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct RunnableLoad {
    one: Average,
    five: Average,
    measured_s: f64,
    read_at: Option<Timestamp>,
    runnable_ns: BTreeMap<u32, u64>,
    total: Option<Bytes>,
    fell_at: Option<Timestamp>,
    held_since: Option<Timestamp>,
}

impl RunnableLoad {
    /// Takes in a reading made at `now`. The first only starts the clock; so does the first of a
    /// CPU that came.
    pub fn observe(&mut self, now: Timestamp, reading: Reading) {
        let is_held = self.is_held(now, reading.total);
        let before = std::mem::replace(&mut self.runnable_ns, reading.runnable_ns);
        let seconds = self
            .read_at
            .replace(now)
            .map_or(0.0, |at| now.since(at).to_duration().as_secs_f64());
        if seconds <= 0.0 {
            return;
        }
        let more = |(cpu, ns): (&u32, &u64)| before.get(cpu).map(|old| ns.saturating_sub(*old));
        let runnable: u64 = self.runnable_ns.iter().filter_map(more).sum();
        let tasks = runnable as f64 / 1e9 / seconds;
        for (average, constant) in [(&mut self.one, ONE_SECONDS), (&mut self.five, FIVE_SECONDS)] {
            let most = if is_held {
                average.value
            } else {
                f64::INFINITY
            };
            average.add(tasks.min(most), seconds, constant);
        }
        self.measured_s += seconds;
    }

    fn is_held(&mut self, now: Timestamp, total: Option<Bytes>) -> bool {
        if let Some(total) = total
            && self
                .total
                .replace(total)
                .is_some_and(|before| total < before)
        {
            self.fell_at = Some(now);
        }
        if self.fell_at.is_none_or(|at| now.since(at) >= STILL_GOING) {
            self.held_since = None;
            return false;
        }
        now.since(*self.held_since.get_or_insert(now)) < HOLD_LIMIT
    }

    /// Over one and over five minutes, tasks; none before [`WARM_UP_SECONDS`].
    #[must_use]
    pub fn averages(&self) -> Option<(f64, f64)> {
        (self.measured_s >= WARM_UP_SECONDS).then_some((self.one.value, self.five.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A machine with one CPU that is read once a second.
    #[derive(Default)]
    struct Machine {
        load: RunnableLoad,
        now: Timestamp,
        runnable_ns: u64,
    }

    impl Machine {
        fn second(&mut self, tasks: u32, total: u64) {
            self.now = self.now + Span::from_secs(1);
            self.runnable_ns += u64::from(tasks) * 1_000_000_000;
            let reading = Reading {
                runnable_ns: BTreeMap::from([(0, self.runnable_ns)]),
                total: Some(Bytes::mib(total)),
            };
            self.load.observe(self.now, reading);
        }
    }

    fn after(seconds: impl IntoIterator<Item = u32>) -> Option<(f64, f64)> {
        let mut machine = Machine::default();
        machine.second(0, 1);
        seconds
            .into_iter()
            .for_each(|tasks| machine.second(tasks, 1));
        machine.load.averages()
    }

    fn near(got: Option<(f64, f64)>, one: f64, five: f64) {
        let (got_one, got_five) = got.expect("averages");
        assert!((got_one - one).abs() < 1e-6, "{got_one} {one}");
        assert!((got_five - five).abs() < 1e-6, "{got_five} {five}");
    }

    #[test]
    fn a_steady_load_is_shown_as_it_is_from_the_first_minute_on() {
        assert_eq!(after([3; 59]), None);
        near(after([3; 60]), 3.0, 3.0);
        near(after([3; 900]), 3.0, 3.0);
    }

    #[test]
    fn it_decays_with_its_time_constant() {
        let seconds = std::iter::repeat_n(4, 6000).chain(std::iter::repeat_n(0, 60));
        near(
            after(seconds),
            4.0 * (-1.0_f64).exp(),
            4.0 * (-0.2_f64).exp(),
        );
    }

    #[test]
    fn a_shrink_is_no_load() {
        let mut machine = Machine::default();
        (0..=600).for_each(|_| machine.second(1, 8_000));
        for second in 1..=60 {
            machine.second(3, 8_000 - 10 * second);
        }
        near(machine.load.averages(), 1.0, 1.0);
        (0..60).for_each(|_| machine.second(2, 7_400));
        let (one, _) = machine.load.averages().expect("averages");
        assert!((1.55..1.65).contains(&one), "and rises after it: {one}");
    }

    #[test]
    fn a_load_that_ends_is_seen_to_end_in_a_shrink() {
        let mut machine = Machine::default();
        (0..=600).for_each(|_| machine.second(5, 8_000));
        (1..=60).for_each(|second| machine.second(1, 8_000 - 10 * second));
        let (one, _) = machine.load.averages().expect("averages");
        assert!((2.4..2.5).contains(&one), "{one}");
    }

    #[test]
    fn a_shrink_without_end_hides_no_load_for_ever() {
        let mut machine = Machine::default();
        (0..=300).for_each(|_| machine.second(0, 8_000));
        (1..=1000).for_each(|second| machine.second(3, 8_000 - second));
        let (one, _) = machine.load.averages().expect("averages");
        assert!(one > 2.9, "{one}");
    }

    #[test]
    fn load_is_hidden_for_two_minutes_at_most() {
        let mut machine = Machine::default();
        (0..=300).for_each(|_| machine.second(0, 8_000));
        (1..=120).for_each(|second| machine.second(3, 8_000 - second));
        near(machine.load.averages(), 0.0, 0.0);
        machine.second(3, 8_000 - 121);
        let (one, _) = machine.load.averages().expect("averages");
        assert!(one > 0.01, "{one}");
    }

    #[test]
    fn memory_that_comes_stops_nothing() {
        let mut machine = Machine::default();
        (0..=60).for_each(|second| machine.second(2, 1_000 + second));
        near(machine.load.averages(), 2.0, 2.0);
    }

    #[test]
    fn cpus_come_and_go() {
        let mut load = RunnableLoad::default();
        let second = Span::from_secs(1);
        let mut now = Timestamp(0);
        let mut read = |runnable_ns: &[(u32, u64)], load: &mut RunnableLoad| {
            now = now + second;
            let runnable_ns = runnable_ns.iter().copied().collect();
            load.observe(
                now,
                Reading {
                    runnable_ns,
                    total: None,
                },
            );
        };
        read(&[(0, 5_000_000_000)], &mut load);
        // One that comes brings what it counted before it last went; that is not of now.
        read(&[(0, 5_000_000_000), (1, 900_000_000_000)], &mut load);
        read(&[(1, 900_000_000_000)], &mut load);
        // A counter that starts again counts nothing once.
        read(&[(1, 7)], &mut load);
        assert!(load.one.value.abs() < 1e-12, "{load:?}");
        read(&[(1, 1_000_000_007)], &mut load);
        assert!(load.one.value > 0.01, "{load:?}");
    }

    proptest! {
        #[test]
        fn it_stays_between_the_least_and_the_most(seconds in prop::collection::vec(0_u32..1000, 61..300)) {
            let most = f64::from(seconds.iter().copied().max().unwrap_or(0)) + 1e-6;
            let (one, five) = after(seconds).expect("averages");
            prop_assert!((0.0..=most).contains(&one));
            prop_assert!((0.0..=most).contains(&five));
        }
    }
}
