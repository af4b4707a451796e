//! Revisions as people and commands read them: which is the newest, and which has the same data?

use protocol::fleet::RevisionData;
use serde::Deserialize;
use serde_json::Value;

/// A revision with its readable data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptRevision {
    /// Name of the object.
    pub name: String,
    /// Number, which grows with each revision of the environment.
    pub number: i64,
    /// The environment's spec and the program that it stood for.
    pub data: RevisionData,
}

/// The readable ones of an environment's revisions, the newest first.
#[must_use]
pub fn kept_revisions(objects: &[Value]) -> Vec<KeptRevision> {
    let read = |object: &Value| {
        Some(KeptRevision {
            name: object["metadata"]["name"].as_str()?.to_owned(),
            number: object["revision"].as_i64()?,
            data: RevisionData::deserialize(&object["data"]).ok()?,
        })
    };
    let mut all: Vec<KeptRevision> = objects.iter().filter_map(read).collect();
    all.sort_by_key(|one| std::cmp::Reverse(one.number));
    all
}
