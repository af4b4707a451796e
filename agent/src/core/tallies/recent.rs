//! Figures of the last minutes.

use std::collections::VecDeque;

use protocol::policy::Fault;
use protocol::time::{Span, Timestamp};

const MINUTE: Span = Span::from_secs(60);
/// Minutes that count as recent.
const MINUTES: u64 = 10;

/// Calls within ten minutes, by minute.
#[derive(Debug, Default)]
pub(super) struct Recent(VecDeque<(u64, Sum)>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sum {
    pub calls: u64,
    pub faulty: u64,
    /// Ends of the worker while the version was asked.
    pub deaths: u32,
}

impl Recent {
    pub(super) fn call(&mut self, now: Timestamp, fault: Option<Fault>) {
        let minute = now.0 / MINUTE.0;
        self.forget(minute);
        if self.0.back().is_none_or(|(last, _)| *last != minute) {
            self.0.push_back((minute, Sum::default()));
        }
        if let Some((_, sum)) = self.0.back_mut() {
            sum.calls += 1;
            sum.faulty += u64::from(fault.is_some());
            let is_death = matches!(fault, Some(Fault::Late | Fault::WorkerDied));
            sum.deaths += u32::from(is_death);
        }
    }

    pub(super) fn sum(&mut self, now: Timestamp) -> Sum {
        self.forget(now.0 / MINUTE.0);
        self.0.iter().fold(Sum::default(), |all, (_, one)| Sum {
            calls: all.calls + one.calls,
            faulty: all.faulty + one.faulty,
            deaths: all.deaths + one.deaths,
        })
    }

    fn forget(&mut self, minute: u64) {
        let is_old = |(of, _): &(u64, Sum)| of + MINUTES <= minute;
        while self.0.front().is_some_and(is_old) {
            self.0.pop_front();
        }
    }
}

/// Smallest value of a number during the last minute.
#[derive(Debug, Default)]
pub(super) struct Fewest(VecDeque<(Timestamp, u32)>);

impl Fewest {
    pub(super) fn set(&mut self, now: Timestamp, value: u32) {
        self.forget(now);
        if self.0.back().is_none_or(|(_, last)| *last != value) {
            self.0.push_back((now, value));
        }
    }

    /// 0 while the number is known for less than a minute.
    pub(super) fn of_minute(&mut self, now: Timestamp) -> u32 {
        self.forget(now);
        let first = self.0.front().filter(|(at, _)| now.since(*at) >= MINUTE);
        let least = self.0.iter().map(|(_, value)| *value).min();
        first.and(least).unwrap_or_default()
    }

    /// Keeps the value at the begin of the minute, and those that followed.
    fn forget(&mut self, now: Timestamp) {
        while self
            .0
            .get(1)
            .is_some_and(|(at, _)| now.since(*at) >= MINUTE)
        {
            self.0.pop_front();
        }
    }
}
