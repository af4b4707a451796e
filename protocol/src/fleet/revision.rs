//! Revisions of an environment, kept as `ControllerRevision` objects. Their data never changes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::environment::EnvironmentSpec;
use super::kind::KEY_ENVIRONMENT;

/// Data of a revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RevisionData {
    /// The environment's spec with every default.
    pub spec: EnvironmentSpec,
    /// The program that the spec stands for.
    pub resolved: Resolved,
}

/// A program, known by its hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resolved {
    /// Semantic version, without a leading v.
    pub version: String,
    /// SHA-256 of the program, or digest of the image, lower-case hex.
    pub sha256: String,
    /// Signature of the image, as the signed release has it. Empty for a program, and for an image
    /// that is not signed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub bundle: String,
}

/// Name of the revision of a number.
#[must_use]
pub fn revision_name(environment: &str, number: i64) -> String {
    format!("{environment}-r{number}")
}

/// Label by which the revisions of an environment are found.
#[must_use]
pub fn revision_label(environment: &str) -> BTreeMap<String, String> {
    [(KEY_ENVIRONMENT.to_owned(), environment.to_owned())].into()
}
