//! The meter against hand-made and random traces.

use proptest::prelude::*;

use super::*;

const START: WallTime = WallTime(1_704_164_621_100_000);

/// A checkpoint as it comes back from the disk.
fn written(saved: &Checkpoint) -> Checkpoint {
    let text = serde_json::to_string(saved).expect("encodes");
    serde_json::from_str(&text).expect("decodes")
}

fn names() -> Names {
    Names {
        cpu_metric: "effective_compute_seconds".into(),
        active_metric: "active_time_seconds".into(),
        host: "host".into(),
    }
}

fn billed(endpoint: &str, milli: u32) -> Billed {
    Billed {
        endpoint_id: endpoint.into(),
        cpu: MilliCpu(milli),
    }
}

/// A time so many milliseconds after the start, on both clocks.
fn at(millis: u64) -> (Timestamp, WallTime) {
    let micros = millis * 1000;
    let wall = START.0 + i64::try_from(micros).expect("small");
    (Timestamp(1_000_000 + micros), WallTime(wall))
}

fn values(events: &[BillingEvent]) -> Vec<(&str, u64)> {
    events
        .iter()
        .map(|event| (event.endpoint_id.as_str(), event.value))
        .collect()
}

#[test]
fn an_event_is_the_deployed_agents_byte_for_byte() {
    let mut meter = Meter::new(START);
    meter.observe(at(0).0, "u", Some(&billed("ep-x", 250)));
    let (now, wall) = at(24_000);
    let mut names = names();
    names.host = "host-1".into();
    let events = meter.accumulate(now, wall, &names);
    assert_eq!(
        serde_json::to_string(&events[0]).expect("encodes"),
        r#"{"idempotency_key":"2024-01-02T03:04:05.1Z-host-1-1/2","metric":"effective_compute_seconds","type":"incremental","endpoint_id":"ep-x","start_time":"2024-01-02T03:03:41.1Z","stop_time":"2024-01-02T03:04:05.1Z","value":6}"#
    );
    assert_eq!(
        events[1].idempotency_key,
        "2024-01-02T03:04:05.1Z-host-1-2/2"
    );
    assert_eq!(
        (events[1].metric.as_str(), events[1].value),
        ("active_time_seconds", 24)
    );
}

#[test]
fn every_change_counts_from_when_it_is_seen() {
    let mut meter = Meter::new(START);
    meter.observe(at(0).0, "u", Some(&billed("a", 1000)));
    meter.observe(at(3_000).0, "u", Some(&billed("a", 4000)));
    meter.observe(at(5_000).0, "u", Some(&billed("b", 2000)));
    meter.observe(at(8_000).0, "u", None);
    let (now, wall) = at(10_000);
    let events = meter.accumulate(now, wall, &names());
    assert_eq!(
        values(&events),
        [("a", 3 + 8), ("a", 5), ("b", 6), ("b", 3)]
    );
    assert!(meter.is_empty(), "nothing is left to tell");
    let (now, wall) = at(20_000);
    assert!(meter.accumulate(now, wall, &names()).is_empty());
}

#[test]
fn halves_are_carried_not_lost() {
    let mut meter = Meter::new(START);
    meter.observe(at(0).0, "u", Some(&billed("a", 250)));
    let tell = |meter: &mut Meter, millis| {
        let (now, wall) = at(millis);
        meter.accumulate(now, wall, &names())[0].value
    };
    // 0.25 CPU over 1 s each: a quarter, rounded to nothing or one, four make one.
    let told: Vec<u64> = (1..=8).map(|n| tell(&mut meter, n * 1000)).collect();
    assert_eq!(told.iter().sum::<u64>(), 2, "{told:?}");
}

#[test]
fn a_failing_watch_bills_the_smaller_size_and_never_a_vm_that_went() {
    let mut meter = Meter::new(START);
    for uid in ["grew", "shrank", "same", "gone"] {
        meter.observe(at(0).0, uid, Some(&billed(uid, 2000)));
    }
    meter.doubt(at(10_000).0);
    let (now, wall) = at(15_000);
    assert!(
        meter.accumulate(now, wall, &names()).is_empty(),
        "nothing is certain"
    );
    meter.observe(at(20_000).0, "grew", Some(&billed("grew", 4000)));
    meter.observe(at(20_000).0, "shrank", Some(&billed("shrank", 1000)));
    meter.observe(at(20_000).0, "gone", None);
    meter.certain(at(20_000).0);
    let (now, wall) = at(20_000);
    let events = meter.accumulate(now, wall, &names());
    assert_eq!(
        values(&events),
        [
            ("gone", 20),
            ("gone", 10),
            ("grew", 40),
            ("grew", 20),
            ("same", 40),
            ("same", 20),
            ("shrank", 30),
            ("shrank", 20)
        ]
    );
    assert!(
        events.iter().all(|event| event.start_time == text(START)),
        "the whole time is told"
    );
}

#[test]
fn a_restart_loses_nothing_and_too_long_an_absence_is_not_billed() {
    let mut meter = Meter::new(START);
    meter.observe(at(0).0, "u", Some(&billed("a", 1000)));
    let (now, wall) = at(7_000);
    let saved = meter.checkpoint(now, wall);
    let saved = written(&saved);
    // The next process has a clock of its own.
    let mut next = Meter::restore(&saved, Timestamp(5), at(10_000).1);
    assert!(next.is_in_doubt());
    next.observe(Timestamp(5), "u", Some(&billed("a", 500)));
    let events = next.accumulate(Timestamp(2_000_005), at(12_000).1, &names());
    // 7 s of one CPU, then 3 + 2 s of half a one: 9.5.
    assert_eq!(values(&events), [("a", 10), ("a", 12)]);

    let mut late = Meter::restore(&saved, Timestamp(5), at(7_000 + 3_601_000).1);
    late.observe(Timestamp(5), "u", Some(&billed("a", 500)));
    let events = late.accumulate(Timestamp(5), at(7_000 + 3_601_000).1, &names());
    assert_eq!(values(&events), [("a", 7), ("a", 7)]);
}

#[test]
fn keys_differ_even_when_the_clock_is_set_back() {
    let mut meter = Meter::new(START);
    meter.observe(at(0).0, "u", Some(&billed("a", 1000)));
    let first = meter.accumulate(at(10_000).0, at(10_000).1, &names());
    let second = meter.accumulate(at(20_000).0, at(3_000).1, &names());
    assert_ne!(first[0].idempotency_key, second[0].idempotency_key);
    let stop = |event: &BillingEvent| WallTime::parse(&event.stop_time).expect("is a time");
    assert!(stop(&second[0]) > stop(&first[0]));
}

/// What may happen in a trace.
#[derive(Debug, Clone)]
enum Step {
    /// So many milliseconds go by.
    Pass(u64),
    /// A VM is seen: which, whom it is billed to, its size.
    See(u8, u8, u32),
    /// A VM is not billed any more.
    Go(u8),
    Accumulate,
    /// The process ends and another one goes on at once.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1_u64..30_000).prop_map(Step::Pass),
        4 => (0_u8..3, 0_u8..2, 1_u32..9000).prop_map(|(vm, to, cpu)| Step::See(vm, to, cpu)),
        1 => (0_u8..3).prop_map(Step::Go),
        2 => Just(Step::Accumulate),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    /// Against a simulation that adds up millisecond by millisecond: no event is ever off by more than half a second in sum.
    #[test]
    fn n40_the_events_are_the_integral(steps in proptest::collection::vec(step(), 1..80)) {
        let (mut meter, mut millis) = (Meter::new(START), 0_u64);
        let mut having: BTreeMap<u8, (u8, u32)> = BTreeMap::new();
        // Milli-CPU-milliseconds and milliseconds, by endpoint.
        let mut exact: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let mut told: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let mut lives = BTreeMap::new();
        let mut keys = std::collections::BTreeSet::new();
        let mut tell = |events: Vec<BillingEvent>| {
            for event in events {
                assert!(keys.insert(event.idempotency_key.clone()), "{event:?} has a key of another");
                let sum = told.entry(event.endpoint_id).or_default();
                let part = if event.metric.starts_with("active") { &mut sum.1 } else { &mut sum.0 };
                *part += event.value;
            }
        };
        for step in steps.into_iter().chain([Step::Pass(1), Step::Accumulate]) {
            let (now, wall) = at(millis);
            match step {
                Step::Pass(more) => {
                    for (vm, (to, cpu)) in &having {
                        // One account per VM and endpoint, so that each may be off by half a second.
                        let sum = exact.entry(format!("{vm}-{to}")).or_default();
                        *sum = (sum.0 + u64::from(*cpu) * more, sum.1 + more);
                    }
                    millis += more;
                }
                Step::See(vm, to, cpu) => {
                    let old = having.insert(vm, (to, cpu));
                    if old.is_none_or(|(old, _)| old != to) {
                        *lives.entry(format!("{vm}-{to}")).or_insert(0_u64) += 1;
                    }
                    meter.observe(now, &format!("uid-{vm}"), Some(&billed(&format!("{vm}-{to}"), cpu)));
                }
                Step::Go(vm) => {
                    having.remove(&vm);
                    meter.observe(now, &format!("uid-{vm}"), None);
                }
                Step::Accumulate => tell(meter.accumulate(now, wall, &names())),
                Step::Restart => {
                    let saved = written(&meter.checkpoint(now, wall));
                    meter = Meter::restore(&saved, now, wall);
                    meter.certain(now);
                }
            }
        }
        for (endpoint, (cpu, active)) in &exact {
            let sum = told.get(endpoint).copied().unwrap_or_default();
            // Half a second for each time that a VM was billed to this endpoint without a break.
            let bound = 500 * lives[endpoint];
            prop_assert!((sum.0 * 1_000_000).abs_diff(*cpu) <= bound * 1000, "{endpoint}: {sum:?} for {cpu}");
            prop_assert!((sum.1 * 1000).abs_diff(*active) <= bound, "{endpoint}: {sum:?} for {active}");
        }
    }
}
