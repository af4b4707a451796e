//! The patch of a VM object: exactly three replacements, always all. Source: spec/agent.md §4.3.

use kube::api::{Api, DynamicObject, Patch, PatchParams};
use protocol::revision::{Revision, RevisionWithTime};
use protocol::time::WallTime;
use protocol::units::{Bytes, Resources};
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
            Self::TimedOut => Failure::Unknown,
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

/// The three operations.
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
        { "op": "replace", "path": "/spec/guest/cpus/use", "value": target.cpu.to_quantity_string() },
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
    let patch = serde_json::from_value(operations).map_err(PatchError::Encode)?;
    api.patch(name, &PatchParams::default(), &Patch::Json::<()>(patch))
        .await
        .map(|object| version_of(&object.metadata.resource_version?))
        .map_err(|error| PatchError::Request(Box::new(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operations_are_the_deployed_agents() {
        let revision = Revision { value: 3, flags: 1 };
        let now = WallTime::parse("2024-01-02T03:04:05.25Z").expect("parses");
        let got = operations(Resources::new(500, 2 << 30), Bytes::gib(1), revision, now);
        let want: Value =
            serde_json::from_str(include_str!("../../testdata/patch.json")).expect("golden file");
        assert_eq!(got, want);
        let whole = operations(Resources::new(1000, 1 << 30), Bytes::gib(1), revision, now);
        assert_eq!(whole[0]["value"], "1", "a whole core is a text too");
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
