//! Why the amount that a pod takes of its node is unknown.

use serde::Serialize;

use super::amount::Resource;

/// Why a pod's size is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Hash, Serialize)]
pub enum PodProblem {
    /// `spec` does not decode.
    #[error("spec is not readable: {0}")]
    Spec(String),
    /// A container's request is negative or too large to count.
    #[error("a container's {0} request is out of range")]
    RequestRange(&'static str),
    /// A VM's pod has no annotation `vm.neon.tech/resources`.
    #[error("annotation vm.neon.tech/resources is missing")]
    NoVmResources,
    /// An annotation does not decode: its name and the decoder's error.
    #[error("annotation {0} is not readable: {1}")]
    Annotation(&'static str, String),
    /// An over-commit factor is below 1 or above 2^32-1 thousandths.
    #[error("over-commit factor of {0:?} is out of range")]
    OvercommitRange(Resource),
    /// There is a requested size without a compute unit.
    #[error("resources-requested without scaling-unit")]
    RequestedWithoutUnit,
}
