//! Messages of the runner's control link and of the guest daemon, against the bytes under
//! `testdata/runner/`.
//!
//! * `testdata/runner/*.json`: exactly what we write; it reads back to the same value.
//! * `testdata/runner/accepted/`: what an older or newer peer of ours may write.
//! * `testdata/runner/rejected/`: orders that are refused rather than half understood.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::{Path, PathBuf};

use protocol::runner::{
    CpuState, ExitReason, ExitReport, GuestState, MemoryState, QuotaState, ResizeProblem,
    ResizeReport, RunnerPhase, RunnerState, SizeOrder, StageStamp, StopOrder,
};
use protocol::trace::{Stage, TraceId};
use protocol::units::{Bytes, MilliCpu};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

fn folder(name: &str) -> PathBuf {
    Path::new("testdata/runner").join(name)
}

fn golden(name: &str) -> String {
    let path = folder("").join(format!("{name}.json"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Names of the files in a folder, without `.json`, so that no file goes unread.
fn names(of: &str) -> BTreeSet<String> {
    std::fs::read_dir(folder(of))
        .expect("the folder is there")
        .filter_map(|entry| {
            let name = entry
                .expect("entry")
                .file_name()
                .into_string()
                .expect("UTF-8");
            name.strip_suffix(".json").map(str::to_owned)
        })
        .collect()
}

fn same<T: Serialize + DeserializeOwned + PartialEq + Debug>(name: &str, value: &T) {
    let text = golden(name);
    let written = serde_json::to_string_pretty(value).expect("encodes");
    assert_eq!(written, text.trim_end(), "{name}: what is written");
    assert_eq!(&read::<T>(name), value, "{name}: what is read");
}

fn read<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_str(&golden(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn order(milli_cpu: u32) -> SizeOrder {
    let trace = TraceId {
        vm: "default/example".into(),
        revision: 7,
    };
    SizeOrder {
        cpu: MilliCpu(milli_cpu),
        memory: Bytes::gib(3),
        trace,
    }
}

fn booting() -> RunnerState {
    RunnerState {
        generation: 1,
        phase: RunnerPhase::Booting,
        qemu_pid: None,
        qemu_version: None,
        accel: "tcg".into(),
        boot_id: None,
        guest_kernel: None,
        boot_ms: None,
        cpus: CpuState {
            limit: MilliCpu(250),
            plugged: 1,
            guest_online: None,
            ahead: None,
        },
        memory: MemoryState {
            base: Bytes::gib(1),
            plugged: Bytes(0),
            requested: Bytes(0),
            guest_total: None,
        },
        resize: None,
        orders: None,
        exit: None,
        quota: QuotaState::Unset,
        outgoing: None,
        incoming: None,
        guest_silent: None,
        programs: Vec::new(),
        guest_parts: std::collections::BTreeMap::new(),
        disk_full: None,
    }
}

fn resizing() -> RunnerState {
    let stamp = |stage, start_unix_us, duration_us| StageStamp {
        stage,
        start_unix_us,
        duration_us,
    };
    RunnerState {
        generation: 42,
        phase: RunnerPhase::Running,
        qemu_pid: Some(4711),
        qemu_version: Some("10.0.2".into()),
        accel: "kvm".into(),
        boot_id: Some("b0075".into()),
        guest_kernel: Some("6.1.0-40-amd64".into()),
        boot_ms: Some(9000),
        cpus: CpuState {
            limit: MilliCpu(2000),
            plugged: 2,
            guest_online: Some(1),
            ahead: None,
        },
        memory: MemoryState {
            base: Bytes::gib(1),
            plugged: Bytes::mib(1920),
            requested: Bytes::gib(2),
            guest_total: Some(Bytes(2_980_616 << 10)),
        },
        resize: Some(ResizeReport {
            order: order(2000),
            done: false,
            stages: vec![
                stamp(Stage::Qmp, 1_704_164_645_000_001, 1234),
                stamp(Stage::GuestVisible, 1_704_164_645_001_235, 5),
            ],
            problem: Some(ResizeProblem::GuestBlind {
                expected: "2 CPUs".into(),
                seen: "1 CPU".into(),
            }),
        }),
        orders: Some(3),
        exit: None,
        quota: QuotaState::Enforced { milli: 2000 },
        outgoing: None,
        incoming: None,
        guest_silent: None,
        programs: Vec::new(),
        guest_parts: std::collections::BTreeMap::new(),
        disk_full: None,
    }
}

fn exited() -> RunnerState {
    RunnerState {
        generation: 99,
        phase: RunnerPhase::Exited,
        qemu_pid: None,
        accel: "tcg".into(),
        cpus: CpuState {
            limit: MilliCpu(1000),
            plugged: 1,
            guest_online: Some(1),
            ahead: None,
        },
        memory: MemoryState {
            base: Bytes::gib(1),
            plugged: Bytes(0),
            requested: Bytes(0),
            guest_total: Some(Bytes(1_015_432 << 10)),
        },
        resize: None,
        orders: None,
        exit: Some(ExitReport {
            success: false,
            reason: ExitReason::GuestPanic,
            code: Some(0),
            message: "Kernel panic - not syncing".into(),
        }),
        outgoing: None,
        incoming: None,
        quota: QuotaState::Unavailable {
            reason: "no cpu controller".into(),
        },
        ..resizing()
    }
}

#[test]
fn orders_are_these_bytes() {
    same("size_order", &order(1500));
    same("stop_order", &StopOrder { grace_ms: 5000 });
}

#[test]
fn states_are_these_bytes() {
    same("state_booting", &booting());
    same("state_resizing", &resizing());
    same("state_exited", &exited());
    let guest = GuestState {
        generation: 3,
        cpus_online: 2,
        cpus_present: 2,
        cpus_possible: 8,
        mem_total: Bytes(2_980_616 << 10),
        mem_available: Bytes::gib(1),
        boot_id: "b0075".into(),
        kernel: "6.1.0-40-amd64".into(),
        uptime_s: 61,
        programs: Vec::new(),
        parts: protocol::parts::PartStates::new(),
    };
    same("guest_state", &guest);
}

#[test]
fn every_phase_and_reason_has_its_word() {
    for (phase, word) in [
        (RunnerPhase::Booting, "booting"),
        (RunnerPhase::Receiving, "receiving"),
        (RunnerPhase::Running, "running"),
        (RunnerPhase::Stopping, "stopping"),
        (RunnerPhase::Exited, "exited"),
    ] {
        assert_eq!(serde_json::to_value(phase).expect("encodes"), word);
        assert_eq!(
            serde_json::from_value::<RunnerPhase>(json!(word)).expect("decodes"),
            phase
        );
    }
    for (reason, word) in [
        (ExitReason::GuestShutdown, "guest_shutdown"),
        (ExitReason::Requested, "requested"),
        (ExitReason::Killed, "killed"),
        (ExitReason::GuestPanic, "guest_panic"),
        (ExitReason::GuestReset, "guest_reset"),
        (ExitReason::StartFailed, "start_failed"),
        (ExitReason::QemuDied, "qemu_died"),
        (ExitReason::Moved, "moved"),
    ] {
        assert_eq!(serde_json::to_value(reason).expect("encodes"), word);
        assert_eq!(
            serde_json::from_value::<ExitReason>(json!(word)).expect("decodes"),
            reason
        );
    }
}

#[test]
fn every_problem_of_a_resize_has_its_form() {
    let missing = Bytes::mib(128);
    for (problem, form) in [
        (
            ResizeProblem::Qmp {
                command: "device_add".into(),
                message: "no".into(),
            },
            json!({"kind": "qmp", "command": "device_add", "message": "no"}),
        ),
        (
            ResizeProblem::MemoryStuck { missing },
            json!({"kind": "memory_stuck", "missing": "128Mi"}),
        ),
        (
            ResizeProblem::CpuStuck { missing: 1 },
            json!({"kind": "cpu_stuck", "missing": 1}),
        ),
        (
            ResizeProblem::GuestBlind {
                expected: "a".into(),
                seen: "b".into(),
            },
            json!({"kind": "guest_blind", "expected": "a", "seen": "b"}),
        ),
        (
            ResizeProblem::Moving { id: "u".into() },
            json!({"kind": "moving", "id": "u"}),
        ),
        (
            ResizeProblem::OutOfRange {
                rule: "at most 4Gi".into(),
            },
            json!({"kind": "out_of_range", "rule": "at most 4Gi"}),
        ),
    ] {
        assert_eq!(serde_json::to_value(&problem).expect("encodes"), form);
        assert_eq!(
            serde_json::from_value::<ResizeProblem>(form).expect("decodes"),
            problem
        );
    }
}

#[test]
fn older_and_newer_peers_are_understood() {
    assert_eq!(
        read::<SizeOrder>("accepted/size_order.numbers"),
        order(1500)
    );
    assert_eq!(
        read::<RunnerState>("accepted/state_booting.older_runner"),
        booting()
    );
    assert_eq!(
        read::<RunnerState>("accepted/state_booting.newer_runner"),
        booting()
    );
    let used = [
        "size_order.numbers",
        "state_booting.older_runner",
        "state_booting.newer_runner",
    ];
    assert_eq!(names("accepted"), used.map(str::to_owned).into());
}

#[test]
fn orders_that_are_not_understood_whole_are_refused() {
    let mut used = BTreeSet::new();
    for (name, why) in [
        ("size_order.unknown_member", "unknown field `force`"),
        ("size_order.no_trace", "missing field `trace`"),
        ("size_order.negative", "out of range"),
    ] {
        let text = golden(&format!("rejected/{name}"));
        let error = serde_json::from_str::<SizeOrder>(&text)
            .expect_err(name)
            .to_string();
        assert!(error.contains(why), "{name}: {error}");
        used.insert(name.to_owned());
    }
    for (name, why) in [
        ("stop_order.unknown_member", "unknown field `now`"),
        ("stop_order.empty", "missing field `grace_ms`"),
    ] {
        let text = golden(&format!("rejected/{name}"));
        let error = serde_json::from_str::<StopOrder>(&text)
            .expect_err(name)
            .to_string();
        assert!(error.contains(why), "{name}: {error}");
        used.insert(name.to_owned());
    }
    assert_eq!(names("rejected"), used);
}

#[test]
fn every_golden_file_is_used() {
    let used = [
        "size_order",
        "stop_order",
        "state_booting",
        "state_resizing",
        "state_exited",
        "guest_state",
    ];
    assert_eq!(names(""), used.map(str::to_owned).into());
}
