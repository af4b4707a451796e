//! Every frame of the monitor link's version 2, both directions, against the bytes under
//! `testdata/monitor_v2/`, laid out as those of version 1.

use std::collections::BTreeSet;
use std::path::PathBuf;

use proptest::prelude::*;
use protocol::monitor::{
    AgentBody, AgentFrame, Allocation, FrameErrorKind, MonitorBody, MonitorFrame, Version,
    VersionRange, VersionResponse,
};
use protocol::monitor_v2::{
    AGAIN_LIMIT, AgentBodyV2, AgentFrameV2, AskReason, Capabilities, GroupGauges, GuestMetrics,
    MachineGauges, MonitorBodyV2, MonitorFrameV2, NAME_LIMIT_BYTES, NAMES_LIMIT, RefusalReason,
    Refused, SCHEDULE_LIMIT_BYTES, SYSTEMD_TIMER, Schedule, ScheduleRequest, Stalls,
    UpscaleDetails, Urgency,
};
use protocol::time::Span;

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("testdata/monitor_v2")
        .join(name)
}

fn golden(name: &str) -> String {
    let path = folder("").join(format!("{name}.json"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn names(of: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder(of)).expect("the folder is there");
    let name = |entry: std::fs::DirEntry| entry.file_name().into_string().expect("UTF-8");
    entries
        .filter_map(|entry| {
            let name = name(entry.expect("entry"));
            name.strip_suffix(".json").map(str::to_owned)
        })
        .collect()
}

const fn size(cpu: f64, mem: u64) -> Allocation {
    Allocation { cpu, mem }
}

fn all_names() -> Vec<String> {
    Capabilities::all(Span::from_secs(5)).names()
}

/// Names of before the capability `schedule`.
fn names_without_schedule() -> Vec<String> {
    let capabilities = Capabilities {
        schedule: false,
        ..Capabilities::all(Span::from_secs(5))
    };
    capabilities.names()
}

fn agent_goldens() -> Vec<(&'static str, AgentFrameV2)> {
    let target = size(0.5, 2 << 30);
    let frame = |id, body| AgentFrameV2 { body, id };
    let capabilities = |names| frame(2, AgentBodyV2::Capabilities { names });
    let schedule = |id, spec: &str| {
        let (spec, valid_s) = (spec.to_owned(), 21_600);
        frame(id, AgentBodyV2::Schedule(Schedule { spec, valid_s }))
    };
    vec![
        ("agent_capabilities", capabilities(names_without_schedule())),
        ("agent_capabilities_schedule", capabilities(all_names())),
        (
            "agent_schedule",
            schedule(3, "Sat,Sun *-*-* 02,03:00/20:00 Europe/Berlin"),
        ),
        ("agent_schedule_none", schedule(5, "")),
        (
            "agent_downscale_request",
            frame(
                4,
                AgentBodyV2::Plain(AgentBody::DownscaleRequest { target }),
            ),
        ),
    ]
}

fn metrics() -> GuestMetrics {
    let stalls = |some_percent, full_percent, some_us, full_us| Stalls {
        some_percent,
        full_percent,
        some_us,
        full_us,
    };
    GuestMetrics {
        load1: Some(0.26),
        load5: Some(1.75),
        runnable_load1: Some(0.21),
        runnable_load5: Some(1.5),
        memory: Some(MachineGauges {
            total: 4 << 30,
            available: 3_072_000_000,
            cached: 204_800_000,
        }),
        machine_stalls: Some(stalls(1.5, 0.25, 77, 5)),
        cgroup_stalls: Some(stalls(0.0, 0.0, 0, 0)),
        cgroup: GroupGauges {
            current: Some(309_715_200),
            used: Some(100 << 20),
            threshold: Some(3_650_722_201),
            working_set: Some(150 << 20),
        },
        guest: Some(size(2.0, 4 << 30)),
    }
}

fn monitor_goldens() -> Vec<(&'static str, MonitorFrameV2)> {
    use MonitorBodyV2 as Body;
    let asked = |reason, urgency, wanted| {
        Body::Asked(UpscaleDetails {
            reason,
            urgency,
            wanted,
        })
    };
    let refused = |reason, smallest| Refused {
        status: "text".to_owned(),
        reason,
        smallest,
        again: None,
    };
    let refused_for_a_while = Refused {
        again: Some(Span::from_millis(2500)),
        ..refused(RefusalReason::RecentPeak, Some(size(0.5, 1 << 30)))
    };
    let approved = MonitorBody::DownscaleResult {
        ok: true,
        status: "text".into(),
    };
    let wanted = Some(size(2.0, 4 << 30));
    let observed = size(2.0, 8_253_865_984);
    let capabilities = |names| Body::Capabilities { names };
    let schedule_request = ScheduleRequest {
        version: "1.2.3".to_owned(),
        kind: SYSTEMD_TIMER.to_owned(),
    };
    let frames = [
        ("capabilities", 2, capabilities(names_without_schedule())),
        ("capabilities_schedule", 2, capabilities(all_names())),
        (
            "schedule_request",
            3,
            Body::ScheduleRequest(schedule_request),
        ),
        ("capabilities_none", 2, Body::Capabilities { names: vec![] }),
        (
            "upscale_request",
            3,
            asked(AskReason::Forecast, Some(Urgency::Soon), wanted),
        ),
        (
            "upscale_request_reason_only",
            5,
            asked(AskReason::OomEvent, None, None),
        ),
        (
            "upscale_request_plain",
            7,
            Body::Plain(MonitorBody::UpscaleRequest),
        ),
        (
            "downscale_result_refused",
            4,
            Body::Refused(refused(RefusalReason::InUse, Some(size(0.5, 1 << 30)))),
        ),
        (
            "downscale_result_refused_for_a_while",
            4,
            Body::Refused(refused_for_a_while),
        ),
        (
            "downscale_result_refused_unreadable",
            4,
            Body::Refused(refused(RefusalReason::Unreadable, None)),
        ),
        ("downscale_result_approved", 4, Body::Plain(approved)),
        ("upscale_confirmation", 6, Body::Confirmed { observed }),
        ("metrics", 9, Body::Metrics(Box::new(metrics()))),
        ("metrics_nothing_known", 11, Body::Metrics(Box::default())),
    ];
    let named = frames.map(|(name, id, body)| (name, MonitorFrameV2 { body, id }));
    named.into()
}

#[test]
fn n32_the_handshake_of_both_versions_is_these_bytes() {
    let text = golden("handshake_range");
    let range = VersionRange::V1_TO_V2;
    assert_eq!(serde_json::to_string(&range).expect("encodes"), text);
    assert_eq!(
        serde_json::from_str::<VersionRange>(&text).expect("decodes"),
        range
    );
    assert_eq!(range.highest_common(VersionRange::V1), Ok(Version::V1));
    let answer = range.highest_common(range).map(VersionResponse::Version);
    let text = serde_json::to_string(&answer.expect("common")).expect("encodes");
    assert_eq!(text, golden("handshake_version"));
}

#[test]
fn n39_agent_frames_are_these_bytes() {
    for (name, frame) in agent_goldens() {
        let text = golden(name);
        assert_eq!(frame.encode(), text, "{name}");
        assert_eq!(AgentFrameV2::decode(&text), Ok(frame.clone()), "{name}");
        let read: AgentFrameV2 = serde_json::from_str(&text).expect("decodes");
        assert_eq!(read, frame, "{name}");
    }
}

#[test]
fn n39_monitor_frames_are_these_bytes() {
    for (name, frame) in monitor_goldens() {
        let text = golden(&format!("monitor_{name}"));
        assert_eq!(frame.encode(), text, "{name}");
        assert_eq!(MonitorFrameV2::decode(&text), Ok(frame.clone()), "{name}");
        let read: MonitorFrameV2 = serde_json::from_str(&text).expect("decodes");
        assert_eq!(read, frame, "{name}");
    }
}

#[test]
fn time_to_ask_again_is_whole_milliseconds_within_its_limit() {
    let text = golden("monitor_downscale_result_refused_for_a_while");
    let read = |text: &str| match MonitorFrameV2::decode(text).expect("decodes").body {
        MonitorBodyV2::Refused(refused) => refused,
        other => panic!("{other:?}"),
    };
    let mut refused = read(&text);
    // Not a moment too early.
    refused.again = Some(Span(2_499_001));
    let body = MonitorBodyV2::Refused(refused);
    assert_eq!(MonitorFrameV2 { body, id: 4 }.encode(), text);
    let longest = text.replace("2500", &u64::MAX.to_string());
    assert_eq!(read(&longest).again, Some(AGAIN_LIMIT));
    let wrong = text.replace("2500", "-1");
    assert!(MonitorFrameV2::decode(&wrong).is_err());
}

/// Requirement: R19
#[test]
fn schedule_without_a_member_or_past_its_limit_is_refused() {
    let text = golden("agent_schedule");
    let long = "x".repeat(SCHEDULE_LIMIT_BYTES + 1);
    let refused = [
        text.replace("spec", "other"),
        text.replace("valid_s", "other"),
        text.replace("21600", "-1"),
        text.replace("Europe/Berlin", &long),
        text.replace("content", "other"),
    ];
    for text in refused {
        let error = AgentFrameV2::decode(&text).expect_err(&text);
        assert_eq!((error.id, error.kind), (3, FrameErrorKind::BadContent));
    }
    let text = golden("monitor_schedule_request");
    for (part, other) in [
        ("1.2.3", long.as_str()),
        ("systemd-timer", &long),
        ("kind", "other"),
    ] {
        let text = text.replace(part, other);
        let error = MonitorFrameV2::decode(&text).expect_err(&text);
        assert_eq!((error.id, error.kind), (3, FrameErrorKind::BadContent));
    }
}

#[test]
fn every_golden_file_is_used() {
    let mut used: BTreeSet<String> = ["handshake_range", "handshake_version"]
        .map(str::to_owned)
        .into();
    used.extend(agent_goldens().into_iter().map(|(name, _)| name.to_owned()));
    let ours = monitor_goldens().into_iter();
    used.extend(ours.map(|(name, _)| format!("monitor_{name}")));
    assert_eq!(names(""), used);
}

#[test]
fn an_agent_of_v1_reads_every_frame_that_v1_has() {
    // What is added never takes a known frame away from a reader of version 1.
    for (name, frame) in monitor_goldens() {
        let is_new = matches!(
            frame.body,
            MonitorBodyV2::Capabilities { .. }
                | MonitorBodyV2::Metrics(_)
                | MonitorBodyV2::ScheduleRequest(_)
        );
        let read = MonitorFrame::decode(&frame.encode());
        assert_eq!(read.is_ok(), !is_new, "{name}: {read:?}");
    }
    for (name, frame) in agent_goldens() {
        let is_new = !matches!(frame.body, AgentBodyV2::Plain(_));
        assert_eq!(
            AgentFrame::decode(&frame.encode()).is_ok(),
            !is_new,
            "{name}"
        );
    }
}

#[test]
fn other_spellings_are_read() {
    let unknown = AgentFrameV2::decode(&golden("accepted/agent_capabilities.unknown_names"));
    let AgentBodyV2::Capabilities { names: found } = unknown.expect("decodes").body else {
        panic!("other body");
    };
    let wanted = Capabilities {
        observed: true,
        ..Capabilities::default()
    };
    assert_eq!(Capabilities::of_names(&found), wanted);
    let asked = UpscaleDetails {
        reason: AskReason::Other,
        urgency: Some(Urgency::Other),
        wanted: None,
    };
    let approved = MonitorBody::DownscaleResult {
        ok: true,
        status: "text".into(),
    };
    let cases = [
        (
            "monitor_upscale_request.unknown_words",
            MonitorBodyV2::Asked(asked),
        ),
        (
            "monitor_metrics.unknown_members",
            MonitorBodyV2::Metrics(Box::default()),
        ),
        (
            "monitor_downscale_result.approved_with_reason",
            MonitorBodyV2::Plain(approved),
        ),
    ];
    for (name, body) in &cases {
        let frame = MonitorFrameV2::decode(&golden(&format!("accepted/{name}")));
        assert_eq!(frame.expect(name).body, *body, "{name}");
    }
    assert_eq!(names("accepted").len(), cases.len() + 1);
}

#[test]
fn n38_bad_frames_give_the_id_to_answer_under() {
    use FrameErrorKind::{BadContent, UnknownType};
    let agents = [
        ("agent_no_content", BadContent),
        ("agent_no_names", BadContent),
        ("agent_names_no_list", BadContent),
        ("agent_name_no_string", BadContent),
        ("agent_unknown_type", UnknownType),
    ];
    for (name, kind) in agents {
        let error = AgentFrameV2::decode(&golden(&format!("rejected/{name}"))).expect_err(name);
        assert_eq!((error.kind, error.id), (kind, 14), "{name}: {error}");
    }
    let monitors = [
        "monitor_wanted_no_size",
        "monitor_observed_no_size",
        "monitor_metrics_text",
    ];
    for name in monitors {
        let error = MonitorFrameV2::decode(&golden(&format!("rejected/{name}"))).expect_err(name);
        assert_eq!((error.kind, error.id), (BadContent, 15), "{name}: {error}");
    }
    assert_eq!(names("rejected").len(), agents.len() + monitors.len());
}

#[test]
fn labels_are_the_wires_words() {
    for reason in AskReason::ALL {
        let word = serde_json::to_value(reason).expect("encodes");
        assert_eq!(word, reason.label());
    }
    for reason in RefusalReason::ALL {
        let word = serde_json::to_value(reason).expect("encodes");
        assert_eq!(word, reason.label());
    }
}

#[test]
fn refusal_without_a_reason_is_one_of_v1() {
    let text = r#"{"type":"DownscaleResult","Ok":false,"Status":"no","id":1}"#;
    let status = "no".to_owned();
    let body = MonitorBodyV2::Plain(MonitorBody::DownscaleResult { ok: false, status });
    assert_eq!(
        MonitorFrameV2::decode(text),
        Ok(MonitorFrameV2 { body, id: 1 })
    );
}

#[test]
fn id_that_floats_cannot_tell_from_the_next_is_refused() {
    let frame = |id: &str| AgentFrame::decode(&format!(r#"{{"type":"HealthCheck","id":{id}}}"#));
    assert_eq!(frame("4.0").map(|it| it.id), Ok(4));
    assert!(frame("9007199254740992.0").is_err());
}

#[test]
fn capabilities_are_bounded_and_read_back() {
    let all = Capabilities::all(Span::from_millis(1500));
    assert_eq!(Capabilities::of_names(&all.names()), all);
    for (text, period) in [("1", 500), ("700", 700), ("9999999", 60_000)] {
        let read = Capabilities::of_names(&[format!("metrics={text}")]);
        assert_eq!(read.metrics, Some(Span::from_millis(period)), "{text}");
    }
    for name in all.names() {
        let one = std::slice::from_ref(&name);
        assert_eq!(Capabilities::of_names(one).names(), one);
    }
    for name in ["metrics", "metrics=x", "other", "other=1"] {
        let none = Capabilities::of_names(&[name.to_owned()]);
        assert_eq!(none, Capabilities::default(), "{name}");
    }
    let long = "x".repeat(NAME_LIMIT_BYTES + 1);
    let mut list = vec![long; 3];
    list.extend(vec!["observed".to_owned(); NAMES_LIMIT]);
    let text = serde_json::json!({"type": "Capabilities", "content": {"names": list}, "id": 2});
    let frame = AgentFrameV2::decode(&text.to_string()).expect("decodes");
    let AgentBodyV2::Capabilities { names } = frame.body else {
        panic!("{frame:?}");
    };
    assert_eq!(names.len(), NAMES_LIMIT - 3);
}

fn any_size() -> impl Strategy<Value = Allocation> {
    (0_u32..1_000_000, any::<u64>()).prop_map(|(milli, mem)| size(f64::from(milli) / 1000.0, mem))
}

fn any_body() -> impl Strategy<Value = MonitorBodyV2> {
    let reason = prop::sample::select(AskReason::ALL.to_vec());
    let urgency = prop::option::of(prop::sample::select(vec![Urgency::Soon, Urgency::Critical]));
    let refusal = prop::sample::select(vec![RefusalReason::InUse, RefusalReason::Hook]);
    prop_oneof![
        (reason, urgency, prop::option::of(any_size())).prop_map(|(reason, urgency, wanted)| {
            MonitorBodyV2::Asked(UpscaleDetails {
                reason,
                urgency,
                wanted,
            })
        }),
        (
            ".{0,40}",
            refusal,
            prop::option::of(any_size()),
            prop::option::of(0..=AGAIN_LIMIT.as_millis()),
        )
            .prop_map(|(status, reason, smallest, again)| {
                MonitorBodyV2::Refused(Refused {
                    status,
                    reason,
                    smallest,
                    again: again.map(Span::from_millis),
                })
            }),
        any_size().prop_map(|observed| MonitorBodyV2::Confirmed { observed }),
        (
            ".{0,20}".prop_filter("short", |n| n.len() <= 64),
            "[a-z-]{0,20}"
        )
            .prop_map(
                |(version, kind)| MonitorBodyV2::ScheduleRequest(ScheduleRequest { version, kind })
            ),
        prop::collection::vec(".{0,20}".prop_filter("short", |n| n.len() <= 64), 0..5)
            .prop_map(|names| MonitorBodyV2::Capabilities { names }),
    ]
}

proptest! {
    #[test]
    fn what_a_monitor_writes_reads_back(body in any_body(), id in any::<u64>()) {
        let frame = MonitorFrameV2 { body, id };
        prop_assert_eq!(MonitorFrameV2::decode(&frame.encode()), Ok(frame));
    }

    #[test]
    fn n38_reading_never_panics(text in ".{0,80}") {
        let _ = AgentFrameV2::decode(&text);
        let _ = MonitorFrameV2::decode(&text);
    }

    #[test]
    fn n38_reading_json_never_panics(
        kind in "(Capabilities|Metrics|UpscaleRequest|DownscaleResult|UpscaleConfirmation|ScheduleRequest|Schedule)",
        members in "(\"(content|version|kind|names|reason|wanted|observed|smallest|cgroup|Ok|load1)\":[0-9a-z\\[\\]{}\",:.-]{0,12},){0,4}",
        id in any::<i64>(),
    ) {
        let text = format!(r#"{{"type":"{kind}",{members}"id":{id}}}"#);
        let _ = AgentFrameV2::decode(&text);
        let _ = MonitorFrameV2::decode(&text);
    }
}
