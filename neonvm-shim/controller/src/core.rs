//! The controller's core. The question it answers: given what a VM should be, what is stored of it,
//! what its pod and its runner say, and what time it is: what should its status say, and what is to
//! be done now?
//!
//! ```text
//! watch ─┐                       ┌─► Kubernetes API (one write at a time, and one of a pod's requests)
//! runner ┼─► VmCore ─► plan() ───┤
//! timer ─┘   (newest state)      └─► runner: PUT /v1/size (one order at a time)
//! ```
//!
//! Happy path of a VM: finalizer, scaling mode, phase Pending with a pod name, SSH secret, pod,
//! Running with size and revision. Happy path of a resize: what its pod requests or else says in
//! its metadata (first when it grows), order, phase Scaling, the runner's report, phase Running
//! with the new size and revision.
//!
//! Failure paths: a write on an old version is refused, the VM is read and planned afresh; any
//! other failure is retried with doubling pauses per kind of action, told in condition Degraded
//! from the second time on, and holds up nothing else; a pod or runner that ended leads to
//! Succeeded or Failed and from there by the restart policy; a runner that is silent leaves the
//! phase alone, because its guest may be well.
//!
//! Invariants:
//! * The name of a pod is stored before the pod is created, and the next name only after the last
//!   pod is gone (unless told otherwise): never two pods for one VM.
//!   `plan_converges_and_never_has_two_pods`
//! * A pod says how much its VM uses before the guest grows, by its requests where they tell all of
//!   it, else by its metadata. `growth_waits_for_the_pods_annotations`,
//!   `n41_a_growth_waits_for_what_its_pod_requests_alone`, `World::is_on_pod`
//! * The restart count never falls. `plan_converges_and_never_has_two_pods`
//! * A plan whose actions are carried out plans nothing more.
//!   `plan_converges_and_never_has_two_pods`
//! * A pod is taken for gone by the word of the API server about this pod alone: a watch that shows
//!   it no more is a reason to read it.
//!   `a_pod_that_loses_its_label_keeps_its_guest_and_gets_the_label_back`
//! * Phases PreMigrating and Migrating are [`migration`]'s. `migrating_vms_are_left_alone`

pub mod action;
pub mod ahead;
pub mod announce;
pub mod backoff;
pub mod certificate;
pub mod conditions;
pub mod container;
pub mod failing;
pub mod metadata;
pub mod migration;
pub mod missing_pods;
mod moment;
mod names;
pub mod observe;
pub mod overlay;
pub mod phases;
pub mod plan;
pub mod pod;
pub mod power;
pub mod problem;
pub mod refusal;
pub mod requests;
pub mod review;
pub mod settings;
pub mod stages;
pub mod vm;
pub mod vm_event;
pub mod volumes;

#[cfg(test)]
pub(crate) mod testing;

pub use action::{Action, Kind, Peer};
pub use moment::Moment;
pub use problem::Problem;
pub use refusal::Refusal;
pub use settings::{AffinityStyle, Settings};
pub use vm::{Event, Reply, VmCore};
pub use vm_event::VmEvent;
pub use volumes::{SSH_PRIVATE, SSH_PUBLIC};
