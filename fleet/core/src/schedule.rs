//! Renderings of windows for updaters that are not the engine.
//!
//! * `systemd-timer`: lines for `OnCalendar=`, one attempt each 20 minutes of an opening.
//! * `kube-controller`: the next openings as JSON.
//!
//! Lines name weekdays, so blackouts and windows of a guest are in [`coming_week`] alone: it leaves
//! out what does not open within a week.

use std::collections::BTreeMap;

use protocol::fleet::{Day, Window};
use protocol::time::WallTime;
use serde_json::json;

use crate::windows::{Calendar, HORIZON_DAYS, next_of};

/// Between two attempts in an opening, minutes.
const EVERY_MINUTES: usize = 20;
/// A week, and the rest of a window that began before it.
const DAYS_LOOKED_AT: i64 = 9;
/// Openings of the second rendering.
const OPENINGS: usize = 8;

/// Lines for `OnCalendar=`. Without windows an attempt follows each 20 minutes of every day.
#[must_use]
pub fn systemd_timer(windows: &[Window]) -> Vec<String> {
    if windows.is_empty() {
        return vec!["*-*-* *:00/20:00 UTC".to_owned()];
    }
    let of = |window: &Window| lines(&window.days, &attempts(window), &window.time_zone);
    windows.iter().flat_map(of).collect()
}

/// What decides about the schedule of an updater.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// Windows and blackouts of the environment, with the windows of the guest.
    pub calendar: Calendar<'a>,
    /// Whether the version waits for no window.
    pub is_critical: bool,
    /// Whether the guest has to wait, whatever opens.
    pub is_held: bool,
}

/// The schedule of an updater: lines as [`systemd_timer`] has them.
#[must_use]
pub fn of_updater(inputs: &Inputs<'_>, now: WallTime) -> String {
    let lines = if inputs.is_held {
        vec![far_away(now)]
    } else if inputs.is_critical {
        systemd_timer(&[])
    } else {
        coming_week(&inputs.calendar, now)
    };
    lines.join("\n")
}

/// Lines with the attempts of the coming week that are in an opening. A week without one has a
/// line whose next time is further away than a day: without lines an updater would have no window
/// at all, and try at any time.
#[must_use]
pub fn coming_week(calendar: &Calendar<'_>, now: WallTime) -> Vec<String> {
    if calendar.blackouts.is_empty() && calendar.narrowed.is_empty() {
        return systemd_timer(calendar.windows);
    }
    let every_day = [Window {
        days: Day::ALL.to_vec(),
        start: "00:00".to_owned(),
        minutes: 1440,
        time_zone: "UTC".to_owned(),
    }];
    let windows = match (calendar.windows, calendar.narrowed) {
        ([], []) => &every_day[..],
        ([], narrowed) => narrowed,
        (windows, _) => windows,
    };
    let openings = calendar.openings(now, DAYS_LOOKED_AT);
    let is_open = |at: WallTime| openings.iter().any(|one| one.start <= at && at < one.end);
    let lines: Vec<String> = windows
        .iter()
        .flat_map(|window| open_lines(window, now, &is_open))
        .collect();
    if lines.is_empty() {
        vec![far_away(now)]
    } else {
        lines
    }
}

/// Lines of a window with those attempts that are open. Days with the same ones share lines.
fn open_lines(window: &Window, now: WallTime, is_open: &dyn Fn(WallTime) -> bool) -> Vec<String> {
    let mut days: BTreeMap<Vec<u32>, Vec<Day>> = BTreeMap::new();
    for day in &window.days {
        let open = |at: &u32| next_of(window, *day, *at, now).is_some_and(is_open);
        let attempts: Vec<u32> = attempts(window).into_iter().filter(open).collect();
        days.entry(attempts).or_default().push(*day);
    }
    let lines = |(attempts, days): (Vec<u32>, Vec<Day>)| lines(&days, &attempts, &window.time_zone);
    days.into_iter().flat_map(lines).collect()
}

/// One attempt on the weekday before today's, which is six days away at least.
fn far_away(now: WallTime) -> String {
    // The epoch was a Thursday.
    let today = now.0.div_euclid(86_400_000_000) + 3;
    let yesterday = usize::try_from((today - 1).rem_euclid(7)).unwrap_or(0);
    format!("{:?} *-*-* 00:00:00 UTC", Day::ALL[yesterday])
}

/// Minutes of a window's attempts, from the midnight before it opens.
fn attempts(window: &Window) -> Vec<u32> {
    let Some((hour, minute)) = window.start() else {
        return Vec::new();
    };
    let start = u32::from(hour) * 60 + u32::from(minute);
    (start..start + window.minutes)
        .step_by(EVERY_MINUTES)
        .collect()
}

/// Hours with the same days and minutes share a line.
fn lines(opening: &[Day], attempts: &[u32], time_zone: &str) -> Vec<String> {
    // Day after the opening, and hour, to its minutes.
    let mut hours: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
    for at in attempts {
        let minutes = hours.entry((at / 1440, at % 1440 / 60)).or_default();
        minutes.push(at % 60);
    }
    let mut shared: BTreeMap<(u32, Vec<u32>), Vec<u32>> = BTreeMap::new();
    for ((day, hour), minutes) in hours {
        shared.entry((day, minutes)).or_default().push(hour);
    }
    let line = |((day, minutes), hours): ((u32, Vec<u32>), Vec<u32>)| {
        let days = days(opening, day);
        let minutes = match minutes[..] {
            [0, 20, 40] => "00/20".to_owned(),
            _ => numbers(&minutes),
        };
        let hours = numbers(&hours);
        format!("{days} *-*-* {hours}:{minutes}:00 {time_zone}")
    };
    shared.into_iter().map(line).collect()
}

fn numbers(numbers: &[u32]) -> String {
    let texts: Vec<String> = numbers
        .iter()
        .map(|number| format!("{number:02}"))
        .collect();
    texts.join(",")
}

fn days(days: &[Day], later: u32) -> String {
    let count = Day::ALL.len();
    let moved = Day::ALL.iter().enumerate().filter(|(index, _)| {
        let opening = (index + count - usize::try_from(later).unwrap_or(0) % count) % count;
        days.contains(&Day::ALL[opening])
    });
    let texts: Vec<String> = moved.map(|(_, day)| format!("{day:?}")).collect();
    texts.join(",")
}

/// The next openings, as JSON. A reader ignores them while the channel says critical.
#[must_use]
pub fn kube_controller(calendar: &Calendar<'_>, now: WallTime) -> String {
    let openings = calendar
        .openings(now, HORIZON_DAYS)
        .into_iter()
        .take(OPENINGS);
    let openings: Vec<serde_json::Value> = openings
        .map(|one| json!({"start": one.start, "end": one.end}))
        .collect();
    json!({"version": 1, "openings": openings, "critical": "ignore-window"}).to_string()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use protocol::fleet::Blackout;

    use super::*;

    fn window(days: &[Day], start: &str, minutes: u32, zone: &str) -> Window {
        Window {
            days: days.to_vec(),
            start: start.to_owned(),
            minutes,
            time_zone: zone.to_owned(),
        }
    }

    /// Requirement: R19
    #[test]
    fn timer_lines_are_as_written() {
        let rows = [
            (
                window(&[Day::Sat, Day::Sun], "02:00", 120, "Europe/Berlin"),
                vec!["Sat,Sun *-*-* 02,03:00/20:00 Europe/Berlin"],
            ),
            (
                window(&[Day::Mon], "02:30", 60, "UTC"),
                vec!["Mon *-*-* 03:10:00 UTC", "Mon *-*-* 02:30,50:00 UTC"],
            ),
            (
                window(&[Day::Sun], "23:00", 120, "UTC"),
                vec!["Sun *-*-* 23:00/20:00 UTC", "Mon *-*-* 00:00/20:00 UTC"],
            ),
        ];
        for (window, expected) in rows {
            assert_eq!(
                systemd_timer(std::slice::from_ref(&window)),
                expected,
                "{window:?}"
            );
        }
        assert_eq!(systemd_timer(&[]), ["*-*-* *:00/20:00 UTC"]);
    }

    fn at(text: &str) -> WallTime {
        WallTime::parse(text).expect("a time")
    }

    /// Requirement: R19
    #[test]
    fn week_has_the_attempts_that_blackouts_and_the_guest_leave() {
        let windows = [window(&[Day::Sat, Day::Sun], "02:00", 120, "Europe/Berlin")];
        // Saturday, 3 January 2026.
        let blackouts = [Blackout {
            from: at("2026-01-02T12:00:00Z"),
            to: at("2026-01-03T12:00:00Z"),
            reason: String::new(),
        }];
        let long = [Blackout {
            to: at("2026-02-01T00:00:00Z"),
            ..blackouts[0].clone()
        }];
        let narrowed = [window(&[Day::Sun], "02:30", 120, "UTC")];
        let now = at("2026-01-01T00:00:00Z");
        let week = |windows: &[Window], blackouts: &[Blackout], narrowed: &[Window]| {
            let calendar = Calendar {
                windows,
                blackouts,
                narrowed,
            };
            coming_week(&calendar, now)
        };
        let whole = "Sat,Sun *-*-* 02,03:00/20:00 Europe/Berlin";
        assert_eq!(week(&windows, &[], &[]), [whole]);
        let sunday = "Sun *-*-* 02,03:00/20:00 Europe/Berlin";
        assert_eq!(week(&windows, &blackouts, &[]), [sunday]);
        // 02:30 UTC is 03:30 in Berlin.
        let last = "Sun *-*-* 03:40:00 Europe/Berlin";
        assert_eq!(week(&windows, &[], &narrowed), [last]);
        let own = ["Sun *-*-* 02:30,50:00 UTC", "Sun *-*-* 04:10:00 UTC"];
        let week_of_own = week(&[], &[], &narrowed);
        assert!(
            week_of_own.iter().any(|line| line == own[0]),
            "{week_of_own:?}"
        );
        let never = week(&windows, &long, &[]);
        assert_eq!(never.len(), 1);
        assert_eq!(week(&[], &[], &[]), ["*-*-* *:00/20:00 UTC"]);
    }

    /// The next time of the line is six days away at least, so a monitor that asks each six hours
    /// has a later one before.
    ///
    /// Requirement: R19
    #[test]
    fn guest_that_has_to_wait_has_a_line_that_is_days_away() {
        let held = |now: &str| {
            let calendar = Calendar {
                windows: &[],
                blackouts: &[],
                narrowed: &[],
            };
            let inputs = Inputs {
                calendar,
                is_critical: true,
                is_held: true,
            };
            of_updater(&inputs, at(now))
        };
        // A Thursday, a Sunday and a Monday.
        assert_eq!(held("2026-01-01T23:59:00Z"), "Wed *-*-* 00:00:00 UTC");
        assert_eq!(held("2026-01-04T00:00:00Z"), "Sat *-*-* 00:00:00 UTC");
        assert_eq!(held("2026-01-05T12:00:00Z"), "Sun *-*-* 00:00:00 UTC");
    }

    /// Requirement: R14, R19
    #[test]
    fn critical_version_has_an_attempt_each_twenty_minutes() {
        let windows = [window(&[Day::Sat], "02:00", 60, "UTC")];
        let of = |is_critical| {
            let calendar = Calendar {
                windows: &windows,
                blackouts: &[],
                narrowed: &[],
            };
            let inputs = Inputs {
                calendar,
                is_critical,
                is_held: false,
            };
            of_updater(&inputs, at("2026-01-01T00:00:00Z"))
        };
        assert_eq!(of(false), "Sat *-*-* 02:00/20:00 UTC");
        assert_eq!(of(true), "*-*-* *:00/20:00 UTC");
    }

    /// Else each look would write.
    ///
    /// Requirement: R19
    #[test]
    fn week_stays_the_same_from_hour_to_hour() {
        let windows = [window(&Day::ALL, "22:00", 300, "Asia/Kathmandu")];
        let narrowed = [window(&[Day::Tue, Day::Wed], "17:00", 200, "UTC")];
        let calendar = Calendar {
            windows: &windows,
            blackouts: &[],
            narrowed: &narrowed,
        };
        let begin = at("2026-01-01T00:00:00Z");
        let first = coming_week(&calendar, begin);
        for minutes in (0..2 * 7 * 1440).step_by(7) {
            let now = WallTime(begin.0 + minutes * 60_000_000);
            assert_eq!(coming_week(&calendar, now), first, "{minutes}");
        }
    }

    /// Requirement: R19
    #[test]
    fn openings_are_rendered_as_written() {
        let windows = [window(&[Day::Sat], "02:00", 60, "UTC")];
        let calendar = Calendar {
            windows: &windows,
            blackouts: &[],
            narrowed: &[],
        };
        let now = WallTime::parse("2026-01-01T00:00:00Z").expect("a time");
        let expected = concat!(
            r#"{"critical":"ignore-window","openings":["#,
            r#"{"end":"2026-01-03T03:00:00Z","start":"2026-01-03T02:00:00Z"},"#,
            r#"{"end":"2026-01-10T03:00:00Z","start":"2026-01-10T02:00:00Z"},"#,
            r#"{"end":"2026-01-17T03:00:00Z","start":"2026-01-17T02:00:00Z"},"#,
            r#"{"end":"2026-01-24T03:00:00Z","start":"2026-01-24T02:00:00Z"},"#,
            r#"{"end":"2026-01-31T03:00:00Z","start":"2026-01-31T02:00:00Z"}"#,
            r#"],"version":1}"#,
        );
        assert_eq!(kube_controller(&calendar, now), expected);
    }

    /// Requirement: R19
    #[test]
    fn systemd_accepts_generated_lines() {
        let zones = ["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/New_York"];
        let mut lines = Vec::new();
        for number in 0_usize..200 {
            let start = format!("{:02}:{:02}", number * 7 % 24, number * 13 % 60);
            let days = &Day::ALL[number % 6..];
            let minutes = 10 + u32::try_from(number * 7 % 1431).unwrap_or(0);
            lines.extend(systemd_timer(&[window(
                days,
                &start,
                minutes,
                zones[number % 4],
            )]));
        }
        let Ok(output) = Command::new("systemd-analyze")
            .arg("calendar")
            .args(&lines)
            .output()
        else {
            test_records::skip(
                "systemd_accepts_generated_lines",
                test_records::Missing::Tool,
                "systemd-analyze does not start",
            );
            return;
        };
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
    }
}
