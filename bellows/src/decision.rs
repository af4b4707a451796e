//! The agent's last decision about a VM, as data and in words.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

/// A decision. JSON is the agent's own.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct Decision(Value);

impl Decision {
    /// A few words.
    pub(crate) fn in_short(&self) -> String {
        self.0["reason"].as_str().unwrap_or("-").to_owned()
    }

    /// Sentences.
    pub(crate) fn in_words(&self) -> Vec<String> {
        vec![self.in_short()]
    }
}

/// The last decision of every VM in the agent's dump.
pub(crate) fn by_vm(_agent: &Value) -> BTreeMap<String, Decision> {
    BTreeMap::new()
}
