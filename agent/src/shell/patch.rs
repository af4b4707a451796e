//! Sends the patch of a VM object, and reads the object in the response. Source:
//! docs/compatibility/agent.md §4.3.

use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use protocol::admission::AGENT_FIELD_MANAGER;
use protocol::units::MilliCpu;
use protocol::vm::{GROUP, VERSION};
use serde::Deserialize as _;
use serde_json::Value;

use crate::core::Failure;
use crate::core::patch_base::{CPU_PATH, SLOTS_PATH};
use crate::core::vm::version_of;

/// Longest piece of an error used as a label, characters.
const LABEL_CHARS: usize = 120;

/// The API resource of VirtualMachines.
pub(super) fn vm_resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, VERSION, "VirtualMachine"))
}

/// Why a patch counts as failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum PatchError {
    /// The patch cannot be encoded.
    #[error("could not write the patch")]
    Encode(#[source] serde_json::Error),
    /// The API server refused the patch, or the request failed.
    #[error("could not patch the VM object")]
    Request(#[source] Box<kube::Error>),
    /// No response came in time.
    #[error("the API server did not answer in time")]
    TimedOut,
    /// The response was a success, but its object has another size.
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

/// Sends the patch. The caller bounds the time. Returns the object's new version, if it is a
/// number.
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
        // Admission accepts a smaller size of an autoscaled VM from this field manager only.
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

/// CPU and slots of an object; `None` = absent or malformed.
type CpuAndSlots = (Option<MilliCpu>, Option<u64>);

fn size_in(operations: &Value) -> CpuAndSlots {
    let set = |path: &str| {
        let mut each = operations.as_array().into_iter().flatten();
        each.find(|operation| operation["path"] == path)
            .map_or(&Value::Null, |operation| &operation["value"])
    };
    read_size(set(CPU_PATH), set(SLOTS_PATH))
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
    use protocol::revision::{Revision, RevisionWithTime};
    use protocol::time::WallTime;
    use protocol::units::{Bytes, Resources};
    use serde_json::json;

    use super::*;
    use crate::core::PatchBase;

    #[test]
    fn patch_equals_the_deployed_agents_except_for_whole_cores() {
        let revision = Revision { value: 3, flags: 1 };
        let now = WallTime::parse("2024-01-02T03:04:05.25Z").expect("parses");
        let unseen = PatchBase::default();
        let half = Resources::new(500, 2 << 30);
        let revision = RevisionWithTime {
            revision,
            updated_at: now,
        };
        let got = unseen.operations(half, Bytes::gib(1), revision);
        let want: Value =
            serde_json::from_str(include_str!("../../testdata/patch.json")).expect("golden file");
        assert_eq!(got, want);
        let one = Resources::new(1000, 1 << 30);
        let whole = unseen.operations(one, Bytes::gib(1), revision);
        assert_eq!(whole[0]["value"], 1, "as objects keep it");
    }

    #[test]
    fn response_is_read_in_every_form_of_its_numbers() {
        let revision = Revision { value: 3, flags: 1 };
        let at = WallTime::parse("2024-01-02T03:04:05.25Z").expect("parses");
        let size = Resources::new(1000, 2 << 30);
        let revision = RevisionWithTime {
            revision,
            updated_at: at,
        };
        let requested = PatchBase::default().operations(size, Bytes::gib(1), revision);
        let response = |cpu: Value, slots: u64| {
            size_of(
                &json!({"spec": {"guest": {"cpus": {"use": cpu}, "memorySlots": {"use": slots}}}}),
            )
        };
        for cpu in [json!("1"), json!(1), json!(1.0), json!("1000m")] {
            assert_eq!(response(cpu, 2), size_in(&requested));
        }
        assert_ne!(response(json!("1"), 1), size_in(&requested));
        assert_ne!(response(json!("750m"), 2), size_in(&requested));
        assert_ne!(size_of(&json!({})), size_in(&requested));
    }

    #[test]
    fn error_labels_hide_the_vm_name() {
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
