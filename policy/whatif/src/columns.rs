//! Figures of one VM over a time: in truth, or in the model.

use agent::core::Event;
use agent::core::units::units_in;
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;
use serde::Serialize;

use crate::trace::{Direction, Steps, Trace};

/// Part of the memory from which a guest may run out of it.
const RISK_FRACTION: f64 = 0.95;
/// Two resizes within this time, one up and one down, are a reversal.
const REVERSAL: Span = Span::from_secs(600);
/// How long a sample stands for the need.
const SAMPLE_LASTS: Span = Span::from_secs(30);
const MICROS_PER_MINUTE: f64 = 60e6;
const MICROS_PER_HOUR: f64 = 3600e6;

/// What a guest needed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Need {
    pub(crate) at: Timestamp,
    pub(crate) bytes: f64,
    pub(crate) cpus: f64,
    /// The guest had no more, so it may have needed more.
    pub(crate) is_censored: bool,
}

impl Need {
    /// The need by a sample. `None` for other events than system metrics.
    pub(crate) fn of(at: Timestamp, event: &Event) -> Option<Self> {
        let Event::SystemMetrics(sample) = event else {
            return None;
        };
        let estimate = sample.signals.estimate_bytes.unwrap_or_default();
        Some(Self {
            at,
            bytes: sample.memory_usage_bytes.max(estimate),
            cpus: sample.load1,
            is_censored: false,
        })
    }

    /// The larger of both resources over the unit.
    pub(crate) fn units(&self, unit: Resources) -> f64 {
        let cpu = 1000.0 * self.cpus / f64::from(unit.cpu.0.max(1));
        cpu.max(self.bytes / unit.mem.0.max(1) as f64)
    }
}

/// The time that counts, microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Begin of the time.
    pub from: i64,
    /// End of the time, which does not count any more.
    pub to: i64,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            from: i64::MIN,
            to: i64::MAX,
        }
    }
}

impl Window {
    /// The part of a stretch that counts, on the writer's clock.
    pub(crate) fn within(
        self,
        wall: u64,
        from: Timestamp,
        to: Timestamp,
    ) -> (Timestamp, Timestamp) {
        let local = |at: i64| {
            let wall = i64::try_from(wall).unwrap_or(i64::MAX);
            Timestamp(u64::try_from(at.saturating_sub(wall)).unwrap_or_default())
        };
        (from.max(local(self.from)), to.min(local(self.to)))
    }
}

/// The figures. Minutes and hours are those of the time that counts.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Columns {
    /// Time covered by the records.
    pub minutes: f64,
    /// Need of memory over 0.95 of the size, or a need that comes before a growth could.
    pub oom_risk_minutes: f64,
    /// Load over the CPUs.
    pub cpu_short_minutes: f64,
    /// Size in use over time, compute units.
    pub unit_hours: f64,
    /// Part of `unit_hours` that was needed.
    pub needed_unit_hours: f64,
    /// Part of `unit_hours` that was not needed.
    pub slack_percent: f64,
    /// Changes of the size.
    pub resizes: u64,
    /// Resizes against the one before within ten minutes.
    pub reversals: u64,
    /// Shrinks that the monitor refused.
    pub refused_shrinks: u64,
    /// Permits below the request; repeated ones count once.
    pub cut_permits: u64,
    /// Time in which the guest may have needed more than the record shows. Never safe.
    pub censored_minutes: f64,
}

/// Value of a step function: the last step at or before a time that only grows.
struct Cursor<'a, T> {
    steps: &'a [(Timestamp, T)],
    next: usize,
}

impl<'a, T: Copy> Cursor<'a, T> {
    fn new(steps: &'a [(Timestamp, T)]) -> Self {
        Self { steps, next: 0 }
    }

    fn at(&mut self, at: Timestamp) -> Option<T> {
        while self
            .steps
            .get(self.next)
            .is_some_and(|(from, _)| *from <= at)
        {
            self.next += 1;
        }
        let (_, value) = self.steps.get(self.next.checked_sub(1)?)?;
        Some(*value)
    }
}

/// What the figures of a stretch rest on.
pub(crate) struct Basis<'a> {
    pub(crate) trace: &'a Trace,
    pub(crate) needs: &'a [Need],
    /// Time of a growth.
    pub(crate) lead: Span,
    pub(crate) unit: Resources,
}

impl Columns {
    /// Figures from `from` to `to`.
    pub(crate) fn of(basis: &Basis<'_>, (from, to): (Timestamp, Timestamp)) -> Self {
        let trace = basis.trace;
        let is_within = |at: &Timestamp| (from..to).contains(at);
        let count = |all: &[Timestamp]| all.iter().filter(|at| is_within(at)).count() as u64;
        let mut columns = Self {
            refused_shrinks: count(&trace.refused),
            cut_permits: count(&trace.cut),
            ..Self::default()
        };
        let mut last: Option<(Timestamp, Direction)> = None;
        for (at, direction) in trace.resizes.iter().filter(|(at, _)| is_within(at)) {
            columns.resizes += 1;
            let is_against =
                last.is_some_and(|(before, of)| of != *direction && at.since(before) <= REVERSAL);
            columns.reversals += u64::from(is_against);
            last = Some((*at, *direction));
        }
        columns.integrate(basis, (from, to));
        columns.set_slack();
        columns
    }

    fn integrate(&mut self, basis: &Basis<'_>, (from, to): (Timestamp, Timestamp)) {
        let times = breaks(basis, (from, to));
        let mut in_use = Cursor::new(&basis.trace.in_use);
        let mut guest = Cursor::new(&basis.trace.guest);
        let by_time: Steps<Need> = basis.needs.iter().map(|need| (need.at, *need)).collect();
        let mut needs = Cursor::new(&by_time);
        for pair in times.windows(2) {
            let (at, span) = (pair[0], pair[1].since(pair[0]).0 as f64);
            let minutes = span / MICROS_PER_MINUTE;
            let (Some(using), Some(size)) = (in_use.at(at), guest.at(at)) else {
                continue;
            };
            let units = units_in(using, basis.unit);
            let hours = span / MICROS_PER_HOUR;
            self.minutes += minutes;
            self.unit_hours += units * hours;
            let need = needs.at(at).filter(|need| at.since(need.at) < SAMPLE_LASTS);
            let Some(need) = need else {
                self.censored_minutes += minutes;
                continue;
            };
            let coming = by_time[needs.next..].iter();
            let coming = coming.take_while(|(then, _)| then.since(at) <= basis.lead);
            let peak = coming.fold(need.bytes, |peak, (_, need)| peak.max(need.bytes));
            self.needed_unit_hours += need.units(basis.unit).min(units) * hours;
            if peak > RISK_FRACTION * size.mem.0 as f64 {
                self.oom_risk_minutes += minutes;
            }
            if need.cpus > f64::from(size.cpu.0) / 1000.0 {
                self.cpu_short_minutes += minutes;
            }
            if need.is_censored {
                self.censored_minutes += minutes;
            }
        }
    }

    fn set_slack(&mut self) {
        if self.unit_hours > 0.0 {
            self.slack_percent = 100.0 * (1.0 - self.needed_unit_hours / self.unit_hours);
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.minutes += other.minutes;
        self.oom_risk_minutes += other.oom_risk_minutes;
        self.cpu_short_minutes += other.cpu_short_minutes;
        self.unit_hours += other.unit_hours;
        self.needed_unit_hours += other.needed_unit_hours;
        self.resizes += other.resizes;
        self.reversals += other.reversals;
        self.refused_shrinks += other.refused_shrinks;
        self.cut_permits += other.cut_permits;
        self.censored_minutes += other.censored_minutes;
        self.set_slack();
    }
}

/// All times at which a figure may change.
fn breaks(basis: &Basis<'_>, (from, to): (Timestamp, Timestamp)) -> Vec<Timestamp> {
    let trace = basis.trace;
    let mut times: Vec<Timestamp> = vec![from, to];
    times.extend(trace.in_use.iter().map(|(at, _)| *at));
    times.extend(trace.guest.iter().map(|(at, _)| *at));
    for need in basis.needs {
        times.extend([need.at, need.at - basis.lead, need.at + SAMPLE_LASTS]);
    }
    times.retain(|at| (from..=to).contains(at));
    times.sort_unstable();
    times.dedup();
    times
}
