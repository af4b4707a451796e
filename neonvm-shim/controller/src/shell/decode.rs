//! From the API server's JSON to typed objects. A malformed object hurts itself only.

use protocol::object::{Pod, without_nulls};
use protocol::policy::{SET_KIND, VmSet};
use protocol::vm::{VirtualMachine, VirtualMachineMigration};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// An object that is not of its kind's shape.
#[derive(Debug, thiserror::Error)]
#[error("object is not a {kind}")]
pub struct DecodeError {
    /// The kind it should be.
    pub kind: &'static str,
    /// Error of the decoder, with the position.
    #[source]
    pub source: serde_json::Error,
}

/// Reads a VM.
///
/// # Errors
/// [`DecodeError`] names the member that does not fit.
pub(super) fn vm(object: impl Serialize) -> Result<VirtualMachine, DecodeError> {
    decode(object, "VirtualMachine")
}

/// Reads a migration.
///
/// # Errors
/// [`DecodeError`] names the member that does not fit.
pub(super) fn migration(object: impl Serialize) -> Result<VirtualMachineMigration, DecodeError> {
    decode(object, "VirtualMachineMigration")
}

/// Reads a set.
///
/// # Errors
/// [`DecodeError`] names the member that does not fit.
pub(super) fn set(object: impl Serialize) -> Result<VmSet, DecodeError> {
    decode(object, SET_KIND)
}

/// Reads the members of a pod that the controller uses.
///
/// # Errors
/// [`DecodeError`] names the member that does not fit.
pub(super) fn pod(object: impl Serialize) -> Result<Pod, DecodeError> {
    decode(object, "Pod")
}

fn decode<T: DeserializeOwned>(
    object: impl Serialize,
    kind: &'static str,
) -> Result<T, DecodeError> {
    let value = serde_json::to_value(object);
    value
        .and_then(|value| serde_json::from_value(without_nulls(value)))
        .map_err(|source| DecodeError { kind, source })
}
