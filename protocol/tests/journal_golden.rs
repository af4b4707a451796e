//! Every record of the decision journal against the lines under `testdata/journal/`.
//!
//! * `testdata/journal/*.bj`: exactly the line that is written; it reads back to the same value.
//! * `testdata/journal/rejected/`: lines that mean something and are not spelt the one way, or are
//!   damaged; each is refused.

use std::collections::BTreeMap;
use std::path::PathBuf;

use protocol::journal::{
    Action, Advice, Amount, Answered, AnsweredAgain, Approval, Block, Bound, BoundLimits,
    BoundVersion, CalmPart, Checkpoint, CoreSettings, Cut, Decimal, Decision, DecodeError, Denial,
    FaultCounts, Gap, Head, Issued, LastAdvice, LfcSample, LinkEvent, Milli, MonitorPart,
    NodeState, Ongoing, Outcome, PatchPart, PluginPart, PolicyPart, Previous, Record, RequestEnd,
    RequestKind, Said, Sampled, Scaling, SetCount, SetsAnswered, ShrinkStep, Size, Stamped,
    Started, Stated, Step, SystemSample, Terms, Tick, UpscaleRecord, VmObject, Waits, Why, Wished,
    crc, decode, encode, hash_text,
};
use protocol::mode::Mode;
use protocol::monitor_v2::AskReason;
use protocol::policy::{Fault, FeedSource, Role};
use protocol::time::Span;

fn folder() -> PathBuf {
    PathBuf::from("testdata/journal")
}

fn scaling() -> Scaling {
    Scaling {
        load_average_fraction_target: Decimal(0.9),
        memory_usage_fraction_target: Decimal(0.75),
        memory_total_fraction_target: Decimal(0.9),
        enable_lfc_metrics: true,
        lfc_use_largest_window: false,
        lfc_to_memory_ratio: Decimal(0.75),
        lfc_window_size_minutes: 5,
        lfc_min_wait_before_downscale_minutes: 5,
        cpu_stable_zone_ratio: Decimal(0.0),
        cpu_mixed_zone_ratio: Decimal(0.1),
        // What is not said: lines written before there was such a setting.
        shrink_step: ShrinkStep::Unit,
        downscale_margin_units: Decimal(0.0),
        downscale_hold_seconds: 0,
        downscale_cooldown_seconds: 0,
        upscale_cooldown_seconds: 0,
        enable_monitor_estimate: false,
        memory_pressure_hold_percent: Decimal(0.0),
        mode: Mode::Full,
    }
}

fn calm_scaling() -> Scaling {
    Scaling {
        shrink_step: ShrinkStep::Whole,
        downscale_margin_units: Decimal(0.25),
        downscale_hold_seconds: 60,
        downscale_cooldown_seconds: 120,
        upscale_cooldown_seconds: 30,
        enable_monitor_estimate: true,
        memory_pressure_hold_percent: Decimal(12.5),
        mode: Mode::Full,
        ..scaling()
    }
}

fn object() -> VmObject {
    VmObject {
        actual: Some(Size(1000, 4 << 30)),
        cpu: [250, 4000, 1000],
        last: 7,
        mem: [1, 16, 4],
        migrating: false,
        own: None,
        reached: Some(Stamped(6, 1, 41_000_000)),
        slot: 1 << 30,
        version: Some(812),
    }
}

fn wished() -> Wished {
    Wished {
        reason: Some(AskReason::PsiSome),
        wanted: Some(6 << 30),
    }
}

fn sample(load1: f64, usage: f64) -> Step {
    Step::System(SystemSample {
        load1,
        load5: 0.31,
        usage,
        cached: 734_003_200.0,
        estimate: None,
        pressure: None,
    })
}

/// With what a monitor adds where that has a vote: both, one, the other.
fn signals() -> Block {
    let with = |estimate, pressure| {
        let Step::System(plain) = sample(0.53, 1_879_048_192.0) else {
            unreachable!("it is one")
        };
        Step::System(SystemSample {
            estimate,
            pressure,
            ..plain
        })
    };
    Block(vec![
        (41_230_010, with(Some(1_610_612_736.0), Some(3.25))),
        (46_230_012, with(Some(1_610_612_737.0), None)),
        (51_230_015, with(None, Some(0.0))),
        (56_230_017, sample(0.53, 1_879_048_192.0)),
    ])
}

fn block() -> Block {
    let windows = LfcSample {
        hits: 812_345.0,
        misses: 1_234.0,
        writes: 99.5,
        pages: vec![1000.0, 1200.0, 1200.0],
    };
    Block(vec![
        (41_230_010, sample(0.53, 1_879_048_192.0)),
        (41_733_120, Step::Tick),
        (41_736_004, Step::Renewed),
        (42_000_000, Step::Lfc(windows)),
        (46_230_471, sample(0.61, 1_879_048_193.5)),
        (46_500_000, Step::Again(Some(815))),
        (46_500_001, Step::Again(None)),
    ])
}

/// With every member in it: the agent's tests rest on that.
fn checkpoint() -> Checkpoint {
    Checkpoint {
        calm: CalmPart {
            below: Some(41_000_000),
            grown: Some(40_000_000),
            shrunk: Some(39_000_000),
        },
        faults: FaultCounts {
            approved_above_use: 1,
            use_above_permit: 2,
            downscale_below_denied: 3,
            desired_out_of_bounds: 4,
            invalid_permit: 5,
            unknown_reply: 6,
            observation_lost: 7,
        },
        issued: vec![40_000_000, 41_232_000],
        metrics: Some(Block(block().0.split_off(3).split_at(2).0.to_vec())),
        monitor: MonitorPart {
            again: Some(2_500_000),
            approved: Some(Approval(Size(1000, 4 << 30), Size(1000, 4 << 30))),
            denied: Some(Denial(39_000_000, Size(1000, 4 << 30), Size(750, 3 << 30))),
            doubt: true,
            down_failed: Some(37_000_000),
            least: Some(Size(1000, 3_500 << 20)),
            ongoing: Some(Ongoing {
                id: 31,
                rev: Stamped(7, 1, 41_232_000),
                size: Size(1250, 5 << 30),
                up: true,
            }),
            rev: Issued(6, 2),
            up_failed: Some(38_000_000),
            wish: Some(UpscaleRecord(41_100_000, Size(1000, 4 << 30), wished())),
        },
        name: "default/pg".into(),
        next: 32,
        obj: VmObject {
            migrating: true,
            own: Some(calm_scaling()),
            reached: Some(Stamped(6, 1, 0)),
            ..object()
        },
        patch: PatchPart {
            failed: Some(36_000_000),
            last: Some(41_000_000),
            moved: true,
            ongoing: Some((30, Size(1250, 5 << 30))),
            rev: Issued(6, 1),
            seen: Some((814, Size(1250, 5 << 30))),
            target: Stamped(7, 1, 41_232_000),
            uncertain: Some((Size(1000, 4 << 30), Size(1250, 5 << 30))),
            version: Some(811),
        },
        policy: PolicyPart::default(),
        plugin: PluginPart {
            failed: Some(20_000_000),
            last: Some((41_232_008, Size(1250, 5 << 30), Stamped(7, 1, 41_232_008))),
            migrating: Some(35_000_000),
            ongoing: Some(29),
            permit: Some(Size(1250, 5 << 30)),
            rev: Issued(7, 1),
            unanswered: true,
        },
        rev: 7,
        t: 41_232_010,
        target: Stamped(7, 1, 41_232_000),
        tick: 15_042_000,
        vm: 17,
        want: Some(Size(1250, 5 << 30)),
        warn: 3,
    }
}

fn decision() -> Decision {
    Decision {
        by: vec!["permit".into()],
        cu: Amount::Units(4),
        started: Started {
            permit: Some(Amount::Units(5)),
            ..Started::default()
        },
        fault: 0,
        r: "memory".into(),
        rev: 7,
        t: 41_232_008,
        to: Some(Amount::Units(5)),
        vm: 17,
        votes: BTreeMap::from([
            ("cpu".into(), Milli::of(1.1)),
            ("memory".into(), Milli::of(4.2345)),
        ]),
        want: 5,
        warn: vec![],
    }
}

fn heads() -> Vec<(&'static str, Record)> {
    let head = Head {
        build: "0.1.0".into(),
        cu: Size(250, 1 << 30),
        node: "node-1".into(),
        part: "agent".into(),
        prev: Some(Previous {
            h: 0x0f31_c2aa,
            seq: 41,
        }),
        run: 1_795_000_000_500_000,
        seq: 42,
        t: 1_000_012,
        v: 1,
        wall: 1_795_000_000_000_000,
    };
    let first = Head {
        prev: None,
        seq: 1,
        ..head.clone()
    };
    let waits = Waits {
        plugin_retry: 3_000_000,
        plugin_denied: 2_000_000,
        neonvm_retry: 5_000_000,
        monitor_retry: 3_000_000,
        monitor_denied: 5_000_000,
        monitor_wish: 10_000_000,
        migration_hold: 60_000_000,
    };
    let core = CoreSettings {
        lfc_age: None,
        scaling: scaling(),
        system_age: Some(15_000_000),
        unit: Size(250, 1 << 30),
        waits,
    };
    let node = NodeState {
        core: Some(core),
        engine: None,
        scheduler: None,
        t: 1_000_012,
    };
    let scheduler = NodeState {
        core: None,
        engine: None,
        scheduler: Some("autoscale-scheduler-1 127.7.0.2".into()),
        t: 1_100_000,
    };
    let engine = NodeState {
        core: None,
        engine: Some("bellows-policy 0.1.0".into()),
        scheduler: None,
        t: 1_200_000,
    };
    let format_2 = Head {
        v: 2,
        ..first.clone()
    };
    vec![
        ("head", Record::Head(head)),
        ("head_first", Record::Head(first)),
        ("head_format_2", Record::Head(format_2)),
        ("node", Record::Node(node)),
        ("node_scheduler", Record::Node(scheduler)),
        ("node_engine", Record::Node(engine)),
    ]
}

/// Advice and limits of a policy that decides, which are steps of the core.
fn advice_steps() -> Block {
    let advice = |digest, said| Step::Advice(Advice { digest, said });
    Block(vec![
        (41_230_010, sample(0.53, 1_879_048_192.0)),
        (41_230_500, Step::Terms(Some(terms()))),
        (41_231_000, advice(0x5be1_a7c0, Said::Want(5))),
        (46_231_000, advice(0x5be1_a7c0, Said::Hold)),
        (51_231_000, advice(0x5be1_a7c0, Said::Fault(Fault::Late))),
        (52_000_000, advice(0x77ab_90c4, Said::Want(u32::MAX))),
        (53_000_000, Step::Terms(None)),
    ])
}

fn terms() -> Terms {
    Terms {
        digest: 0x5be1_a7c0,
        fallback_after: Some(Span::from_secs(600)),
        max_units: Some(16),
        shrink_units_per_minute: Some(4),
    }
}

/// The full checkpoint of a VM that a policy decides about.
fn checkpoint_policy() -> Checkpoint {
    Checkpoint {
        policy: PolicyPart {
            asked: 30_000_000,
            credit: 90_000_000,
            credited: 40_500_000,
            fallen: true,
            fault: Some((41_000_000, Fault::Late)),
            last: Some(LastAdvice {
                at: 40_000_000,
                cu: Some(5),
            }),
            terms: Some(terms()),
        },
        warn: 98_304,
        ..checkpoint()
    }
}

/// Steps of policies between those of the core.
fn policy_steps() -> Block {
    let again = |took, starved| AnsweredAgain {
        took,
        starved,
        vms: 2,
    };
    Block(vec![
        (41_230_010, sample(0.53, 1_879_048_192.0)),
        (41_230_422, Step::Advised(again(412, 0))),
        (41_231_000, Step::Shadowed(again(990, 1500))),
        (41_232_000, Step::Shadowed(again(2_000, 1500))),
        (
            41_240_000,
            Step::Feeds(vec![Some(3.0), None, Some(0.333_333)]),
        ),
        (46_240_000, Step::Feeds(vec![Some(4.5), Some(1.0), None])),
    ])
}

fn version(digest: &str, since: u64) -> BoundVersion {
    BoundVersion {
        digest: digest.repeat(8),
        since,
    }
}

fn of_policies() -> Vec<(&'static str, Record)> {
    let bound = Bound {
        every: 5_000_000,
        feeds: vec![FeedSource {
            metric: "ci_jobs_running".into(),
            name: "jobs".into(),
            port: 9200,
        }],
        labels: BTreeMap::from([("app".into(), "pg".into())]),
        limits: BoundLimits {
            fallback_after_seconds: Some(-1),
            max_units: Some(16),
            shrink_units_per_minute: Some(4),
            vms_shrunk_at_once_percent: Some(20),
        },
        name: Some("db".into()),
        roles: BTreeMap::from([
            (Role::Live, version("5be1a7c0", 1_000_000)),
            (Role::Shadow, version("77ab90c4", 41_230_010)),
        ]),
        t: 41_230_010,
        vm: 17,
        wall: 1_795_000_000_000_000,
    };
    let answered = Answered {
        role: Role::Live,
        cu: Some(5),
        cut: None,
        dg: "5be1a7c0".into(),
        fault: None,
        hold: false,
        r#in: 0x9f31_c2aa,
        note: None,
        r: Some("memory".into()),
        s: Milli(0),
        t: 41_230_422,
        took: 412,
        vm: 17,
        vms: 2,
        votes: BTreeMap::from([("cpu".into(), Milli(1100)), ("memory".into(), Milli(3700))]),
    };
    let none = Bound {
        t: 41_230_011,
        vm: 17,
        ..Bound::default()
    };
    let hold = Answered {
        role: Role::Shadow,
        cu: None,
        cut: Some(Cut::Quota),
        hold: true,
        note: Some("a \"note\"".into()),
        r: Some("no_data".into()),
        votes: BTreeMap::new(),
        ..answered.clone()
    };
    let fault = Answered {
        cu: None,
        fault: Some(Fault::Steps),
        r: None,
        votes: BTreeMap::new(),
        ..answered.clone()
    };
    let block = policy_steps();
    vec![
        ("bound", Record::Bound(Box::new(bound))),
        ("bound_none", Record::Bound(Box::new(none))),
        ("answered", Record::Answered(Box::new(answered))),
        ("answered_hold", Record::Answered(Box::new(hold))),
        ("answered_fault", Record::Answered(Box::new(fault))),
        (
            "samples_policies",
            Record::Sampled(Sampled { vm: 17, block }),
        ),
    ]
}

fn of_sets() -> Vec<(&'static str, Record)> {
    let web = SetCount {
        command: Some("drain".into()),
        has: 2,
        kv: 0x0a1b_2c3d,
        to: Some(3),
        v: Some(2),
        want: 5,
    };
    let live = SetsAnswered {
        role: Role::Live,
        dg: "5be1a7c0".into(),
        fault: None,
        r#in: 0x9f31_c2aa,
        name: "web".into(),
        nodes: Some(4),
        note: None,
        ns: "default".into(),
        sets: BTreeMap::from([("web".into(), web)]),
        t: 41_230_422,
        took: 412,
        why: Some("load".into()),
    };
    let api = SetCount {
        has: 1,
        want: 0,
        ..SetCount::default()
    };
    let shadow = SetsAnswered {
        role: Role::Shadow,
        dg: "77ab90c4".into(),
        nodes: None,
        sets: BTreeMap::from([("api".into(), api)]),
        why: None,
        ..live.clone()
    };
    let fault = SetsAnswered {
        fault: Some(Fault::Late),
        note: Some("no answer in 50 ms".into()),
        sets: BTreeMap::new(),
        ..shadow.clone()
    };
    [
        ("sets_answered", live),
        ("sets_answered_shadow", shadow),
        ("sets_answered_fault", fault),
    ]
    .map(|(name, record)| (name, Record::SetsAnswered(Box::new(record))))
    .into()
}

fn records() -> Vec<(&'static str, Record)> {
    let outcome = Outcome {
        again: None,
        end: RequestEnd::Done,
        got: Some(Size(1250, 5 << 30)),
        id: 29,
        least: None,
        migrate: true,
        ms: BTreeMap::from([("permit".into(), 3)]),
        rev: 7,
        t: 41_235_224,
        version: None,
        vm: 17,
        what: RequestKind::Permit,
    };
    let verified = Outcome {
        got: None,
        id: 0,
        migrate: false,
        ms: BTreeMap::from([("guest".into(), 212), ("qmp".into(), 9)]),
        what: RequestKind::Verified,
        ..outcome.clone()
    };
    let refused = Outcome {
        end: RequestEnd::Refused,
        what: RequestKind::Down,
        ..verified.clone()
    };
    let refused_below = Outcome {
        again: Some(2_500_000),
        least: Some(Size(1000, 3_500 << 20)),
        ..refused.clone()
    };
    let patched = Outcome {
        ms: BTreeMap::from([("patch".into(), 9)]),
        version: Some(813),
        what: RequestKind::Patch,
        ..verified.clone()
    };
    let odd = Decision {
        by: vec!["min".into(), "monitor_absent".into()],
        cu: Amount::Exact(Size(1001, 4_294_967_297)),
        started: Started::default(),
        fault: 2,
        r: "idle".into(),
        rev: 0,
        to: None,
        votes: BTreeMap::new(),
        want: 0,
        warn: vec!["missing_metrics".into()],
        ..decision()
    };
    let held = Decision {
        by: vec![],
        started: Started::default(),
        r: "memory_pressure".into(),
        to: None,
        votes: BTreeMap::from([
            ("cpu".into(), Milli::of(1.1)),
            ("memory".into(), Milli::of(2.25)),
            ("memory_pressure".into(), Milli::of(4.0)),
            ("monitor_estimate".into(), Milli::of(1.9)),
        ]),
        want: 3,
        ..decision()
    };
    let stated = |monitor, obj| {
        Record::Vm(Box::new(Stated {
            monitor,
            obj,
            t: 41_100_000,
            vm: 17,
            wish: Wished::default(),
        }))
    };
    let gap = |n, span, vm, why| {
        Record::Gap(Gap {
            n,
            span,
            t: 50_000_000,
            vm,
            why,
        })
    };
    let action = Action {
        by: "uid 1000".into(),
        what: "pause \"pg\"\n".into(),
        t: 60_000_000,
        vm: Some(17),
        ..Action::default()
    };
    let begun = Action {
        by: "ann (uid 1000)".into(),
        what: "policy apply".into(),
        on: Some("db".into()),
        t: 61_000_000,
        to: Some("5be1a7c0".into()),
        why: Some("a \"small\" step".into()),
        ..Action::default()
    };
    let failed = Action {
        note: Some("policy db: the object has been modified".into()),
        ok: Some(false),
        t: 61_250_000,
        ..begun.clone()
    };
    let mut all = heads();
    all.extend(of_policies());
    all.extend(of_sets());
    all.extend([
        ("checkpoint", Record::Checkpoint(Box::new(checkpoint()))),
        (
            "checkpoint_policy",
            Record::Checkpoint(Box::new(checkpoint_policy())),
        ),
        (
            "samples_advice",
            Record::Sampled(Sampled {
                vm: 17,
                block: advice_steps(),
            }),
        ),
        (
            "samples",
            Record::Sampled(Sampled {
                vm: 17,
                block: block(),
            }),
        ),
        (
            "samples_signals",
            Record::Sampled(Sampled {
                vm: 17,
                block: signals(),
            }),
        ),
        ("vm_object", stated(None, Some(object()))),
        ("vm_monitor", stated(Some(LinkEvent::Wish), None)),
        (
            "vm_wish",
            Record::Vm(Box::new(Stated {
                monitor: Some(LinkEvent::Wish),
                obj: None,
                t: 41_100_000,
                vm: 17,
                wish: wished(),
            })),
        ),
        (
            "tick",
            Record::Tick(Tick {
                h: 0x9f31_c2aa,
                n: 6,
                t: 46_500_000,
                vm: 17,
            }),
        ),
        ("decision", Record::Decision(Box::new(decision()))),
        ("decision_odd", Record::Decision(Box::new(odd))),
        ("decision_held", Record::Decision(Box::new(held))),
        ("outcome_permit", Record::Outcome(Box::new(outcome))),
        ("outcome_patch", Record::Outcome(Box::new(patched))),
        ("outcome_verified", Record::Outcome(Box::new(verified))),
        ("outcome_refused", Record::Outcome(Box::new(refused))),
        (
            "outcome_refused_below",
            Record::Outcome(Box::new(refused_below)),
        ),
        ("action", Record::Action(action)),
        ("action_begun", Record::Action(begun)),
        ("action_failed", Record::Action(failed)),
        ("gap_torn", gap(311, 0, None, Why::TornTail)),
        ("gap_noisy", gap(12, 4_000_000, Some(17), Why::Noisy)),
    ]);
    all
}

#[test]
fn every_record_is_exactly_its_line() {
    let mut files = std::collections::BTreeSet::new();
    for (name, record) in records() {
        let line = encode(&record);
        let path = folder().join(format!("{name}.bj"));
        files.insert(path.clone());
        let golden = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}; the line is\n{line}", path.display()));
        assert_eq!(golden, line, "{name}");
        assert_eq!(decode(golden.as_bytes()), Ok(record), "{name}");
    }
    for entry in std::fs::read_dir(folder()).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        assert!(
            path.is_dir() || files.contains(&path),
            "{} stands for no record",
            path.display()
        );
    }
}

/// A line with a good checksum around any text.
fn sealed(json: &str) -> String {
    format!("{} {json}\n", hash_text(crc(0, json.as_bytes())))
}

#[test]
fn another_spelling_of_the_same_meaning_is_refused() {
    let good = r#"{"h":"9f31c2aa","k":"T","n":6,"t":46500000,"vm":17}"#;
    assert!(decode(sealed(good).as_bytes()).is_ok());
    for other in [
        r#"{"k":"T","h":"9f31c2aa","n":6,"t":46500000,"vm":17}"#,
        r#"{"h":"9F31c2aa","k":"T","n":6,"t":46500000,"vm":17}"#,
        r#"{"h":"+9f31c2a","k":"T","n":6,"t":46500000,"vm":17}"#,
        r#"{"h": "9f31c2aa","k":"T","n":6,"t":46500000,"vm":17}"#,
        r#"{"h":"9f31c2aa","k":"T","n":6,"t":46500000,"vm":17} "#,
        r#"{"h":"9f31c2a\u0061","k":"T","n":6,"t":46500000,"vm":17}"#,
        r#"{"h":"9f31c2aa","k":"T","n":6,"n":6,"t":46500000,"vm":17}"#,
        r#"{"h":"9f31c2aa","k":"T","n":6.0,"t":46500000,"vm":17}"#,
        r#"{"h":"9f31c2aa","k":"T","n":6,"t":46500000,"vm":17,"x":1}"#,
        r#"{"h":"9f31c2aa","k":"T","n":6,"t":9007199254740993,"vm":17}"#,
        r#"{"h":"9f31c2aa","k":"Q","n":6,"t":46500000,"vm":17}"#,
        r#"{"h":null,"k":"T","n":6,"t":46500000,"vm":17}"#,
    ] {
        assert!(decode(sealed(other).as_bytes()).is_err(), "{other}");
    }
    for (name, is_shape) in [
        ("rejected/upper_case.bj", false),
        ("rejected/no_blank.bj", true),
    ] {
        let line = std::fs::read(folder().join(name)).expect("the line is there");
        match decode(&line) {
            Err(DecodeError::Shape) => assert!(is_shape, "{name}"),
            Err(DecodeError::Checksum { .. }) => assert!(!is_shape, "{name}"),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn an_explicit_default_is_refused() {
    let line = encode(&Record::Decision(Box::new(decision())));
    let (_, json) = line.trim_end().split_at(9);
    let other = json.replacen(r#","k":"D""#, r#","fault":0,"k":"D""#, 1);
    assert_eq!(
        decode(sealed(&other).as_bytes()),
        Err(DecodeError::NotCanonical)
    );
}
