//! Which schedules are sound, and the settings of the timer that follow from one?
//!
//! A schedule is 1 to 16 lines of [`MAX_BYTES`] at most. Each is `[DAYS ]*-*-* HOURS:MINUTES:00
//! ZONE`, as `fleet_core::schedule` renders windows. A user without rights writes it, so this
//! grammar is the fence before a file of systemd's.

/// Longest schedule, bytes.
pub const MAX_BYTES: usize = 512;
/// Most lines of a schedule.
const MAX_LINES: usize = 16;
/// Longest name of a time zone, bytes.
const ZONE_BYTES: usize = 40;
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const FORM: &str =
    "must be [DAYS ]*-*-* HOURS:MINUTES:00 ZONE, as Sat,Sun *-*-* 02,03:00/20:00 Europe/Berlin";

/// A schedule that is sound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    lines: Vec<String>,
}

/// Why a schedule is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// The text is too long, empty, or no text.
    #[error(
        "the schedule must be 1 to 16 lines of ASCII, at most 512 bytes: write lines such as *-*-* 02:00:00 UTC"
    )]
    Shape,
    /// A line is not of the form.
    #[error("line {0} of the schedule {FORM}")]
    Line(usize),
}

impl Schedule {
    /// Reads a schedule. The last line may end with a newline.
    ///
    /// # Errors
    /// The rule that the text breaks.
    pub fn parse(text: &[u8]) -> Result<Self, ScheduleError> {
        if text.is_empty() || text.len() > MAX_BYTES || !text.is_ascii() {
            return Err(ScheduleError::Shape);
        }
        let text = str::from_utf8(text).map_err(|_| ScheduleError::Shape)?;
        let text = text.strip_suffix('\n').unwrap_or(text);
        let lines: Vec<String> = text.split('\n').map(str::to_owned).collect();
        if lines.len() > MAX_LINES {
            return Err(ScheduleError::Shape);
        }
        match lines.iter().position(|line| !is_sound(line)) {
            Some(index) => Err(ScheduleError::Line(index + 1)),
            None => Ok(Self { lines }),
        }
    }

    /// Its lines, each an expression of systemd's calendar.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// The drop-in of the timer of upgrades. An empty time removes the timer's own ones.
    #[must_use]
    pub fn drop_in(&self) -> String {
        let lines = self.lines.iter();
        let lines: String = lines.map(|line| format!("OnCalendar={line}\n")).collect();
        format!("[Timer]\nOnBootSec=\n{lines}RandomizedDelaySec=60\n")
    }
}

fn is_sound(line: &str) -> bool {
    let words: Vec<&str> = line.split(' ').collect();
    let (days, rest) = match words[..] {
        [date, time, zone] => (None, [date, time, zone]),
        [days, date, time, zone] => (Some(days), [date, time, zone]),
        _ => return false,
    };
    let [date, time, zone] = rest;
    let Some((hours, minutes)) = time
        .strip_suffix(":00")
        .and_then(|time| time.split_once(':'))
    else {
        return false;
    };
    days.is_none_or(|days| days.split(',').all(|day| DAYS.contains(&day)))
        && date == "*-*-*"
        && (hours == "*" || is_list(hours, 24))
        && (minutes == "00/20" || is_list(minutes, 60))
        && is_zone(zone)
}

/// Whether a text is a list of numbers of two digits below `end`, without repeats that lengthen it.
fn is_list(text: &str, end: u32) -> bool {
    text.split(',').all(|number| {
        number.len() == 2
            && number.bytes().all(|byte| byte.is_ascii_digit())
            && number.parse::<u32>().is_ok_and(|number| number < end)
    })
}

fn is_zone(zone: &str) -> bool {
    let is_name = |part: &str| {
        part.starts_with(|letter: char| letter.is_ascii_alphabetic())
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"_+-".contains(&byte))
    };
    zone.len() <= ZONE_BYTES && zone.split('/').count() <= 3 && zone.split('/').all(is_name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::fleet::{Day, Window};
    use protocol::time::WallTime;

    use super::*;

    /// Requirement: R30
    #[test]
    fn drop_in_has_these_bytes() {
        let text = b"Sat,Sun *-*-* 02,03:00/20:00 Europe/Berlin\nMon *-*-* 23:30,50:00 UTC\n";
        let schedule = Schedule::parse(text).expect("a schedule");
        assert_eq!(
            schedule.drop_in(),
            "[Timer]\n\
             OnBootSec=\n\
             OnCalendar=Sat,Sun *-*-* 02,03:00/20:00 Europe/Berlin\n\
             OnCalendar=Mon *-*-* 23:30,50:00 UTC\n\
             RandomizedDelaySec=60\n"
        );
    }

    /// Requirement: R30
    #[test]
    fn injections_are_refused() {
        let long = format!("*-*-* {}:00 UTC", vec!["00:00"; 120].join(","));
        let lines = vec!["*-*-* 02:00:00 UTC"; 17].join("\n");
        let zone = format!("*-*-* 02:00:00 A{}", "b".repeat(40));
        let bad: [&[u8]; 36] = [
            b"",
            b"\n",
            b"\n*-*-* 02:00:00 UTC",
            b"*-*-* 02:00:00 UTC\n\n",
            b"*-*-* 02:00:00 UTC\n[Service]\nExecStart=/bin/sh",
            b"*-*-* 02:00:00 UTC\nUnit=shutdown.target",
            b"*-*-* 02:00:00 UTC\r\nUnit=shutdown.target",
            b"*-*-* 02:00:00 UTC\0",
            b"*-*-* 02:00:00 UTC\\",
            b"*-*-* 02:00:00 UTC \\\nUnit=x",
            b"*-*-* 02:00:00 $(reboot)",
            b"*-*-* 02:00:00 `reboot`",
            b"*-*-* 02:00:00 UTC;reboot",
            b"*-*-* 02:00:00 UTC # note",
            b"# note",
            b"; note",
            b"[Timer]",
            b"*-*-* 02:00:00 ../../etc/localtime",
            b"*-*-* 02:00:00 /etc/localtime",
            b"*-*-* 02:00:00 Europe//Berlin",
            b"*-*-* 02:00:00 %H",
            b"*-*-* 02:00:00 a/b/c/d",
            b"--help *-*-* 02:00:00 UTC",
            b"*-*-* *:*:* UTC",
            b"*-*-* *:*:00 UTC",
            b"*-*-* 24:00:00 UTC",
            b"*-*-* 02:60:00 UTC",
            b"*-*-* 2:00:00 UTC",
            b"*-*-* 02:00 UTC",
            b"*-*-* 02:00:00",
            b"minutely",
            b"sat *-*-* 02:00:00 UTC",
            b"Sat,,Sun *-*-* 02:00:00 UTC",
            b" *-*-* 02:00:00 UTC",
            b"*-*-*\t02:00:00\tUTC",
            "*-*-* 02:00:00 \u{dc}TC".as_bytes(),
        ];
        let further = [long.as_bytes(), lines.as_bytes(), zone.as_bytes()];
        for text in bad.into_iter().chain(further) {
            let shown = String::from_utf8_lossy(text);
            assert!(Schedule::parse(text).is_err(), "{shown:?}");
        }
    }

    /// Requirement: R19
    #[test]
    fn renderings_of_windows_are_sound() {
        let zones = ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires"];
        for number in 0_usize..200 {
            let window = Window {
                days: Day::ALL[number % 6..].to_vec(),
                start: format!("{:02}:{:02}", number * 7 % 24, number * 13 % 60),
                minutes: 10 + u32::try_from(number * 3 % 300).unwrap_or(0),
                time_zone: zones[number % 3].to_owned(),
            };
            let lines = fleet_core::schedule::systemd_timer(&[window]);
            let parsed = Schedule::parse(lines.join("\n").as_bytes()).expect("a schedule");
            assert_eq!(parsed.lines(), lines);
        }
        let always = fleet_core::schedule::systemd_timer(&[]).join("\n");
        assert!(Schedule::parse(always.as_bytes()).is_ok(), "{always}");
        let calendar = fleet_core::windows::Calendar {
            windows: &[],
            blackouts: &[],
            narrowed: &[],
        };
        for is_held in [true, false] {
            let inputs = fleet_core::schedule::Inputs {
                calendar,
                is_critical: true,
                is_held,
            };
            let text = fleet_core::schedule::of_updater(&inputs, WallTime(0));
            assert!(Schedule::parse(text.as_bytes()).is_ok(), "{text}");
        }
    }

    proptest! {
        /// No text brings another setting into the drop-in than the times.
        ///
        /// Requirement: R30
        #[test]
        fn drop_in_has_times_alone(text in "(((Sat|Sun,Mon|x) )?[*0-9:,/ -]{0,30}(UTC|a/b|=|\n|\\[|%)?){0,4}") {
            if let Ok(schedule) = Schedule::parse(text.as_bytes()) {
                let count = schedule.lines().len();
                let drop_in = schedule.drop_in();
                prop_assert_eq!(drop_in.lines().count(), count + 3);
                for line in drop_in.lines().skip(2).take(count) {
                    prop_assert!(line.starts_with("OnCalendar="));
                    prop_assert_eq!(line.matches('=').count(), 1);
                }
            }
        }
    }
}
