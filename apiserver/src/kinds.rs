//! The built-in kinds, read from the documents in `kinds/`.

use serde_json::Value;

use crate::core::kind::Kind;
use crate::core::protobuf::Messages;
use crate::core::registry::Registry;

/// One document per built-in kind.
const DOCUMENTS: [&str; 11] = [
    include_str!("../kinds/namespaces.yaml"),
    include_str!("../kinds/nodes.yaml"),
    include_str!("../kinds/pods.yaml"),
    include_str!("../kinds/events.yaml"),
    include_str!("../kinds/events.events.k8s.io.yaml"),
    include_str!("../kinds/secrets.yaml"),
    include_str!("../kinds/configmaps.yaml"),
    include_str!("../kinds/serviceaccounts.yaml"),
    include_str!("../kinds/leases.coordination.k8s.io.yaml"),
    include_str!("../kinds/controllerrevisions.apps.yaml"),
    include_str!("../kinds/customresourcedefinitions.apiextensions.k8s.io.yaml"),
];

/// A document that is part of the program could not be read: a defect of the program.
#[derive(Debug, thiserror::Error)]
#[error("built-in kind document {number}: {why}")]
pub struct DocumentError {
    number: usize,
    why: String,
}

/// A registry with the built-in kinds.
///
/// # Errors
/// When a document of the program is broken, which a unit test excludes.
pub fn builtin() -> Result<Registry, DocumentError> {
    let mut registry = Registry::default();
    for (number, text) in DOCUMENTS.iter().enumerate() {
        let broken = |why: String| DocumentError { number, why };
        let document: Value =
            serde_saphyr::from_str(text).map_err(|error| broken(error.to_string()))?;
        let kind = Kind::parse(&document, true).map_err(|causes| broken(format!("{causes:?}")))?;
        registry
            .insert(kind)
            .map_err(|cause| broken(format!("{cause:?}")))?;
    }
    Ok(registry)
}

/// The definitions of the project's own kinds, as objects.
///
/// # Errors
/// When a document of the program is broken, which a unit test excludes.
pub fn definitions() -> Result<Vec<Value>, DocumentError> {
    let read = |(number, text): (usize, &&str)| {
        serde_saphyr::from_str(text).map_err(|error| DocumentError {
            number,
            why: error.to_string(),
        })
    };
    protocol::crds::ALL.iter().enumerate().map(read).collect()
}

/// The protobuf messages of core kinds.
///
/// # Errors
/// When the document of the program is broken, which a unit test excludes.
pub fn protobuf() -> Result<Messages, DocumentError> {
    let broken = |why: String| DocumentError {
        number: DOCUMENTS.len(),
        why,
    };
    let text = include_str!("../kinds/protobuf.yaml");
    let document: Value =
        serde_saphyr::from_str(text).map_err(|error| broken(error.to_string()))?;
    Messages::parse(&document).ok_or_else(|| broken("a member is not `name type`".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_document_is_a_kind() {
        let registry = builtin().expect("documents are sound");
        assert_eq!(registry.kinds().count(), DOCUMENTS.len());
        for definition in definitions().expect("documents are sound") {
            let kind = Kind::parse(&definition, false).expect("a valid CRD");
            let groups = [
                "vm.neon.tech",
                protocol::policy::GROUP,
                protocol::fleet::GROUP,
            ];
            assert!(groups.contains(&kind.group.as_str()));
        }
    }
}
