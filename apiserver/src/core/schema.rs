//! Structural schemas: read once from a CRD document, then used to default, prune, validate and
//! merge objects.
//!
//! The subset is what `apiextensions.k8s.io/v1` calls structural: one type per node, no `$ref`, and
//! the `x-kubernetes-*` extensions. Value validations under `allOf`/`anyOf`/`oneOf`/`not` are
//! checked too.

mod defaults;
mod model;
mod parse;
mod prune;
mod validate;

pub use defaults::apply_defaults;
pub use model::{Checks, ListType, NodeType, PatchStrategy, Schema, SchemaError};
pub use prune::prune;
pub use validate::{Problem, validate};
