//! Pools of addresses of the overlay network: kind IPPool (docs/compatibility/neonvm.md §1.8).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::object::ObjectMeta;

/// A pool of IPv4 addresses for the overlay network (docs/compatibility/neonvm.md §1.8).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IpPool {
    /// Always [`super::API_VERSION`]. Decoding does not check it.
    pub api_version: String,
    /// Always `IPPool`. Decoding does not check it.
    pub kind: String,
    /// Name and resource version of the pool.
    pub metadata: ObjectMeta,
    /// Range and allocations. A writer compares the resource version.
    pub spec: IpPoolSpec,
}

/// Range and allocations of an address pool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IpPoolSpec {
    /// Range of the pool in CIDR notation: `10.100.0.0/16`.
    pub range: String,
    /// Owner of each allocated address, by its decimal offset from the first address.
    pub allocations: BTreeMap<String, IpAllocation>,
}

/// Owner of one address.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IpAllocation {
    /// Key of the VM: `namespace/vm`.
    pub id: String,
    /// Not read. Objects of older versions may contain it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub podref: Option<String>,
}
