//! The API server without I/O: requests are applied to a map of objects and give a new object,
//! changes or a refusal.
//!
//! ```text
//!   path, query, body ─▶ request ─▶ store::Store::apply ─▶ WriteResponse + changes
//!                                                        ─▶ (shell: commit, then publish to view)
//!                                     │ codec: version and alias
//!                                     │ patch, ownership: from the old to the new object
//!                                     │ schema, metadata, hooks: default, prune, validate
//!                                     └ delete: finalizers, grace, cascade
//! ```
//!
//! Nothing here reads a clock or draws a random number: both come with the call. Readers use
//! [`view::View`], which the shell brings up to date only after a commit, so nothing is shown that
//! could still be lost.
//!
//! *Invariants*, each with its test:
//! * the revision only grows, also over removals and restarts — `store::tests::revisions_only_grow`
//! * a refused call changes nothing — `store::tests::a_refused_call_changes_nothing`
//! * taking the changes of a call back restores the state before it —
//!   `store::tests::rollback_restores_the_state`
//! * what is stored can be read back — `fuzz::tests::requests_hold`
//! * a `/status` write never touches the spec, a plain write never the status —
//!   `store::tests::status_and_spec_are_kept_apart`

pub mod audit;
pub mod body;
pub mod cells;
pub mod codec;
pub mod depth;
pub mod discovery;
pub mod error;
pub mod hooks;
pub mod jsonpath;
pub mod kind;
pub mod metadata;
pub mod native;
pub mod object;
pub mod openapi;
pub mod ownership;
pub mod patch;
pub mod protobuf;
pub mod registry;
pub mod request;
pub mod schema;
pub mod selector;
pub mod store;
pub mod table;
#[cfg(test)]
pub(crate) mod testing;
pub mod time;
pub mod view;
