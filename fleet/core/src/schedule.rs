//! Renderings of windows for updaters that are not the engine.
//!
//! * `systemd-timer`: lines for `OnCalendar=`, one attempt each 20 minutes of an opening.
//! * `kube-controller`: the next openings as JSON.

use std::collections::BTreeMap;

use protocol::fleet::{Day, Window};
use protocol::time::WallTime;
use serde_json::json;

use crate::windows::{Calendar, HORIZON_DAYS};

/// Between two attempts in an opening, minutes.
const EVERY_MINUTES: u32 = 20;
/// Openings of the second rendering.
const OPENINGS: usize = 8;

/// Lines for `OnCalendar=`. Without windows an attempt follows each 20 minutes of every day.
#[must_use]
pub fn systemd_timer(windows: &[Window]) -> Vec<String> {
    if windows.is_empty() {
        return vec!["*-*-* *:00/20:00 UTC".to_owned()];
    }
    windows.iter().flat_map(lines).collect()
}

/// Hours with the same days and minutes share a line.
fn lines(window: &Window) -> Vec<String> {
    let Some((hour, minute)) = window.start() else {
        return Vec::new();
    };
    let start = u32::from(hour) * 60 + u32::from(minute);
    // Day after the opening, and hour, to its minutes.
    let mut hours: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
    let mut at = start;
    while at < start + window.minutes {
        let minutes = hours.entry((at / 1440, at % 1440 / 60)).or_default();
        minutes.push(at % 60);
        at += EVERY_MINUTES;
    }
    let mut shared: BTreeMap<(u32, Vec<u32>), Vec<u32>> = BTreeMap::new();
    for ((day, hour), minutes) in hours {
        shared.entry((day, minutes)).or_default().push(hour);
    }
    let line = |((day, minutes), hours): ((u32, Vec<u32>), Vec<u32>)| {
        let days = days(&window.days, day);
        let minutes = match minutes[..] {
            [0, 20, 40] => "00/20".to_owned(),
            _ => numbers(&minutes),
        };
        let hours = numbers(&hours);
        format!("{days} *-*-* {hours}:{minutes}:00 {}", window.time_zone)
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
