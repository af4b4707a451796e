//! Tallies of versions by hours of the calendar, and the hours that are judged.

use std::collections::BTreeMap;

use agent::core::tallies::{Ended, Moment, Tallies, Version};
use policy_contract::Digest;
use policy_contract::tally::{Evidence, NodeAlarms, VersionReport};
use proptest::prelude::*;
use protocol::policy::Fault;
use protocol::time::{Timestamp, WallTime};

const HOUR: i64 = 3_600_000_000;
const HOURS_KEPT: usize = 4;
const MINUTE: i64 = 60_000_000;

fn version(number: u8) -> Version {
    Version {
        policy: "db".to_owned(),
        digest: Digest([number; 32]),
    }
}

/// A time on both clocks, in minutes. The process began with the calendar.
fn at(minute: i64) -> Moment {
    Moment {
        now: Timestamp(minute.unsigned_abs() * 60_000_000),
        wall: WallTime(minute * MINUTE),
    }
}

fn follow(tallies: &mut Tallies, minute: i64, candidate: u8) {
    let used = [(version(1), candidate == 1), (version(2), candidate == 2)];
    tallies.follow(at(minute), &used.into());
}

fn answer(vm: &str) -> Ended<'_> {
    Ended {
        number: 1,
        vm,
        decides: false,
        fault: None,
        faults_in_a_row: 0,
        is_shrink: false,
    }
}

fn report(tallies: &mut Tallies, minute: i64, number: u8) -> VersionReport {
    let reports = tallies.reports(at(minute), |_| None);
    let digest = version(number).digest.to_string();
    let mut own = reports.into_iter().filter(|one| one.digest == digest);
    own.next().expect("it is followed")
}

/// Requirement: V07
#[test]
fn v07_whole_hours_are_judged_once_each() {
    let mut tallies = Tallies::new(true);
    follow(&mut tallies, 30, 2);
    tallies.ended(at(40), &version(2), &answer("a/b"));
    assert_eq!(tallies.next_job(at(62).wall), None, "it was not whole");
    for number in [1, 2] {
        tallies.ended(at(70), &version(number), &answer("a/b"));
    }
    assert_eq!(
        tallies.next_job(at(120).wall),
        None,
        "records are not on disk"
    );
    let job = tallies.next_job(at(121).wall).expect("of the candidate");
    assert_eq!((job.from, job.to), (at(60).wall, at(120).wall));
    assert_eq!(
        (&job.version, &*job.vms),
        (&version(2), &["a/b".to_owned()][..])
    );
    let evidence = Evidence {
        hours: 1,
        ..Evidence::default()
    };
    tallies.judged(at(122).now, &job, Ok(evidence.clone()));
    assert_eq!(tallies.next_job(at(122).wall), None);
    let shown = report(&mut tallies, 124, 2);
    let hour = shown.hours.last().expect("an hour");
    assert_eq!(
        (&hour.judged, hour.age_seconds),
        (&Some(evidence), Some(120))
    );
    assert_eq!(tallies.next_job(at(190).wall), None, "nobody was asked");
}

#[test]
fn judge_that_fails_is_not_run_again_and_says_why() {
    let mut tallies = Tallies::new(true);
    follow(&mut tallies, 0, 2);
    follow(&mut tallies, 60, 2);
    tallies.ended(at(70), &version(2), &answer("a/b"));
    let job = tallies.next_job(at(130).wall).expect("an hour");
    tallies.judged(at(131).now, &job, Err("no answer within a minute".into()));
    assert_eq!(tallies.next_job(at(131).wall), None);
    let hour = report(&mut tallies, 131, 2).hours.pop().expect("an hour");
    assert_eq!(hour.problem.as_deref(), Some("no answer within a minute"));
}

#[test]
fn without_a_journal_the_hour_says_so() {
    let mut tallies = Tallies::new(false);
    follow(&mut tallies, 0, 2);
    tallies.roll(at(60).wall);
    tallies.ended(at(70), &version(2), &answer("a/b"));
    assert_eq!(tallies.next_job(at(130).wall), None);
    let shown = report(&mut tallies, 130, 2);
    let hour = shown.hours.last().expect("an hour");
    assert_eq!(hour.problem.as_deref(), Some("the agent keeps no journal"));
    assert!(!shown.has_journal);
}

#[test]
fn clock_that_was_set_makes_no_whole_hour() {
    let mut tallies = Tallies::new(true);
    follow(&mut tallies, 0, 2);
    for minute in [60, 70] {
        tallies.ended(at(minute), &version(2), &answer("a/b"));
    }
    // A day ahead, then back.
    for minute in [60 * 24 + 70, 80, 130] {
        tallies.ended(at(minute), &version(2), &answer("a/b"));
    }
    let hours = report(&mut tallies, 140, 2).hours;
    assert!(hours.iter().all(|hour| !hour.is_whole), "{hours:?}");
}

/// Requirement: V07
#[test]
fn v07_alarms_end_after_ten_minutes() {
    let mut tallies = Tallies::new(true);
    follow(&mut tallies, 0, 2);
    let faulty = Ended {
        decides: true,
        fault: Some(Fault::WorkerDied),
        faults_in_a_row: 2,
        is_shrink: true,
        ..answer("a/b")
    };
    tallies.ended(at(5), &version(2), &faulty);
    tallies.oom_kill(at(5), &version(2), 1, true);
    tallies.oom_kill(at(5), &version(2), 2, false);
    let seen = NodeAlarms {
        faults_in_a_row: 2,
        calls: 1,
        faulty_calls: 1,
        out_of_memory: 1,
        worker_deaths: 1,
        deciding: 1,
        shrinking: 0,
    };
    assert_eq!(report(&mut tallies, 5, 2).alarms, seen);
    let later = NodeAlarms {
        shrinking: 1,
        ..seen
    };
    assert_eq!(report(&mut tallies, 6, 2).alarms, later);
    assert_eq!(report(&mut tallies, 14, 2).alarms, later);
    let end = NodeAlarms {
        faults_in_a_row: 2,
        deciding: 1,
        shrinking: 1,
        ..NodeAlarms::default()
    };
    assert_eq!(report(&mut tallies, 15, 2).alarms, end);
    tallies.left(at(16).now, 1);
    assert_eq!(report(&mut tallies, 16, 2).alarms, NodeAlarms::default());
    assert_eq!(report(&mut tallies, 16, 2).running.oom_kills, 2);
}

#[test]
fn version_that_is_not_asked_has_faults_in_a_row() {
    let mut tallies = Tallies::new(true);
    follow(&mut tallies, 0, 2);
    let aside = |digest: &Digest| (*digest == version(2).digest).then(|| "syntax".to_owned());
    let rows = tallies.reports(at(1), aside);
    let rows: Vec<u32> = rows.iter().map(|one| one.alarms.faults_in_a_row).collect();
    assert_eq!(rows, [0, 3]);
}

proptest! {
    /// Requirement: V07
    #[test]
    fn v07_each_answer_is_counted_in_its_hour(
        steps in prop::collection::vec((0..50_i64, 1..3_u8), 1..60),
    ) {
        let mut tallies = Tallies::new(true);
        follow(&mut tallies, 0, 2);
        let (mut minute, mut expected) = (0, BTreeMap::new());
        for (wait, number) in steps {
            minute += wait;
            tallies.ended(at(minute), &version(number), &answer("a/b"));
            *expected.entry((number, minute / 60)).or_default() += 1;
        }
        for number in [1, 2] {
            let shown = report(&mut tallies, minute, number);
            let of = |hour: i64| expected.get(&(number, hour)).copied().unwrap_or(0_u64);
            prop_assert_eq!(shown.running.answers, of(minute / 60));
            let hours: Vec<i64> = shown.hours.iter().map(|hour| hour.from.0 / HOUR).collect();
            prop_assert!(hours.is_sorted() && hours.len() <= HOURS_KEPT);
            for hour in &shown.hours {
                prop_assert_eq!(hour.counts.answers, of(hour.from.0 / HOUR));
            }
            let kept = i64::try_from(HOURS_KEPT).expect("it is small");
            let last = (minute / 60 - kept).max(0)..minute / 60;
            prop_assert_eq!(hours, last.collect::<Vec<_>>());
        }
    }
}
