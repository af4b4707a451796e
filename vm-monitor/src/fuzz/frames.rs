//! Frames of the link, as each side reads the other's.

use protocol::monitor::{
    AgentBody, AgentFrame, Allocation, FrameError, FrameErrorKind, MonitorFrame, Version,
    VersionRange, VersionResponse,
};
use protocol::monitor_v2::{
    AgentBodyV2, AgentFrameV2, MonitorBodyV2, MonitorFrameV2, NAME_LIMIT_BYTES, NAMES_LIMIT,
    SCHEDULE_LIMIT_BYTES,
};
use serde_json::Value;

use crate::core::handshake::{HandshakeFailure, negotiate};

/// A frame of an agent's, as a monitor of either version reads it: what is read is written so that
/// it reads the same again, what is refused is refused with the id it bears, and version 2 reads
/// all of version 1 alike.
pub fn agent_frame(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (first, second) = (AgentFrame::decode(text), AgentFrameV2::decode(text));
    match &first {
        Ok(frame) => {
            let again = AgentFrame::decode(&frame.encode()).expect("what is written reads");
            assert!(are_same_agent_frames(frame, &again), "{frame:?} {again:?}");
            let plain = second
                .as_ref()
                .expect("version 2 reads what version 1 reads");
            assert_eq!(plain.body, AgentBodyV2::Plain(frame.body.clone()));
            assert_eq!(plain.id, frame.id);
        }
        Err(error) => refused_as_it_should_be(text, error),
    }
    match &second {
        Ok(frame) => {
            let again = AgentFrameV2::decode(&frame.encode()).expect("what is written reads");
            assert_eq!(frame.id, again.id);
            match &frame.body {
                AgentBodyV2::Plain(_) => {}
                AgentBodyV2::Capabilities { names } => {
                    assert_eq!(frame, &again);
                    assert!(names.len() <= NAMES_LIMIT);
                    assert!(names.iter().all(|name| name.len() <= NAME_LIMIT_BYTES));
                }
                AgentBodyV2::Schedule(schedule) => {
                    assert_eq!(frame, &again);
                    assert!(schedule.spec.len() <= SCHEDULE_LIMIT_BYTES);
                }
            }
        }
        Err(error) => refused_as_it_should_be(text, error),
    }
}

/// A frame of a monitor's, as an agent of either version reads it.
pub fn monitor_frame(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match MonitorFrame::decode(text) {
        Ok(frame) => {
            let again = MonitorFrame::decode(&frame.encode());
            assert_eq!(again.as_ref(), Ok(&frame));
        }
        Err(error) => refused_as_it_should_be(text, &error),
    }
    match MonitorFrameV2::decode(text) {
        Ok(frame) => {
            let written = frame.encode();
            let again = MonitorFrameV2::decode(&written).expect("what is written reads");
            assert_eq!(frame.id, again.id);
            assert!(
                are_same_monitor_bodies(&frame.body, &again.body),
                "{frame:?} {again:?}"
            );
        }
        Err(error) => refused_as_it_should_be(text, &error),
    }
}

/// The first frame of a connection: the highest version of both, or an answer that says why not and
/// is short.
pub fn handshake(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let bounds = serde_json::from_str::<Value>(text).ok().and_then(|offer| {
        let bound = |name: &str| offer.get(name).and_then(Value::as_u64);
        Some((bound("min")?, bound("max")?))
    });
    // Written down on its own: 2 if it is within the bounds, else 1 if that is.
    let expected = bounds.and_then(|(min, max)| {
        let spoken = [Version::V2, Version::V1];
        let is_within = |version: &Version| (min..=max).contains(&u64::from(version.0));
        spoken.into_iter().find(is_within)
    });
    match negotiate(text) {
        Ok(version) => assert_eq!(Some(version), expected),
        Err(refused) => {
            assert_eq!(expected, None);
            let is_a_range = bounds.is_some();
            let failure = refused.failure;
            assert_eq!(failure == HandshakeFailure::NoCommonVersion, is_a_range);
            assert_eq!(failure == HandshakeFailure::NotARange, !is_a_range);
            assert!(matches!(refused.answer, VersionResponse::Error(_)));
            let answer = serde_json::to_string(&refused.answer).expect("an answer encodes");
            // Each of its 200 characters may need six to be written, as control characters do.
            assert!(answer.len() < 1300, "{answer}");
            let again = serde_json::from_str::<VersionResponse>(&answer);
            assert_eq!(again.expect("an answer reads"), refused.answer);
        }
    }
    if let Ok(range) = serde_json::from_str::<VersionRange>(text) {
        let written = serde_json::to_string(&range).expect("a range encodes");
        let again = serde_json::from_str::<VersionRange>(&written).expect("a range reads");
        assert_eq!(again, range);
    }
}

/// A refused frame: a sentence for the peer, and the id if there was one to read.
fn refused_as_it_should_be(text: &str, error: &FrameError) {
    assert!(!error.reason.is_empty());
    let value = serde_json::from_str::<Value>(text).ok();
    assert_eq!(
        error.kind == FrameErrorKind::NotJson,
        value.is_none(),
        "{error:?}"
    );
    let id = value.as_ref().and_then(|frame| frame.get("id"));
    // Whole numbers only: one with a point may be read as an id or not.
    if let Some(id) = id.and_then(Value::as_u64) {
        assert_eq!(error.id, id, "{error:?}");
    } else if value.is_none() {
        assert_eq!(error.id, 0);
    }
}

fn are_same_agent_frames(one: &AgentFrame, other: &AgentFrame) -> bool {
    one.id == other.id
        && match (&one.body, &other.body) {
            (
                AgentBody::DownscaleRequest { target: one },
                AgentBody::DownscaleRequest { target: other },
            )
            | (
                AgentBody::UpscaleNotification { granted: one },
                AgentBody::UpscaleNotification { granted: other },
            ) => are_same_sizes(*one, *other),
            (one, other) => one == other,
        }
}

/// Numbers with a point are read to within the last digit (the JSON reader trades that for speed),
/// all else exactly.
fn are_same_sizes(one: Allocation, other: Allocation) -> bool {
    one.mem == other.mem && are_same_numbers(one.cpu, other.cpu)
}

fn are_same_numbers(one: f64, other: f64) -> bool {
    (one - other).abs() <= one.abs() * (4.0 * f64::EPSILON)
}

fn are_same_options<T: Copy>(one: Option<T>, other: Option<T>, are_same: fn(T, T) -> bool) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => are_same(one, other),
        (None, None) => true,
        _ => false,
    }
}

fn are_same_monitor_bodies(one: &MonitorBodyV2, other: &MonitorBodyV2) -> bool {
    match (one, other) {
        (MonitorBodyV2::Asked(one), MonitorBodyV2::Asked(other)) => {
            one.reason == other.reason
                && one.urgency == other.urgency
                && are_same_options(one.wanted, other.wanted, are_same_sizes)
        }
        (MonitorBodyV2::Refused(one), MonitorBodyV2::Refused(other)) => {
            one.status == other.status
                && one.reason == other.reason
                && are_same_options(one.smallest, other.smallest, are_same_sizes)
        }
        (
            MonitorBodyV2::Confirmed { observed: one },
            MonitorBodyV2::Confirmed { observed: other },
        ) => are_same_sizes(*one, *other),
        (MonitorBodyV2::Metrics(one), MonitorBodyV2::Metrics(other)) => {
            let loads = [
                (one.load1, other.load1),
                (one.load5, other.load5),
                (one.runnable_load1, other.runnable_load1),
                (one.runnable_load5, other.runnable_load5),
            ];
            loads
                .into_iter()
                .all(|(one, other)| are_same_options(one, other, are_same_numbers))
                && one.memory == other.memory
                && one.cgroup == other.cgroup
                && are_same_options(one.guest, other.guest, are_same_sizes)
                && one.machine_stalls.map(|s| (s.some_us, s.full_us))
                    == other.machine_stalls.map(|s| (s.some_us, s.full_us))
                && one.cgroup_stalls.map(|s| (s.some_us, s.full_us))
                    == other.cgroup_stalls.map(|s| (s.some_us, s.full_us))
        }
        (one, other) => one == other,
    }
}
