//! Holders of overlay addresses.

use serde::Serialize;

/// A VM that holds or wants an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Holder of the address: a VM as `namespace/name`.
    pub id: String,
    /// Uid of the VM. An entry with another uid belongs to an earlier VM of the same name.
    pub uid: String,
}
