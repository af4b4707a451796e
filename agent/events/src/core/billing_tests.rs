//! The meter under hand-made and random traces.

use proptest::prelude::*;

use super::*;

const START: WallTime = WallTime(1_704_164_621_100_000);

/// A checkpoint after a round trip through JSON.
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

/// The time `millis` after the start, on both clocks.
fn at(millis: u64) -> (Timestamp, WallTime) {
    at_micros(millis * 1000)
}

fn at_micros(micros: u64) -> (Timestamp, WallTime) {
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
fn event_equals_the_deployed_agents_byte_for_byte() {
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
fn change_counts_from_when_it_is_seen() {
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
    assert!(meter.is_empty(), "nothing is left to report");
    let (now, wall) = at(20_000);
    assert!(meter.accumulate(now, wall, &names()).is_empty());
}

#[test]
fn fractions_of_a_second_are_carried_over() {
    let mut meter = Meter::new(START);
    meter.observe(at(0).0, "u", Some(&billed("a", 250)));
    let report = |meter: &mut Meter, millis| {
        let (now, wall) = at(millis);
        meter.accumulate(now, wall, &names())[0].value
    };
    // 0.25 CPU over 1 s each: a quarter, rounded to nothing or one, four make one.
    let reported: Vec<u64> = (1..=8).map(|n| report(&mut meter, n * 1000)).collect();
    assert_eq!(reported.iter().sum::<u64>(), 2, "{reported:?}");
}

#[test]
fn failing_watch_bills_the_smaller_size_and_no_vm_that_went() {
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
        "the whole time is reported"
    );
}

#[test]
fn restart_loses_no_usage_and_too_long_absence_is_not_billed() {
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
fn doubt_is_billed_up_to_one_hour_with_its_time_before_the_restart() {
    // The hour is two seconds of a failed watch, and the rest without a process.
    let billed_after = |away_millis: u64| {
        let mut meter = Meter::new(START);
        meter.observe(at(0).0, "u", Some(&billed("a", 1000)));
        assert!(!meter.is_in_doubt());
        meter.doubt(at(0).0);
        let (now, wall) = at(2_000);
        let saved = written(&meter.checkpoint(now, wall));
        let wall = at(2_000 + away_millis).1;
        let mut next = Meter::restore(&saved, Timestamp(5), wall);
        next.certain(Timestamp(5));
        let events = next.accumulate(Timestamp(5), wall, &names());
        events.first().map(|event| event.value)
    };
    assert_eq!(billed_after(3_598_000), Some(3_600));
    assert_eq!(billed_after(3_598_001), None);
}

#[test]
fn account_in_doubt_from_its_begin_is_reported_from_its_begin() {
    let mut meter = Meter::new(START);
    meter.observe(at(0).0, "u", Some(&billed("a", 1000)));
    meter.doubt(at(0).0);
    let (now, wall) = at(5_000);
    assert!(meter.accumulate(now, wall, &names()).is_empty());
    let (now, wall) = at(10_000);
    meter.certain(now);
    let events = meter.accumulate(now, wall, &names());
    assert_eq!(events[0].start_time, text(START));
}

#[test]
fn account_without_usage_is_reported_from_the_period_of_its_first_usage() {
    let mut meter = Meter::new(START);
    meter.observe(at(0).0, "u", Some(&billed("a", 1000)));
    let (_, wall) = at(5_000);
    assert!(meter.accumulate(at(0).0, wall, &names()).is_empty());
    let events = meter.accumulate(at(1_000).0, at(6_000).1, &names());
    assert_eq!(events[0].start_time, text(wall));
}

#[test]
fn complete_list_ends_accounts_of_vms_that_it_lacks() {
    let mut meter = Meter::new(START);
    for uid in ["stays", "went"] {
        meter.observe(at(0).0, uid, Some(&billed(uid, 1000)));
    }
    assert_eq!((meter.len(), meter.is_empty()), (2, false));
    meter.retain(at(1_000).0, |uid| uid == "stays");
    let (now, wall) = at(3_000);
    let events = meter.accumulate(now, wall, &names());
    let expected = [("stays", 3), ("stays", 3), ("went", 1), ("went", 1)];
    assert_eq!(values(&events), expected);
    assert_eq!(meter.len(), 1);
}

#[test]
fn idempotency_keys_differ_when_the_clock_is_set_back() {
    let mut meter = Meter::new(START);
    meter.observe(at(0).0, "u", Some(&billed("a", 1000)));
    let first = meter.accumulate(at(10_000).0, at(10_000).1, &names());
    let second = meter.accumulate(at(20_000).0, at(3_000).1, &names());
    assert_ne!(first[0].idempotency_key, second[0].idempotency_key);
    let stop = |event: &BillingEvent| WallTime::parse(&event.stop_time).expect("is a time");
    assert!(stop(&second[0]) > stop(&first[0]));
}

/// One step of a random trace.
#[derive(Debug, Clone)]
enum Step {
    Pass {
        micros: u64,
    },
    See {
        vm: u8,
        endpoint: u8,
        milli: u32,
    },
    /// A VM is not billed any more.
    Go {
        vm: u8,
    },
    Accumulate,
    /// The process ends and another one continues at once.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (1_u64..30_000_000).prop_map(|micros| Step::Pass { micros }),
        2 => (1_u64..3_000).prop_map(|micros| Step::Pass { micros }),
        4 => (0_u8..3, 0_u8..2, 1_u32..9000)
            .prop_map(|(vm, endpoint, milli)| Step::See { vm, endpoint, milli }),
        1 => (0_u8..3).prop_map(|vm| Step::Go { vm }),
        2 => Just(Step::Accumulate),
        1 => Just(Step::Restart),
    ]
}

/// The parts of one event's unit: thousandths of a CPU times microseconds, and microseconds.
const PARTS: [i128; 2] = [CPU_PARTS, ACTIVE_PARTS];

/// The use of one endpoint in [`PARTS`]: CPU, then active time.
#[derive(Debug, Default, Clone, Copy)]
struct Sums {
    used: [i128; 2],
    reported: [i128; 2],
}

impl Sums {
    fn use_for(&mut self, cpu: u32, micros: u64) {
        self.used[0] += i128::from(cpu) * i128::from(micros);
        self.used[1] += i128::from(micros);
    }

    fn report(&mut self, event: &BillingEvent) {
        let of = usize::from(event.metric.starts_with("active"));
        self.reported[of] += i128::from(event.value) * PARTS[of];
    }

    /// Checks the end of an account: its events differ from its usage by half a unit at most.
    fn settle(&mut self) {
        for (of, unit) in PARTS.into_iter().enumerate() {
            let off = self.used[of] - self.reported[of];
            assert!(off.abs() * 2 <= unit, "{off} parts of {unit} too little");
            self.reported[of] = self.used[of];
        }
    }

    fn open(&self) -> [i128; 2] {
        [0, 1].map(|of| self.used[of] - self.reported[of])
    }
}

/// Checks that each part of usage is either in an event or in the meter.
fn assert_nothing_is_lost(saved: &Checkpoint, sums: &mut BTreeMap<String, Sums>) {
    let kept: BTreeMap<_, _> = saved
        .accounts
        .iter()
        .map(|account| (account.key.endpoint_id.clone(), account.total))
        .collect();
    for (endpoint, sums) in sums {
        let Some(total) = kept.get(endpoint) else {
            sums.settle();
            continue;
        };
        let cpu = i128::from(total.cpu) + i128::from(total.cpu_carry);
        let active = i128::from(total.active) + i128::from(total.active_carry);
        assert_eq!([cpu, active], sums.open(), "{endpoint}");
    }
}

proptest! {
    /// Compares the meter with a simulation that adds up microseconds. After every step, events and
    /// meter together hold all usage. At the end of an account the events are at most half a second
    /// off.
    ///
    /// Requirement: N40
    #[test]
    fn billing_events_are_the_integral_of_usage(steps in proptest::collection::vec(step(), 1..80)) {
        let (mut meter, mut micros) = (Meter::new(START), 0_u64);
        let mut having: BTreeMap<u8, (u8, u32)> = BTreeMap::new();
        // One account per VM and endpoint.
        let mut sums: BTreeMap<String, Sums> = BTreeMap::new();
        let mut keys = std::collections::BTreeSet::new();
        for step in steps.into_iter().chain([Step::Pass { micros: 1 }, Step::Accumulate]) {
            let (now, wall) = at_micros(micros);
            match step {
                Step::Pass { micros: more } => {
                    for (vm, (to, cpu)) in &having {
                        sums.entry(format!("{vm}-{to}")).or_default().use_for(*cpu, more);
                    }
                    micros += more;
                }
                Step::See { vm, endpoint: to, milli: cpu } => {
                    having.insert(vm, (to, cpu));
                    meter.observe(now, &format!("uid-{vm}"), Some(&billed(&format!("{vm}-{to}"), cpu)));
                }
                Step::Go { vm } => {
                    having.remove(&vm);
                    meter.observe(now, &format!("uid-{vm}"), None);
                }
                Step::Accumulate => {
                    for event in meter.accumulate(now, wall, &names()) {
                        prop_assert!(keys.insert(event.idempotency_key.clone()), "{event:?} has a key of another");
                        sums.entry(event.endpoint_id.clone()).or_default().report(&event);
                    }
                }
                Step::Restart => {
                    let saved = written(&meter.checkpoint(now, wall));
                    meter = Meter::restore(&saved, now, wall);
                    meter.certain(now);
                }
            }
            let (now, wall) = at_micros(micros);
            assert_nothing_is_lost(&meter.clone().checkpoint(now, wall), &mut sums);
        }
    }
}
