//! The controller's core. The question it answers: given the wanted VM, its stored status, the
//! reports of its pod and its runner and the time, what should the status say, and which actions
//! are due?
//!
//! ```text
//! watch ─┐                       ┌─► API server (one write at a time, one of pod requests)
//! runner ┼─► VmCore ─► plan() ───┤
//! timer ─┘   (newest state)      └─► runner: PUT /v1/size (one order at a time)
//! ```
//!
//! Happy path of a VM: finalizer, scaling mode, phase Pending with a pod name, SSH secret, pod,
//! Running with size and revision. Happy path of a resize: the pod's requests, or else its metadata
//! (first for a growth), order, phase Scaling, the runner's report, phase Running with the new size
//! and revision.
//!
//! Failure paths: a write on an old version is refused, and the VM is read and planned again. Any
//! other failure is retried with doubling pauses per kind of action, and delays nothing else. From
//! the second time on, condition Degraded reports it. A pod or runner that ended leads to Succeeded
//! or Failed, and from there by the restart policy. A silent runner leaves the phase as it is,
//! because its guest may be well.
//!
//! Invariants:
//! * The name of a pod is stored before the pod is created, and the next name only after the last
//!   pod is gone (unless the settings allow it): never two pods for one VM.
//!   `plan_converges_and_never_has_two_pods`
//! * A pod shows the size of its VM before the guest grows, by its requests if they cover both
//!   resources, else by its metadata. `growth_waits_for_pod_annotations`,
//!   `growth_waits_for_its_pods_requests_alone`, `World::is_on_pod`
//! * The restart count never falls. `plan_converges_and_never_has_two_pods`
//! * A plan whose actions are carried out plans nothing more.
//!   `plan_converges_and_never_has_two_pods`
//! * Only the API server's response about a pod proves that the pod is gone. A watch that no longer
//!   shows the pod is a reason to read it.
//!   `a_pod_that_loses_its_label_keeps_its_guest_and_gets_the_label_back`
//! * Phases PreMigrating and Migrating are [`migration`]'s. `migrating_vms_are_left_alone`

pub mod action;
pub mod ahead;
pub mod announce;
pub mod backoff;
pub mod certificate;
pub mod conditions;
pub mod container;
mod deletion;
mod draft;
pub mod failing;
pub mod head_start;
pub mod kind;
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
pub mod set;
pub mod settings;
pub mod stages;
pub mod view;
pub mod vm;
pub mod vm_event;
pub mod volumes;

#[cfg(test)]
pub(crate) mod testing;

pub use action::Action;
pub use kind::{Kind, Peer};
pub use moment::Moment;
pub use problem::Problem;
pub use refusal::Refusal;
pub use settings::{AffinityStyle, Settings};
pub use vm::{ActionResponse, Event, VmCore};
pub use vm_event::VmEvent;
pub use volumes::{SSH_PRIVATE, SSH_PUBLIC};
