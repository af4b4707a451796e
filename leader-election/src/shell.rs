//! API calls and the election's loop.

mod follower;
mod leading;
mod lease_object;

pub use follower::{Follower, LeaseObserver};
pub use leading::{Led, LostLead, exit_of, while_leading};
pub use lease_object::{ANNOTATION_DRAINED, ANNOTATION_HANDOVER, LeaseName};
