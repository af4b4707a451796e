//! Pods that the watch shows no more. It shows those that are marked as a VM's, so such a pod is
//! gone or has lost the mark, and only a read tells which: a guest that runs is not given up for a
//! label.

use std::collections::BTreeMap;

use protocol::object::Pod;
use serde::Serialize;

/// What a read has found of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// The pod itself.
    Itself,
    /// Another pod that has its name by now: the pod is gone.
    Another,
}

/// Pods whose fate is to be read, by name.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(transparent)]
pub struct Unseen {
    pods: BTreeMap<String, Doubt>,
}

#[derive(Debug, Clone, Serialize)]
struct Doubt {
    uid: String,
    /// A read that was on its way already may tell of a time before.
    is_read_early: bool,
}

impl Unseen {
    /// The watch has ceased to show a pod, perhaps while it is being read.
    pub(super) fn add(&mut self, pod: &Pod, is_being_read: bool) {
        let doubt = Doubt {
            uid: pod.metadata.uid.clone(),
            is_read_early: is_being_read,
        };
        self.pods.insert(pod.metadata.name.clone(), doubt);
    }

    /// Its fate is known, or nobody asks for it.
    pub(super) fn remove(&mut self, name: &str) {
        self.pods.remove(name);
    }

    /// Whether the fate of the pod is to be read.
    pub(super) fn has(&self, name: &str) -> bool {
        self.pods.contains_key(name)
    }

    /// The next one to be read.
    pub(super) fn next(&self) -> Option<&str> {
        self.pods.keys().next().map(String::as_str)
    }

    /// A read has found a pod. One that was on its way before is to be followed by another.
    pub(super) fn read(&mut self, pod: &Pod) -> Found {
        let name = &pod.metadata.name;
        let Some(doubt) = self.pods.get_mut(name) else {
            return Found::Itself;
        };
        let found = if doubt.uid == pod.metadata.uid {
            Found::Itself
        } else {
            Found::Another
        };
        if std::mem::take(&mut doubt.is_read_early) && found == Found::Itself {
            return found;
        }
        self.pods.remove(name);
        found
    }
}
