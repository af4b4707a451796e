//! Revisions as people and commands read them: which is the newest, and which has the same data?

use protocol::fleet::{KEY_DIGEST, KEY_ENVIRONMENT, RevisionData};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::programs::hex;

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

/// The readable ones of an environment's revisions, the newest first. Without those that were
/// changed after they were made.
#[must_use]
pub fn kept_revisions(objects: &[Value]) -> Vec<KeptRevision> {
    let read = |object: &Value| {
        Some(KeptRevision {
            name: object["metadata"]["name"].as_str()?.to_owned(),
            number: object["revision"].as_i64()?,
            data: read_data(object).ok()?,
        })
    };
    let mut all: Vec<KeptRevision> = objects.iter().filter_map(read).collect();
    all.sort_by_key(|one| std::cmp::Reverse(one.number));
    all
}

/// SHA-256 of what a revision says: its name, environment, number and data.
pub(crate) fn digest(object: &Value) -> String {
    let metadata = &object["metadata"];
    let said = json!([
        metadata["namespace"],
        metadata["name"],
        metadata["labels"][KEY_ENVIRONMENT],
        object["revision"],
        object["data"],
    ]);
    hex(&Sha256::digest(said.to_string()))
}

/// Data of a revision that says what it said when it was made.
pub(crate) fn read_data(object: &Value) -> Result<RevisionData, String> {
    let found = digest(object);
    match object["metadata"]["annotations"][KEY_DIGEST].as_str() {
        Some(digest) if digest == found => {}
        digest => {
            let named = digest.unwrap_or("none");
            return Err(format!(
                "Tampered: it has SHA-256 {found}, and its annotation {KEY_DIGEST} names {named}; \
                 make and start another revision"
            ));
        }
    }
    RevisionData::deserialize(&object["data"]).map_err(|error| format!(".data: {error}"))
}

#[cfg(test)]
mod tests {
    use protocol::fleet::{EnvironmentSpec, Resolved};
    use protocol::parts::PartName;

    use super::*;
    use crate::objects::{environment_object, revision_object};

    fn stored() -> Value {
        let spec = EnvironmentSpec::of_release(PartName::Monitor, "1.2.3");
        let environment = environment_object("default", "m", &spec);
        let resolved = Resolved {
            version: "1.2.3".to_owned(),
            sha256: "5".repeat(64),
            bundle: String::new(),
        };
        revision_object(&environment, 1, &RevisionData { spec, resolved })
    }

    /// The bits are those of the text in which an API server keeps it.
    ///
    /// Requirement: B50
    #[test]
    fn revision_with_a_flipped_bit_is_not_read() {
        let whole = stored();
        read_data(&whole).expect("readable");
        let mut changed = 0;
        for pointer in [
            "/data",
            "/revision",
            "/metadata/name",
            "/metadata/labels",
            "/metadata/annotations",
        ] {
            let text = whole
                .pointer(pointer)
                .expect("a member")
                .to_string()
                .into_bytes();
            for bit in 0..text.len() * 8 {
                let mut flipped = text.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let Ok(value) = serde_json::from_slice::<Value>(&flipped) else {
                    continue;
                };
                let mut object = whole.clone();
                *object.pointer_mut(pointer).expect("a member") = value;
                if object == whole {
                    continue;
                }
                changed += 1;
                let refused = read_data(&object).expect_err("it was changed");
                assert!(refused.starts_with("Tampered: "), "{refused}");
                assert_eq!(kept_revisions(&[object]), []);
            }
        }
        assert!(changed > 1_000, "{changed}");
    }
}
