//! Hours of a version of sets: its counts beside those of the live version, and beside what the
//! sets had. The gate decides by them.
//!
//! # Invariants
//! * An hour is judged only if answers cover it: `v07_hour_with_a_hole_is_not_judged`.
//! * A candidate is set beside the live version, and without one beside what the sets had:
//!   `v07_candidate_of_sets_is_set_beside_the_live_version_and_the_counts`.

use std::collections::{BTreeMap, VecDeque};

use policy_contract::ASK_SETS_EVERY;
use policy_contract::tally::{Counts, Evidence, HourReport, Tally};
use protocol::policy::Fault;
use protocol::time::{Span, Timestamp, WallTime};

const HOUR: i64 = 3_600_000_000;
/// Hours that ended and are still reported. The gate reads them once a minute.
const HOURS_KEPT: usize = 4;
/// Longest time between two rounds that counts. After a longer one nothing is known of it.
const COVERED_MOST: Span = Span(2 * ASK_SETS_EVERY.0);
/// Part of an hour that answers must cover, percent.
const COVERED_PERCENT: u64 = 95;
/// Time within which a count up and down is a reversal.
const REVERSAL: Span = Span::from_secs(600);
/// Most members that are counted as VMs.
const MEMBERS_NAMED: usize = 1_000;

/// Counts of a set in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counted {
    /// Count that the set had.
    pub(super) has: u32,
    /// Count that the version wanted.
    pub(super) wants: u32,
    /// Compute units of a member.
    pub(super) unit: u32,
}

/// The sets of a round, by `namespace/name`.
pub(super) type Round = BTreeMap<String, Counted>;

/// A time on both clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) now: Timestamp,
    pub(super) wall: WallTime,
}

/// Count of a set over time.
#[derive(Debug, Clone, Copy, Default)]
struct Trend {
    count: Option<u32>,
    grew_at: Option<Timestamp>,
}

impl Trend {
    /// Takes the next count. Returns whether it ends a reversal.
    fn next(&mut self, now: Timestamp, count: u32) -> bool {
        let before = self.count.replace(count).unwrap_or(count);
        if count > before {
            self.grew_at = Some(now);
        }
        let is_down = count < before;
        is_down
            && self
                .grew_at
                .take_if(|at| now.since(*at) <= REVERSAL)
                .is_some()
    }
}

/// The hours of a version.
#[derive(Debug, Default)]
pub(super) struct Hours {
    /// Begin of the running hour. `None` before the first round.
    from: Option<WallTime>,
    running: Counts,
    figures: Evidence,
    covered: Span,
    ended: VecDeque<HourReport>,
    last: Option<Timestamp>,
    /// Trends of the version's counts and of those that they are set beside.
    trends: BTreeMap<String, [Trend; 2]>,
}

impl Hours {
    pub(super) fn running(&self) -> Counts {
        self.running.clone()
    }

    pub(super) fn ended(&self) -> Vec<HourReport> {
        self.ended.iter().cloned().collect()
    }

    pub(super) fn answer(&mut self) {
        self.running.answers += 1;
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        *self.running.faults.entry(fault).or_default() += 1;
    }

    /// Ends the running hour, if a time is of another one.
    pub(super) fn roll(&mut self, wall: WallTime) {
        let from = WallTime(wall.0.div_euclid(HOUR) * HOUR);
        let Some(before) = self.from.replace(from).filter(|before| *before != from) else {
            return;
        };
        let counts = std::mem::take(&mut self.running);
        let figures = std::mem::take(&mut self.figures);
        let covered = std::mem::take(&mut self.covered);
        let is_whole = covered.0 * 100 >= HOUR.unsigned_abs() * COVERED_PERCENT;
        self.ended.push_back(HourReport {
            from: before,
            is_whole,
            counts,
            judged: is_whole.then_some(Evidence {
                hours: 1,
                ..figures
            }),
            ..HourReport::default()
        });
        if self.ended.len() > HOURS_KEPT {
            self.ended.pop_front();
        }
    }

    /// Adds a round. `own` is absent where a question has no valid answer.
    pub(super) fn add(&mut self, at: Moment, own: Option<&Round>, live: Option<&Round>) {
        self.roll(at.wall);
        let before = self.last.replace(at.now);
        let Some(own) = own else { return };
        self.running.vms.extend(members(own));
        let time = before.map_or(Span(0), |before| at.now.since(before));
        let time = if time > COVERED_MOST { Span(0) } else { time };
        self.covered.0 += time.0;
        let hours = time.as_secs_f64() / 3600.0;
        self.trends.retain(|set, _| own.contains_key(set));
        let figures = &mut self.figures;
        let mut is_fewer = false;
        for (set, counted) in own {
            let beside = live.and_then(|live| live.get(set));
            let beside = beside.map_or(counted.has, |live| live.wants);
            let [own_trend, other_trend] = self.trends.entry(set.clone()).or_default();
            add(&mut figures.candidate, counted.wants, counted.unit, hours);
            add(&mut figures.live, beside, counted.unit, hours);
            add(&mut figures.others, counted.has, counted.unit, hours);
            figures.candidate.reversals += u64::from(own_trend.next(at.now, counted.wants));
            figures.live.reversals += u64::from(other_trend.next(at.now, beside));
            is_fewer |= counted.wants < beside;
        }
        if is_fewer {
            figures.fewer_minutes += time.as_secs_f64() / 60.0;
        }
    }
}

fn add(tally: &mut Tally, count: u32, unit: u32, hours: f64) {
    tally.vm_hours += f64::from(count) * hours;
    tally.unit_hours += f64::from(count) * f64::from(unit) * hours;
}

/// Names of the members that the sets had.
fn members(round: &Round) -> impl Iterator<Item = String> {
    let all = round.iter().flat_map(|(set, counted)| {
        let ordinals = 0..counted.has;
        ordinals.map(move |ordinal| format!("{set}-{ordinal}"))
    });
    all.take(MEMBERS_NAMED)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: u64 = ASK_SETS_EVERY.0;

    fn round(has: u32, wants: u32) -> Round {
        let unit = 2;
        [("a/web".to_owned(), Counted { has, wants, unit })].into()
    }

    /// Adds a round every ten seconds. `None` in the place of a count is no answer.
    fn run(rounds: u64, own: impl Fn(u64) -> Option<Round>, live: Option<&Round>) -> Hours {
        let mut hours = Hours::default();
        for number in 0..=rounds {
            let now = Timestamp(number * TEN);
            let wall = WallTime(i64::try_from(now.0).expect("small"));
            hours.add(Moment { now, wall }, own(number).as_ref(), live);
        }
        hours
    }

    fn first(hours: &Hours) -> HourReport {
        hours.ended.front().expect("an hour that ended").clone()
    }

    /// Requirement: V07
    #[test]
    fn v07_candidate_of_sets_is_set_beside_the_live_version_and_the_counts() {
        let live = round(3, 4);
        for (live, beside, fewer) in [(None, 6.0, 0.0), (Some(&live), 8.0, 60.0)] {
            let hours = run(360, |_| Some(round(3, 3)), live);
            let hour = first(&hours);
            let judged = hour.judged.expect("it is judged");
            let near = |figure: f64, wanted: f64| (figure - wanted).abs() < 0.05;
            let units = |tally: Tally| tally.unit_hours;
            assert!(near(units(judged.candidate), 6.0), "{judged:?}");
            assert!(near(units(judged.live), beside), "{judged:?}");
            assert!(near(units(judged.others), 6.0), "{judged:?}");
            assert!((judged.fewer_minutes - fewer).abs() < 0.5, "{judged:?}");
            assert_eq!((judged.hours, hour.counts.vms.len()), (1, 3));
        }
    }

    /// Requirement: V07
    #[test]
    fn v07_hour_with_a_hole_is_not_judged() {
        for (missing, is_whole) in [(0, true), (15, true), (25, false)] {
            let own = |number: u64| (!(100..100 + missing).contains(&number)).then(|| round(1, 1));
            let hours = run(360, own, None);
            let hour = first(&hours);
            assert_eq!(hour.is_whole, is_whole, "{missing} rounds are missing");
            assert_eq!(hour.judged.is_some(), is_whole);
        }
        // A version that came within the hour is not judged by it.
        let hours = run(360, |number| (number > 60).then(|| round(1, 1)), None);
        assert!(first(&hours).judged.is_none());
    }

    /// Requirement: V07
    #[test]
    fn v07_count_up_and_down_within_ten_minutes_is_a_reversal() {
        let swing = |length: u64| {
            move |number: u64| Some(round(1, 1 + u32::from(number / length % 2 == 1)))
        };
        let quick = first(&run(360, swing(30), None)).judged.expect("judged");
        assert_eq!(quick.candidate.reversals, 5);
        assert_eq!(quick.live.reversals, 0, "the set had one member");
        let slow = first(&run(360, swing(90), None)).judged.expect("judged");
        assert_eq!(slow.candidate.reversals, 0);
    }

    /// Requirement: V07
    #[test]
    fn v07_answers_and_faults_count_in_their_hour() {
        let mut hours = run(10, |_| Some(round(1, 1)), None);
        hours.answer();
        hours.fault(Fault::Late);
        hours.roll(WallTime(HOUR));
        hours.answer();
        let ended = first(&hours).counts;
        assert_eq!(
            (ended.answers, ended.faults),
            (1, [(Fault::Late, 1)].into())
        );
        let running = hours.running();
        assert_eq!((running.answers, running.faults.len()), (1, 0));
        for number in 2..20 {
            hours.roll(WallTime(number * HOUR));
        }
        assert_eq!(hours.ended().len(), HOURS_KEPT);
    }
}
