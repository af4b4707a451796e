//! Kinds of watched objects, and the end of their watches.

use kube::core::{ApiResource, GroupVersionKind};
use protocol::policy;

/// The controller ended without a cancel.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A watch ended for good, which it never should: a defect.
    #[error("the watch of {0} ended")]
    WatchEnded(&'static str),
}

/// The kind of sets.
pub(super) fn set_resource() -> ApiResource {
    let kind = GroupVersionKind::gvk(policy::GROUP, policy::VERSION, policy::SET_KIND);
    ApiResource::from_gvk_with_plural(&kind, policy::SET_PLURAL)
}

pub(super) fn resource(group: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", kind), plural)
}
