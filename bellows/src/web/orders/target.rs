//! What an order is about, by its path.

use crate::web::paths::path_of;
use crate::web::snapshot::Snapshot;

/// Orders about a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Staged {
    Promote,
    Demote,
    Pause,
    Resume,
}

impl Staged {
    fn of(word: &str) -> Option<Self> {
        Some(match word {
            "promote" => Self::Promote,
            "demote" => Self::Demote,
            "pause" => Self::Pause,
            "resume" => Self::Resume,
            _ => return None,
        })
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Promote => "Promote the newest version",
            Self::Demote => "Take the live version back",
            Self::Pause => "Pause the policy",
            Self::Resume => "End the pause",
        }
    }

    pub(super) fn effect(self) -> &'static str {
        match self {
            Self::Promote => "The newest version decides about all VMs that have the policy.",
            Self::Demote => "The version before it decides again, else the built-in goal.",
            Self::Pause => "The built-in goal decides until the pause ends.",
            Self::Resume => "The live version decides again.",
        }
    }
}

/// Orders about a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setting {
    Bounds,
    Mode,
}

/// An order, by its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Policy {
        name: String,
        order: Staged,
    },
    Vm {
        namespace: String,
        name: String,
        setting: Setting,
    },
}

impl Target {
    /// An order about a VM by the last word of its path.
    pub(crate) fn of_vm(namespace: &str, name: &str, word: &str) -> Option<Self> {
        let setting = match word {
            "bounds" => Setting::Bounds,
            "mode" => Setting::Mode,
            _ => return None,
        };
        Some(Self::Vm {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            setting,
        })
    }

    pub(super) fn of_policy(name: String, word: &str) -> Option<Self> {
        let order = Staged::of(word)?;
        Some(Self::Policy { name, order })
    }

    /// Page of the object.
    pub(super) fn page(&self) -> String {
        match self {
            Self::Policy { name, .. } => path_of(&["policies", name]),
            Self::Vm {
                namespace, name, ..
            } => path_of(&["vms", namespace, name]),
        }
    }

    /// Name of the object in the journal.
    pub(super) fn key(&self) -> String {
        match self {
            Self::Policy { name, .. } => name.clone(),
            Self::Vm {
                namespace, name, ..
            } => format!("{namespace}/{name}"),
        }
    }

    pub(super) fn shown(&self) -> String {
        match self {
            Self::Policy { name, .. } => format!("Policy {name}"),
            Self::Vm {
                namespace, name, ..
            } => format!("VM {namespace}/{name}"),
        }
    }

    /// Whether the object is there. Only what is shown may be changed.
    pub(super) fn is_in(&self, state: &Snapshot) -> bool {
        match self {
            Self::Policy { name, .. } => state.policy(name).is_some(),
            Self::Vm {
                namespace, name, ..
            } => state.vm(&format!("{namespace}/{name}")).is_some(),
        }
    }
}
