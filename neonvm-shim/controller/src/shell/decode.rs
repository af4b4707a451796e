//! From the API server's JSON to typed objects. A malformed object hurts itself only.

use protocol::object::{Pod, without_nulls};
use protocol::policy::{SET_KIND, VmSet};
use protocol::vm::{VirtualMachine, VirtualMachineMigration};
use serde::de::DeserializeOwned;
use serde_json::Value;

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
pub(super) fn vm(value: Value) -> Result<VirtualMachine, DecodeError> {
    decode(value, "VirtualMachine")
}

/// Reads a migration.
///
/// # Errors
/// [`DecodeError`] names the member that does not fit.
pub(super) fn migration(value: Value) -> Result<VirtualMachineMigration, DecodeError> {
    decode(value, "VirtualMachineMigration")
}

/// Reads a set.
///
/// # Errors
/// [`DecodeError`] names the member that does not fit.
pub(super) fn set(value: Value) -> Result<VmSet, DecodeError> {
    decode(value, SET_KIND)
}

/// Reads the members of a pod that the controller uses.
///
/// # Errors
/// [`DecodeError`] names the member that does not fit.
pub(super) fn pod(value: Value) -> Result<Pod, DecodeError> {
    decode(value, "Pod")
}

fn decode<T: DeserializeOwned>(value: Value, kind: &'static str) -> Result<T, DecodeError> {
    serde_json::from_value(without_nulls(value)).map_err(|source| DecodeError { kind, source })
}
