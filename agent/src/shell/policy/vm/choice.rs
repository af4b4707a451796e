//! What a VM object says about its policy.

use std::collections::BTreeMap;

/// Annotation and labels of a VM object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::shell) struct VmChoice {
    pub annotation: Option<Box<str>>,
    /// The first 32 labels, by name. Most VMs have few, and a map has room for eleven.
    pub labels: Box<[(Box<str>, Box<str>)]>,
}

impl VmChoice {
    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        let labels = self.labels.iter();
        labels
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .collect()
    }
}
