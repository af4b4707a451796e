//! The object `CapacityWish`: how many nodes there should be, and why.
//!
//! A program of the operator reads it, provides nodes by its own credential, and sets the condition
//! [`FULFILLED`]. Nothing here holds a credential of a cloud.

use serde::{Deserialize, Serialize};

use crate::object::ObjectMeta;
use crate::time::WallTime;
use crate::vm::Condition;

/// Kind of a wish.
pub const WISH_KIND: &str = "CapacityWish";
/// Name of the kind in URLs.
pub const WISH_PLURAL: &str = "capacitywishes";
/// Name of the wish of the built-in rule: growth was denied on every node.
pub const WISH_OF_DENIED_GROWTH: &str = "growth-denied";
/// Condition of a wish that the operator's program has met.
pub const FULFILLED: &str = "Fulfilled";
/// Most nodes of a wish.
pub const MAX_NODES: u32 = 5_000;

/// A wish. Its name is that of the policy, or [`WISH_OF_DENIED_GROWTH`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CapacityWish {
    /// Name and version of the object.
    pub metadata: ObjectMeta,
    /// What the policy controller wants.
    pub spec: CapacityWishSpec,
    /// What the operator's program has done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<CapacityWishStatus>,
}

/// `spec` of a `CapacityWish`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CapacityWishSpec {
    /// Number of nodes that there should be.
    pub nodes: u32,
    /// Reason, 1-32 of `a-z0-9_`.
    pub why: String,
    /// Since when this number is wanted.
    pub since: WallTime,
}

/// `status` of a `CapacityWish`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CapacityWishStatus {
    /// At most one of each type.
    pub conditions: Vec<Condition>,
}
