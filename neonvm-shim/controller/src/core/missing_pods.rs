//! Pods that the watch no longer shows. The watch selects pods by a label, so a missing pod is gone
//! or has lost its label. The controller reads the pod to find out which, and never gives up a
//! running guest for a label.

use std::collections::BTreeMap;

use protocol::object::Pod;
use serde::Serialize;

/// Result of reading a missing pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// The same pod, with the same uid.
    Itself,
    /// Another pod has the name now: the missing pod is gone.
    Another,
}

/// Missing pods that must be read, by name.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(transparent)]
pub struct MissingPods {
    pods: BTreeMap<String, Missing>,
}

#[derive(Debug, Clone, Serialize)]
struct Missing {
    uid: String,
    /// A read was in flight already. Its result may be older than the watch event.
    is_read_early: bool,
}

impl MissingPods {
    /// Adds a pod that the watch no longer shows. `is_being_read` tells whether a read is in
    /// flight.
    pub(super) fn add(&mut self, pod: &Pod, is_being_read: bool) {
        let missing = Missing {
            uid: pod.metadata.uid.clone(),
            is_read_early: is_being_read,
        };
        self.pods.insert(pod.metadata.name.clone(), missing);
    }

    /// Removes a pod that needs no read.
    pub(super) fn remove(&mut self, name: &str) {
        self.pods.remove(name);
    }

    /// Removes all but one pod, and returns their names.
    pub(super) fn take_others(&mut self, name: &str) -> Vec<String> {
        let is_other = |other: &&String| other.as_str() != name;
        let others: Vec<String> = self.pods.keys().filter(is_other).cloned().collect();
        self.pods.retain(|other, _| other == name);
        others
    }

    /// Whether the pod must be read.
    pub(super) fn has(&self, name: &str) -> bool {
        self.pods.contains_key(name)
    }

    /// Name of the next pod to read.
    pub(super) fn next(&self) -> Option<&str> {
        self.pods.keys().next().map(String::as_str)
    }

    /// Takes the result of a read. A read that was in flight before must be followed by another.
    pub(super) fn read(&mut self, pod: &Pod) -> Found {
        let name = &pod.metadata.name;
        let Some(missing) = self.pods.get_mut(name) else {
            return Found::Itself;
        };
        let found = if missing.uid == pod.metadata.uid {
            Found::Itself
        } else {
            Found::Another
        };
        if std::mem::take(&mut missing.is_read_early) && found == Found::Itself {
            return found;
        }
        self.pods.remove(name);
        found
    }
}
