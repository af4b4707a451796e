//! What a guest feels, by its monitor's page: the figures by which a judge compares releases.

use super::{end_of_labels, label};

/// Most bytes of a page that are read. The rest counts as missing.
pub const PAGE_BYTES: usize = 1 << 20;
/// Longest line that is read, bytes.
const LINE_BYTES: usize = 4096;

const CONNECTED: &str = "vm_monitor_agent_connected";
const RESIDENT: &str = "process_resident_memory_bytes";
const KILLS: &str = "vm_monitor_oom_kills_total";
const REFUSALS: &str = "vm_monitor_downscale_refusals_total";
const REQUESTS: &str = "vm_monitor_upscale_requests_total";
const STALLED: &str = "host_pressure_stalled_seconds_total";
const WAITING: &str = "host_pressure_percent";
/// Refusals that say nothing about the release: each new process begins without samples, and a hook
/// is the owner's.
const NEUTRAL_REASONS: [&str; 2] = ["too_few_samples", "hook"];

/// Figures of a page. Counters count from the start of the monitor's process, the stalled time from
/// the guest's boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GuestFigures {
    /// Whether an agent is connected.
    pub agent_connected: bool,
    /// Resident memory of the monitor's process, bytes.
    pub resident_bytes: u64,
    /// Processes that the kernel ended. Zero if the monitor watches no group.
    pub oom_kills: u64,
    /// Refused shrinks, without those whose reason says nothing about the release.
    pub refusals: u64,
    /// Requests for more memory.
    pub upscale_requests: u64,
    /// Time in which all tasks waited for memory, whole seconds.
    pub full_seconds: u64,
    /// Share of the last ten seconds in which some task waited for memory, percent.
    pub waiting_percent: u64,
}

/// A figure as found so far. One that occurs twice or cannot be read is unknown.
#[derive(Debug, Clone, Copy, Default)]
enum Found {
    #[default]
    Missing,
    Once(u64),
    Unknown,
}

impl Found {
    fn add(&mut self, value: Option<u64>) {
        *self = match (*self, value) {
            (Self::Missing, Some(value)) => Self::Once(value),
            _ => Self::Unknown,
        };
    }

    const fn known(self) -> Option<u64> {
        match self {
            Self::Once(value) => Some(value),
            Self::Missing | Self::Unknown => None,
        }
    }

    const fn or_zero(self) -> Option<u64> {
        match self {
            Self::Missing => Some(0),
            found => found.known(),
        }
    }
}

#[derive(Debug, Default)]
struct Reader {
    connected: Found,
    resident: Found,
    kills: Found,
    requests: Found,
    stalled: Found,
    waiting: Found,
    /// `None` once a sample cannot be read.
    refusals: Option<u64>,
}

impl GuestFigures {
    /// Reads a page. `None` without the figures that each working monitor serves, or if one of
    /// them cannot be read: then nothing is known.
    #[must_use]
    pub fn read(page: &[u8]) -> Option<Self> {
        let mut reader = Reader {
            refusals: Some(0),
            ..Reader::default()
        };
        let page = page.get(..PAGE_BYTES).unwrap_or(page);
        for line in page.split(|byte| *byte == b'\n') {
            if line.len() <= LINE_BYTES
                && let Ok(line) = str::from_utf8(line)
            {
                reader.line(line.trim());
            }
        }
        Some(Self {
            agent_connected: reader.connected.known()? == 1,
            resident_bytes: reader.resident.known()?,
            oom_kills: reader.kills.or_zero()?,
            refusals: reader.refusals?,
            upscale_requests: reader.requests.known()?,
            full_seconds: reader.stalled.or_zero()?,
            waiting_percent: reader.waiting.or_zero()?,
        })
    }
}

impl Reader {
    fn line(&mut self, line: &str) {
        let end = line
            .find(|c: char| c == '{' || c.is_whitespace())
            .unwrap_or(line.len());
        let (name, rest) = line.split_at(end);
        let is_memory = |labels: &str, kind| {
            label(labels, "scope") == Some("machine")
                && label(labels, "resource") == Some("memory")
                && label(labels, "kind") == Some(kind)
        };
        let found = match name {
            CONNECTED => &mut self.connected,
            RESIDENT => &mut self.resident,
            KILLS => &mut self.kills,
            REQUESTS => &mut self.requests,
            STALLED if is_memory(labels_of(rest).0, "full") => &mut self.stalled,
            WAITING if is_memory(labels_of(rest).0, "some") => &mut self.waiting,
            REFUSALS => {
                let (labels, value) = labels_of(rest);
                let reason = label(labels, "reason").unwrap_or_default();
                if !NEUTRAL_REASONS.contains(&reason) {
                    let sum = self.refusals.zip(number(value));
                    self.refusals = sum.map(|(all, more)| all.saturating_add(more));
                }
                return;
            }
            _ => return,
        };
        found.add(number(labels_of(rest).1));
    }
}

/// Text between the braces, and what follows them.
fn labels_of(rest: &str) -> (&str, &str) {
    let Some(inside) = rest.strip_prefix('{') else {
        return ("", rest);
    };
    match end_of_labels(inside) {
        Some(end) => (&inside[..end], &inside[end + 1..]),
        None => ("", ""),
    }
}

/// Whole part of a decimal number.
fn number(text: &str) -> Option<u64> {
    let mut words = text.split_whitespace();
    let (word, None) = (words.next()?, words.next()) else {
        return None;
    };
    let (whole, part) = word.split_once('.').unwrap_or((word, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_digits(whole) && is_digits(part)).then(|| whole.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text that a monitor served without an agent and without a group.
    const PAGE: &[u8] = include_bytes!("../../testdata/pages/monitor.txt");

    #[test]
    fn page_of_a_real_monitor_has_all_figures() {
        let figures = GuestFigures {
            agent_connected: false,
            resident_bytes: 9_007_104,
            oom_kills: 0,
            refusals: 0,
            upscale_requests: 0,
            full_seconds: 8,
            waiting_percent: 0,
        };
        assert_eq!(GuestFigures::read(PAGE), Some(figures));
    }

    fn page(more: &str) -> Option<GuestFigures> {
        let base = "vm_monitor_agent_connected 1\nprocess_resident_memory_bytes 5\n\
            vm_monitor_upscale_requests_total 2\n";
        GuestFigures::read(format!("{base}{more}").as_bytes())
    }

    #[test]
    fn only_memory_of_the_whole_guest_counts_as_pressure() {
        let stalled = |scope: &str, resource: &str, kind: &str, value: &str| {
            format!(
                "host_pressure_stalled_seconds_total{{scope=\"{scope}\",resource=\"{resource}\",kind=\"{kind}\"}} {value}\n"
            )
        };
        let text = [
            stalled("machine", "memory", "full", "7.900000"),
            stalled("machine", "memory", "some", "9.0"),
            stalled("machine", "io", "full", "11.0"),
            stalled("cgroup", "memory", "full", "13.0"),
        ];
        assert_eq!(page(&text.concat()).expect("figures").full_seconds, 7);
        let waiting = "host_pressure_percent{scope=\"machine\",resource=\"memory\",kind=\"some\",window=\"10s\"} 12.34\n";
        assert_eq!(page(waiting).expect("figures").waiting_percent, 12);
    }

    #[test]
    fn refusals_that_follow_each_start_do_not_count() {
        let refused = |reason: &str, count: u32| {
            format!("vm_monitor_downscale_refusals_total{{reason=\"{reason}\"}} {count}\n")
        };
        let text = [
            refused("pressure", 3),
            refused("in_use", 4),
            refused("too_few_samples", 50),
            refused("hook", 60),
            refused("a new reason", 1),
        ];
        assert_eq!(page(&text.concat()).expect("figures").refusals, 8);
    }

    #[test]
    fn what_cannot_be_read_is_unknown() {
        assert_eq!(page("vm_monitor_oom_kills_total NaN\n"), None);
        assert_eq!(page("vm_monitor_oom_kills_total 1e3\n"), None);
        assert_eq!(page("vm_monitor_oom_kills_total -1\n"), None);
        assert_eq!(page("vm_monitor_oom_kills_total 1 2\n"), None);
        assert_eq!(page("vm_monitor_agent_connected 0\n"), None);
        assert_eq!(
            page("vm_monitor_downscale_refusals_total{reason=\"x\"} y\n"),
            None
        );
        assert_eq!(GuestFigures::read(b""), None);
        assert_eq!(GuestFigures::read(b"vm_monitor_agent_connected 1\n"), None);
    }

    #[test]
    fn page_beyond_the_bound_and_lines_that_are_too_long_are_not_read() {
        let long = format!("x {}\n", "y".repeat(LINE_BYTES));
        assert!(page(&long).is_some());
        let hidden = format!("{}vm_monitor_oom_kills_total 4\n", "\n".repeat(PAGE_BYTES));
        assert_eq!(page(&hidden).expect("figures").oom_kills, 0);
    }
}
