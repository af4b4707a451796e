//! What an order is about, by its path.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

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
            Self::Promote => {
                "The next stage of the newest version begins: it decides about some VMs, then about all."
            }
            Self::Demote => "The version before it decides again, else the built-in goal.",
            Self::Pause => "The built-in goal decides until the pause ends.",
            Self::Resume => "The live version decides again.",
        }
    }
}

/// Orders about a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drain {
    Begin,
    End,
}

impl Drain {
    fn of(word: &str) -> Option<Self> {
        Some(match word {
            "drain" => Self::Begin,
            "undrain" => Self::End,
            _ => return None,
        })
    }
}

/// Orders about a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setting {
    Bounds,
    Mode,
}

impl Setting {
    fn of(word: &str) -> Option<Self> {
        Some(match word {
            "bounds" => Self::Bounds,
            "mode" => Self::Mode,
            _ => return None,
        })
    }
}

/// Orders about a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetStep {
    Scale,
    Upgrade,
    Undo,
}

impl SetStep {
    fn of(word: &str) -> Option<Self> {
        Some(match word {
            "scale" => Self::Scale,
            "upgrade" => Self::Upgrade,
            "undo" => Self::Undo,
            _ => return None,
        })
    }
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
    Node {
        name: String,
        order: Drain,
    },
    Set {
        namespace: String,
        name: String,
        step: SetStep,
    },
}

impl Target {
    /// The order of a path, such as `/policies/db/promote`.
    pub(crate) fn of(path: &str) -> Option<Self> {
        let decode = |part| percent_decode_str(part).decode_utf8().ok();
        let parts: Vec<Cow<'_, str>> =
            path.split('/').skip(1).map(decode).collect::<Option<_>>()?;
        let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
        Some(match parts[..] {
            ["policies", name, word] => Self::Policy {
                name: name.to_owned(),
                order: Staged::of(word)?,
            },
            ["nodes", name, word] => Self::Node {
                name: name.to_owned(),
                order: Drain::of(word)?,
            },
            ["vms", namespace, name, word] => Self::Vm {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                setting: Setting::of(word)?,
            },
            ["sets", namespace, name, word] => Self::Set {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                step: SetStep::of(word)?,
            },
            _ => return None,
        })
    }

    /// Page of the object.
    pub(super) fn page(&self) -> String {
        match self {
            Self::Policy { name, .. } => path_of(&["policies", name]),
            Self::Vm {
                namespace, name, ..
            } => path_of(&["vms", namespace, name]),
            Self::Node { name, .. } => path_of(&["nodes", name]),
            Self::Set {
                namespace, name, ..
            } => path_of(&["sets", namespace, name]),
        }
    }

    /// Name of the object in the journal.
    pub(super) fn key(&self) -> String {
        match self {
            Self::Policy { name, .. } | Self::Node { name, .. } => name.clone(),
            Self::Vm {
                namespace, name, ..
            }
            | Self::Set {
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
            Self::Node { name, .. } => format!("Node {name}"),
            Self::Set {
                namespace, name, ..
            } => format!("Set {namespace}/{name}"),
        }
    }

    /// Whether the object is there. Only what is shown may be changed.
    pub(super) fn is_in(&self, state: &Snapshot) -> bool {
        match self {
            Self::Policy { name, .. } => state.policy(name).is_some(),
            Self::Vm {
                namespace, name, ..
            } => state.vm(&format!("{namespace}/{name}")).is_some(),
            Self::Node { name, .. } => state.nodes.iter().any(|node| node.name == *name),
            Self::Set {
                namespace, name, ..
            } => state.set(&format!("{namespace}/{name}")).is_some(),
        }
    }
}
