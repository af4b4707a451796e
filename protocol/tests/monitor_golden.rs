//! Every frame of the monitor link, both directions, against the bytes under `testdata/monitor/`.
//!
//! * `testdata/monitor/*.json`: exactly what we write; it reads back to the same value.
//! * `testdata/monitor/accepted/`: other spellings a peer may use; they read as the value given
//!   here.
//! * `testdata/monitor/rejected/`: what an agent must not send; each gives this kind of error under
//!   this id.
//!
//! Requirement: N39. The types exist once, here, and both sides use them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use protocol::monitor::{
    AgentBody, AgentFrame, Allocation, FrameErrorKind, MonitorBody, MonitorFrame, Version,
    VersionRange, VersionResponse,
};

fn folder(name: &str) -> PathBuf {
    Path::new("testdata/monitor").join(name)
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

const fn size(cpu: f64, mem: u64) -> Allocation {
    Allocation { cpu, mem }
}

fn downscale(id: u64, target: Allocation) -> AgentFrame {
    let body = AgentBody::DownscaleRequest { target };
    AgentFrame { body, id }
}

fn upscale(id: u64, granted: Allocation) -> AgentFrame {
    let body = AgentBody::UpscaleNotification { granted };
    AgentFrame { body, id }
}

fn health(id: u64) -> AgentFrame {
    let body = AgentBody::HealthCheck;
    AgentFrame { body, id }
}

fn agent_error(id: u64, error: &str, invalid: bool) -> AgentFrame {
    let error = error.to_owned();
    let body = if invalid {
        AgentBody::InvalidMessage { error }
    } else {
        AgentBody::InternalError { error }
    };
    AgentFrame { body, id }
}

const fn monitor(id: u64, body: MonitorBody) -> MonitorFrame {
    MonitorFrame { body, id }
}

fn result(id: u64, ok: bool, status: &str) -> MonitorFrame {
    let status = status.to_owned();
    monitor(id, MonitorBody::DownscaleResult { ok, status })
}

fn agent_goldens() -> Vec<(&'static str, AgentFrame)> {
    vec![
        ("agent_downscale_request", downscale(4, size(0.5, 2 << 30))),
        ("agent_upscale_notification", upscale(6, size(2.0, 8 << 30))),
        ("agent_health_check", health(2)),
        ("agent_invalid_message", agent_error(4, "text", true)),
        ("agent_internal_error", agent_error(4, "text", false)),
    ]
}

fn monitor_goldens() -> Vec<(&'static str, MonitorFrame)> {
    let error = || "text".to_owned();
    vec![
        ("monitor_downscale_result_approved", result(4, true, "text")),
        (
            "monitor_downscale_result_refused",
            result(2, false, "\"quoted\" text\nin two lines"),
        ),
        (
            "monitor_upscale_confirmation",
            monitor(6, MonitorBody::UpscaleConfirmation),
        ),
        (
            "monitor_upscale_request",
            monitor(3, MonitorBody::UpscaleRequest),
        ),
        ("monitor_health_check", monitor(2, MonitorBody::HealthCheck)),
        (
            "monitor_invalid_message",
            monitor(4, MonitorBody::InvalidMessage { error: error() }),
        ),
        (
            "monitor_internal_error",
            monitor(4, MonitorBody::InternalError { error: error() }),
        ),
    ]
}

#[test]
fn n39_handshake_frames_are_these_bytes() {
    let text = golden("handshake_range");
    assert_eq!(
        serde_json::to_string(&VersionRange::V1).expect("encodes"),
        text
    );
    assert_eq!(
        serde_json::from_str::<VersionRange>(&text).expect("decodes"),
        VersionRange::V1
    );
    let theirs = VersionRange {
        min: Version(2),
        max: Version(3),
    };
    let refusal = VersionRange::V1
        .highest_common(theirs)
        .expect_err("no common version");
    for (name, answer) in [
        ("handshake_version", VersionResponse::Version(Version::V1)),
        ("handshake_error", VersionResponse::Error(refusal)),
    ] {
        let text = golden(name);
        assert_eq!(serde_json::to_string(&answer).expect("encodes"), text);
        assert_eq!(
            serde_json::from_str::<VersionResponse>(&text).expect("decodes"),
            answer
        );
    }
}

#[test]
fn n39_agent_frames_are_these_bytes() {
    for (name, frame) in agent_goldens() {
        let text = golden(name);
        assert_eq!(frame.encode(), text, "{name}");
        assert_eq!(
            serde_json::to_string(&frame).expect("encodes"),
            text,
            "{name}"
        );
        assert_eq!(AgentFrame::decode(&text), Ok(frame.clone()), "{name}");
        assert_eq!(
            serde_json::from_str::<AgentFrame>(&text).expect("decodes"),
            frame,
            "{name}"
        );
    }
}

#[test]
fn n39_monitor_frames_are_these_bytes() {
    for (name, frame) in monitor_goldens() {
        let text = golden(name);
        assert_eq!(frame.encode(), text, "{name}");
        assert_eq!(
            serde_json::to_string(&frame).expect("encodes"),
            text,
            "{name}"
        );
        assert_eq!(MonitorFrame::decode(&text), Ok(frame.clone()), "{name}");
        assert_eq!(
            serde_json::from_str::<MonitorFrame>(&text).expect("decodes"),
            frame,
            "{name}"
        );
    }
}

#[test]
fn every_golden_file_is_used() {
    let mut used: BTreeSet<String> = ["handshake_range", "handshake_version", "handshake_error"]
        .map(str::to_owned)
        .into();
    used.extend(agent_goldens().into_iter().map(|(name, _)| name.to_owned()));
    used.extend(
        monitor_goldens()
            .into_iter()
            .map(|(name, _)| name.to_owned()),
    );
    assert_eq!(names(""), used);
}

#[test]
fn other_spellings_of_agents_are_read() {
    let cases = [
        (
            "agent_downscale_request.type_first",
            downscale(2, size(0.5, 1 << 30)),
        ),
        (
            "agent_upscale_notification.float_cpu",
            upscale(4, size(1.0, 4 << 30)),
        ),
        ("agent_health_check.type_first", health(6)),
        ("agent_health_check.no_content", health(6)),
        ("agent_health_check.newline_at_end", health(8)),
        ("agent_health_check.float_id", health(10)),
        ("agent_health_check.unknown_members", health(12)),
        ("agent_health_check.largest_id", health(u64::MAX)),
        (
            "agent_invalid_message.no_content",
            agent_error(4, "text", true),
        ),
        (
            "agent_internal_error.nothing_but_type",
            agent_error(0, "", false),
        ),
    ];
    for (name, frame) in &cases {
        let text = golden(&format!("accepted/{name}"));
        assert_eq!(AgentFrame::decode(&text).as_ref(), Ok(frame), "{name}");
    }
    let ours: BTreeSet<_> = cases.iter().map(|(name, _)| (*name).to_owned()).collect();
    let there = names("accepted")
        .into_iter()
        .filter(|name| name.starts_with("agent_"));
    assert_eq!(there.collect::<BTreeSet<_>>(), ours);
}

#[test]
fn other_spellings_of_monitors_are_read() {
    let no_text = MonitorBody::InvalidMessage {
        error: String::new(),
    };
    let cases = [
        (
            "monitor_upscale_request.deployed_first_id",
            monitor(1, MonitorBody::UpscaleRequest),
        ),
        (
            "monitor_downscale_result.lower_case",
            result(4, true, "text"),
        ),
        (
            "monitor_health_check.unknown_members",
            monitor(2, MonitorBody::HealthCheck),
        ),
        ("monitor_invalid_message.no_error", monitor(4, no_text)),
    ];
    for (name, frame) in &cases {
        let text = golden(&format!("accepted/{name}"));
        assert_eq!(MonitorFrame::decode(&text).as_ref(), Ok(frame), "{name}");
    }
    let ours: BTreeSet<_> = cases.iter().map(|(name, _)| (*name).to_owned()).collect();
    let there = names("accepted")
        .into_iter()
        .filter(|name| name.starts_with("monitor_"));
    assert_eq!(there.collect::<BTreeSet<_>>(), ours);
}

#[test]
fn n38_bad_frames_of_agents_give_the_id_to_answer_under() {
    use FrameErrorKind::{BadContent, NotAFrame, NotJson, UnknownType};
    let cases = [
        ("not_json", NotJson, 0),
        ("empty", NotJson, 0),
        ("not_an_object", NotAFrame, 0),
        ("no_type", NotAFrame, 14),
        ("type_not_a_string", NotAFrame, 14),
        ("no_id", NotAFrame, 0),
        ("negative_id", NotAFrame, 0),
        ("string_id", NotAFrame, 0),
        ("unknown_type", UnknownType, 14),
        ("unknown_type_no_content", UnknownType, 14),
        ("no_content", BadContent, 14),
        ("content_not_an_object", BadContent, 14),
        ("no_target", BadContent, 14),
        ("mem_not_an_integer", BadContent, 14),
        ("mem_negative", BadContent, 14),
        ("cpu_a_string", BadContent, 14),
        ("target_an_array", BadContent, 14),
    ];
    for (name, kind, id) in cases {
        let error = AgentFrame::decode(&golden(&format!("rejected/{name}"))).expect_err(name);
        assert_eq!((error.kind, error.id), (kind, id), "{name}: {error}");
        assert!(!error.reason.is_empty(), "{name}");
    }
    assert_eq!(
        names("rejected"),
        cases.map(|(name, ..)| name.to_owned()).into()
    );
}

#[test]
fn a_range_beyond_a_byte_still_meets_ours() {
    let theirs: VersionRange = serde_json::from_str(r#"{"min":1,"max":300}"#).expect("decodes");
    assert_eq!(VersionRange::V1.highest_common(theirs), Ok(Version::V1));
    for bad in [r#"{"min":-1,"max":1}"#, "[1,1]", "1", r#"{"min":1}"#] {
        assert!(serde_json::from_str::<VersionRange>(bad).is_err(), "{bad}");
    }
}

fn any_agent_body() -> impl Strategy<Value = AgentBody> {
    // Whole thousandths of a CPU, as the agent counts them.
    let any_size = (0_u32..1_000_000, any::<u64>())
        .prop_map(|(milli, mem)| size(f64::from(milli) / 1000.0, mem));
    prop_oneof![
        any_size
            .clone()
            .prop_map(|target| AgentBody::DownscaleRequest { target }),
        any_size.prop_map(|granted| AgentBody::UpscaleNotification { granted }),
        Just(AgentBody::HealthCheck),
        ".{0,40}".prop_map(|error| AgentBody::InvalidMessage { error }),
        ".{0,40}".prop_map(|error| AgentBody::InternalError { error }),
    ]
}

fn any_monitor_body() -> impl Strategy<Value = MonitorBody> {
    prop_oneof![
        (any::<bool>(), ".{0,40}")
            .prop_map(|(ok, status)| MonitorBody::DownscaleResult { ok, status }),
        Just(MonitorBody::UpscaleConfirmation),
        Just(MonitorBody::UpscaleRequest),
        Just(MonitorBody::HealthCheck),
        ".{0,40}".prop_map(|error| MonitorBody::InvalidMessage { error }),
        ".{0,40}".prop_map(|error| MonitorBody::InternalError { error }),
    ]
}

proptest! {
    #[test]
    fn what_an_agent_writes_reads_back(body in any_agent_body(), id in any::<u64>()) {
        let frame = AgentFrame { body, id };
        prop_assert_eq!(AgentFrame::decode(&frame.encode()), Ok(frame));
    }

    #[test]
    fn what_a_monitor_writes_reads_back(body in any_monitor_body(), id in any::<u64>()) {
        let frame = MonitorFrame { body, id };
        prop_assert_eq!(MonitorFrame::decode(&frame.encode()), Ok(frame));
    }

    #[test]
    fn n38_reading_never_panics(text in ".{0,80}") {
        let _ = AgentFrame::decode(&text);
        let _ = MonitorFrame::decode(&text);
    }

    #[test]
    fn n38_reading_json_never_panics(kind in "[A-Za-z]{0,20}", content in "[0-9a-z\\[\\]{}\",:.-]{0,40}", id in any::<i64>()) {
        let text = format!(r#"{{"type":"{kind}","content":{content},"id":{id}}}"#);
        let _ = AgentFrame::decode(&text);
        let _ = MonitorFrame::decode(&text);
    }
}
