//! The Lease object and its annotations.

use k8s_openapi::api::coordination::v1::Lease;
use protocol::time::{Span, Timestamp, WallTime};
use serde_json::{Value, json};

use crate::core::elect::{HandoverNote, LeaseState, LeaseWrite};

/// Annotation on a Lease that was released with no call in flight, of the holder or of an earlier
/// leader. The next holder removes it.
pub const ANNOTATION_DRAINED: &str = "autoscaling.neon.tech/drained";
/// Annotation with the hand-over of a released Lease: the Lease's transitions, a space, and a text.
/// The next holder removes it.
pub const ANNOTATION_HANDOVER: &str = "autoscaling.neon.tech/handed-over";
/// Longest hand-over text that is read, in bytes.
const MAX_HANDOVER_BYTES: usize = 1024;
/// Name of a Lease object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseName {
    /// Namespace of the Lease, such as `kube-system`.
    pub namespace: String,
    /// Name of the Lease. All replicas of one election use the same.
    pub name: String,
}

/// Converts a time of day on this host to monotonic time.
pub(super) fn monotonic(now: Timestamp, wall: WallTime, at: WallTime) -> Timestamp {
    now - Span(u64::try_from(wall.0.saturating_sub(at.0)).unwrap_or(0))
}

/// Reads a Lease. `None` if its version is no number.
pub(super) fn state_of(lease: &Lease) -> Option<LeaseState> {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.unwrap_or(0);
    let annotations = lease.metadata.annotations.as_ref();
    let drained = annotations.and_then(|notes| notes.get(ANNOTATION_DRAINED));
    let handover = annotations.and_then(|notes| notes.get(ANNOTATION_HANDOVER));
    Some(LeaseState {
        version: lease.metadata.resource_version.as_ref()?.parse().ok()?,
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Span::from_secs(u64::try_from(seconds).unwrap_or(0)),
        transitions: u32::try_from(spec.lease_transitions.unwrap_or(0)).unwrap_or(0),
        is_drained: drained.is_some_and(|value| value == "true"),
        handover: handover.and_then(|text| handover_of(text)),
    })
}

fn handover_of(text: &str) -> Option<HandoverNote> {
    let (transitions, text) = text.split_once(' ')?;
    Some(HandoverNote {
        transitions: transitions.parse().ok()?,
        text: (text.len() <= MAX_HANDOVER_BYTES).then(|| text.to_owned())?,
    })
}

/// A new Lease, or a merge patch of one. The version in the patch makes the API server refuse it
/// for any other version.
pub(super) fn lease_text(name: &LeaseName, write: &LeaseWrite, now: WallTime) -> Value {
    let LeaseWrite { base, state, takes } = write;
    let mut text = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": name.name, "namespace": name.namespace },
        "spec": {
            "holderIdentity": (!state.holder.is_empty()).then_some(&state.holder),
            "leaseDurationSeconds": state.duration.0 / 1_000_000,
            "leaseTransitions": state.transitions,
            "renewTime": now.to_micro_string(),
        },
    });
    if *takes {
        text["spec"]["acquireTime"] = json!(now.to_micro_string());
    }
    if let Some(base) = base {
        text["metadata"]["resourceVersion"] = json!(base.to_string());
        let drained = state.is_drained.then_some("true");
        let handover = state.handover.as_ref();
        let handover =
            handover.map(|handover| format!("{} {}", handover.transitions, handover.text));
        text["metadata"]["annotations"] =
            json!({ ANNOTATION_DRAINED: drained, ANNOTATION_HANDOVER: handover });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(base: Option<u64>, holder: &str, is_drained: bool) -> LeaseWrite {
        let state = LeaseState {
            version: 0,
            holder: holder.into(),
            duration: Span::from_secs(8),
            transitions: 2,
            is_drained,
            handover: is_drained.then(handover),
        };
        let takes = base.is_none();
        LeaseWrite { base, state, takes }
    }

    fn handover() -> HandoverNote {
        HandoverNote {
            transitions: 2,
            text: "nodes=1 pods=2".into(),
        }
    }

    fn name() -> LeaseName {
        LeaseName {
            namespace: "kube-system".into(),
            name: "autoscale-scheduler".into(),
        }
    }

    #[test]
    fn lease_is_written_in_the_form_of_the_api() {
        let now = WallTime(1_700_000_000_000_001);
        let made = lease_text(&name(), &write(None, "a", false), now);
        let time = "2023-11-14T22:13:20.000001Z";
        let expected = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "autoscale-scheduler", "namespace": "kube-system"},
            "spec": {"holderIdentity": "a", "leaseDurationSeconds": 8, "leaseTransitions": 2,
                "renewTime": time, "acquireTime": time},
        });
        assert_eq!(made, expected);
        let released = lease_text(&name(), &write(Some(7), "", true), now);
        assert_eq!(released["spec"]["holderIdentity"], Value::Null);
        assert_eq!(released["metadata"]["resourceVersion"], "7");
        assert_eq!(
            released["metadata"]["annotations"][ANNOTATION_DRAINED],
            "true"
        );
        assert_eq!(
            released["metadata"]["annotations"][ANNOTATION_HANDOVER],
            "2 nodes=1 pods=2"
        );
        let renewed = lease_text(&name(), &write(Some(7), "a", false), now);
        let notes = &renewed["metadata"]["annotations"];
        assert_eq!(
            notes.get(ANNOTATION_HANDOVER),
            Some(&Value::Null),
            "it is removed"
        );
        assert_eq!(
            renewed["metadata"]["annotations"][ANNOTATION_DRAINED],
            Value::Null
        );
    }

    #[test]
    fn lease_with_missing_members_is_read() {
        let read = |text: Value| state_of(&serde_json::from_value(text).expect("is a Lease"));
        let full = json!({"metadata": {"resourceVersion": "12",
                "annotations": {ANNOTATION_DRAINED: "true", ANNOTATION_HANDOVER: "2 nodes=1 pods=2"}},
            "spec": {"holderIdentity": "b", "leaseDurationSeconds": 15, "leaseTransitions": 4}});
        let expected = LeaseState {
            version: 12,
            holder: "b".into(),
            duration: Span::from_secs(15),
            transitions: 4,
            is_drained: true,
            handover: Some(handover()),
        };
        assert_eq!(read(full), Some(expected));
        let bare = read(json!({"metadata": {"resourceVersion": "12"}})).expect("is read");
        assert_eq!((bare.holder.as_str(), bare.duration), ("", Span(0)));
        let odd = json!({"metadata": {"resourceVersion": "12"}, "spec": {"leaseDurationSeconds": -5, "leaseTransitions": -1}});
        assert_eq!(read(odd), Some(bare));
        assert_eq!(read(json!({"metadata": {"resourceVersion": "x"}})), None);
        let long = format!("2 {}", "x".repeat(MAX_HANDOVER_BYTES + 1));
        for text in ["", "2", "x y", "-2 y", "99999999999 y", &long] {
            assert_eq!(handover_of(text), None, "{text}");
        }
    }

    #[test]
    fn time_of_day_becomes_monotonic_time() {
        let now = Timestamp(50_000_000);
        let moment = |at| monotonic(now, WallTime(1_000_000_000), WallTime(at));
        assert_eq!(moment(997_000_000), Timestamp(47_000_000));
        assert_eq!(moment(2_000_000_000), now, "a clock ahead gives no time");
        assert_eq!(moment(0), Timestamp(0));
        assert_eq!(moment(i64::MIN), Timestamp(0));
    }
}
