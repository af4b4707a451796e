//! The patch of a VM object: exactly three replacements, always all. Source:
//! docs/compatibility/agent.md §4.3.

use kube::api::{Api, DynamicObject, Patch, PatchParams};
use protocol::admission::AGENT_FIELD_MANAGER;
use protocol::revision::{Revision, RevisionWithTime};
use protocol::time::WallTime;
use protocol::units::{Bytes, MilliCpu, Resources};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::core::Failure;
use crate::core::vm::version_of;

/// Longest piece of an error used as a label.
const LABEL_CHARS: usize = 120;

/// Why the object was not patched.
#[derive(Debug, thiserror::Error)]
pub(super) enum PatchError {
    /// The patch cannot be written down.
    #[error("could not write the patch")]
    Encode(#[source] serde_json::Error),
    /// The API server refused it or could not be asked.
    #[error("could not patch the VM object")]
    Request(#[source] Box<kube::Error>),
    /// No answer in time.
    #[error("the API server did not answer in time")]
    TimedOut,
    /// It answered well, with an object that has another size.
    #[error("the API server did not take the size over")]
    Ignored,
}

impl PatchError {
    /// Whether the object may have been changed.
    #[must_use]
    pub(super) fn failure(&self) -> Failure {
        match self {
            Self::Encode(_) => Failure::NotApplied,
            Self::Request(error) => match error.as_ref() {
                kube::Error::Api(status) if (400..500).contains(&status.code) => {
                    Failure::NotApplied
                }
                _ => Failure::Unknown,
            },
            Self::TimedOut | Self::Ignored => Failure::Unknown,
        }
    }

    /// The `result` label of the request counter: the root cause without the VM's name.
    #[must_use]
    pub(super) fn label(&self, vm_name: &str) -> String {
        let mut root: &dyn std::error::Error = self;
        while let Some(source) = root.source() {
            root = source;
        }
        let text: String = root
            .to_string()
            .replace(vm_name, "<name>")
            .chars()
            .take(LABEL_CHARS)
            .collect();
        format!("[error: {text}]")
    }
}

/// The three operations. The CPU amount is in the form in which objects keep it (`2`, `"750m"`):
/// another one has to be brought into it first, for which API servers ask a webhook.
#[must_use]
pub(super) fn operations(
    target: Resources,
    slot: Bytes,
    revision: Revision,
    now: WallTime,
) -> Value {
    let slots = target.mem.0.checked_div(slot.0).unwrap_or(0);
    let revision = RevisionWithTime {
        revision,
        updated_at: now,
    };
    json!([
        { "op": "replace", "path": "/spec/guest/cpus/use", "value": target.cpu },
        { "op": "replace", "path": "/spec/guest/memorySlots/use", "value": slots },
        { "op": "replace", "path": "/spec/targetRevision", "value": revision },
    ])
}

/// Patches. The caller bounds the time. Returns the version the object got, where it is a number.
///
/// # Errors
/// [`PatchError`]; [`PatchError::failure`] says whether the object may have been changed.
pub(super) async fn patch(
    api: &Api<DynamicObject>,
    name: &str,
    operations: Value,
) -> Result<Option<u64>, PatchError> {
    let size = size_in(&operations);
    let patch = serde_json::from_value(operations).map_err(PatchError::Encode)?;
    let params = PatchParams {
        // Admission takes a smaller size of an autoscaled VM from the agent alone.
        field_manager: Some(AGENT_FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let object = api
        .patch(name, &params, &Patch::Json::<()>(patch))
        .await
        .map_err(|error| PatchError::Request(Box::new(error)))?;
    if size_of(&object.data) != size {
        return Err(PatchError::Ignored);
    }
    let version = object.metadata.resource_version;
    Ok(version.and_then(|version| version_of(&version)))
}

/// CPU and slots, of whatever form the object has them in; `None` for what it has not.
type CpuAndSlots = (Option<MilliCpu>, Option<u64>);

fn size_in(operations: &Value) -> CpuAndSlots {
    read_size(&operations[0]["value"], &operations[1]["value"])
}

fn size_of(object: &Value) -> CpuAndSlots {
    let guest = &object["spec"]["guest"];
    read_size(&guest["cpus"]["use"], &guest["memorySlots"]["use"])
}

fn read_size(cpu: &Value, slots: &Value) -> CpuAndSlots {
    (MilliCpu::deserialize(cpu).ok(), slots.as_u64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operations_are_the_deployed_agents_but_for_the_form_of_whole_cores() {
        let revision = Revision { value: 3, flags: 1 };
        let now = WallTime::parse("2024-01-02T03:04:05.25Z").expect("parses");
        let got = operations(Resources::new(500, 2 << 30), Bytes::gib(1), revision, now);
        let want: Value =
            serde_json::from_str(include_str!("../../testdata/patch.json")).expect("golden file");
        assert_eq!(got, want);
        let whole = operations(Resources::new(1000, 1 << 30), Bytes::gib(1), revision, now);
        assert_eq!(whole[0]["value"], 1, "as objects keep it");
    }

    #[test]
    fn an_answer_is_read_in_every_form_of_its_numbers() {
        let revision = Revision { value: 3, flags: 1 };
        let at = WallTime::parse("2024-01-02T03:04:05.25Z").expect("parses");
        let asked = operations(Resources::new(1000, 2 << 30), Bytes::gib(1), revision, at);
        let answer = |cpu: Value, slots: u64| {
            size_of(
                &json!({"spec": {"guest": {"cpus": {"use": cpu}, "memorySlots": {"use": slots}}}}),
            )
        };
        for cpu in [json!("1"), json!(1), json!(1.0), json!("1000m")] {
            assert_eq!(answer(cpu, 2), size_in(&asked));
        }
        assert_ne!(answer(json!("1"), 1), size_in(&asked));
        assert_ne!(answer(json!("750m"), 2), size_in(&asked));
        assert_ne!(size_of(&json!({})), size_in(&asked));
    }

    #[test]
    fn labels_hide_the_name() {
        let error = PatchError::Request(Box::new(kube::Error::Api(Box::new(
            kube::core::Status::failure("virtualmachines \"pg-1\" not found", "NotFound")
                .with_code(404),
        ))));
        assert_eq!(error.failure(), Failure::NotApplied);
        let label = error.label("pg-1");
        assert!(
            label.starts_with("[error: ") && !label.contains("pg-1"),
            "{label}"
        );
        assert!(label.contains("<name>"), "{label}");
    }
}
