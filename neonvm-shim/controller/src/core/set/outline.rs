//! A set in a few numbers, and what changed from one outline to the next. Journal and metrics show
//! both.

use std::fmt;

use protocol::policy::{Upgrade, VmSet, member_name};

/// A set in a few numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outline {
    /// Name of the set.
    pub name: String,
    /// Uid of the set. Another uid is another set.
    pub uid: String,
    /// Desired number of members.
    pub wanted: u32,
    /// Members that exist.
    pub present: u32,
    /// Members whose guest is up.
    pub ready: u32,
    /// Members of the desired version.
    pub updated: u32,
    /// Version of new members.
    pub version: Option<u32>,
    /// Upgrade that is under way or halted.
    pub upgrade: Option<Upgrade>,
}

/// A change of a set that a person may ask about later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Another number of members is desired.
    Count {
        /// Number that was desired before.
        from: u32,
        /// Number that is desired now.
        to: u32,
    },
    /// An upgrade has begun.
    Begun {
        /// Version that members get.
        to: u32,
    },
    /// An upgrade replaces this member next.
    Step {
        /// Name of the member.
        member: String,
        /// Version that it gets.
        to: u32,
    },
    /// An upgrade goes no further.
    Halted {
        /// Version that members were to get.
        to: u32,
        /// Why it has stopped.
        why: String,
    },
    /// An upgrade has ended. New members get this version.
    Ended {
        /// Version of new members.
        version: u32,
    },
}

impl Outline {
    /// The outline of a set.
    #[must_use]
    pub fn of(set: &VmSet) -> Self {
        let status = set.status.clone().unwrap_or_default();
        Self {
            name: set.metadata.name.clone(),
            uid: set.metadata.uid.clone(),
            wanted: set.spec.replicas,
            present: status.replicas,
            ready: status.ready_replicas,
            updated: status.updated_replicas,
            version: status.version,
            upgrade: status.upgrade,
        }
    }

    /// Whether an upgrade has stopped.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.upgrade
            .as_ref()
            .is_some_and(|upgrade| upgrade.halted.is_some())
    }

    /// What changed since `old`. Nothing, if that is of another set.
    #[must_use]
    pub fn changes_since(&self, old: &Self) -> Vec<Change> {
        if old.uid != self.uid {
            return Vec::new();
        }
        let mut changes = Vec::new();
        if old.wanted != self.wanted {
            changes.push(Change::Count {
                from: old.wanted,
                to: self.wanted,
            });
        }
        let Some(upgrade) = &self.upgrade else {
            let version = self.version.filter(|_| old.upgrade.is_some());
            changes.extend(version.map(|version| Change::Ended { version }));
            return changes;
        };
        let to = upgrade.to;
        let before = old.upgrade.as_ref().filter(|old| old.to == to);
        if before.is_none() {
            changes.push(Change::Begun { to });
        }
        let step = upgrade.ordinal;
        let is_new = step != before.and_then(|before| before.ordinal);
        changes.extend(step.filter(|_| is_new).map(|ordinal| Change::Step {
            member: member_name(&self.name, ordinal),
            to,
        }));
        let was = before.and_then(|before| before.halted.as_ref());
        let halted = upgrade.halted.clone();
        let halted = halted.filter(|why| was != Some(why));
        changes.extend(halted.map(|why| Change::Halted { to, why }));
        changes
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count { from, to } => write!(f, "{from} to {to} members"),
            Self::Begun { to } => write!(f, "begins, to version {to}"),
            Self::Step { member, to } => write!(f, "replaces {member}, to version {to}"),
            Self::Halted { to, .. } => write!(f, "halts, to version {to}"),
            Self::Ended { version } => write!(f, "ended, version {version}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(wanted: u32, version: u32, upgrade: Option<Upgrade>) -> Outline {
        Outline {
            name: "web".into(),
            uid: "u".into(),
            wanted,
            version: Some(version),
            upgrade,
            ..Outline::default()
        }
    }

    /// Requirement: V16
    #[test]
    fn v16_each_step_of_an_upgrade_is_one_change() {
        let step = |ordinal: Option<u32>, halted: Option<&str>| {
            let upgrade = Upgrade {
                to: 2,
                ordinal,
                halted: halted.map(str::to_owned),
            };
            outline(2, 1, Some(upgrade))
        };
        let states = [
            outline(1, 1, None),
            outline(2, 1, None),
            step(None, None),
            step(Some(0), None),
            step(Some(0), None),
            step(Some(1), None),
            step(Some(1), Some("web-1 has ended")),
            outline(2, 1, None),
        ];
        let changes = states.windows(2).map(|pair| {
            let changes = pair[1].changes_since(&pair[0]);
            let shown: Vec<String> = changes.iter().map(ToString::to_string).collect();
            shown.join("; ")
        });
        let expected = [
            "1 to 2 members",
            "begins, to version 2",
            "replaces web-0, to version 2",
            "",
            "replaces web-1, to version 2",
            "halts, to version 2",
            "ended, version 1",
        ];
        assert_eq!(changes.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn another_set_of_the_name_has_no_changes() {
        let mut other = outline(9, 1, None);
        other.uid = "v".into();
        assert_eq!(other.changes_since(&outline(1, 1, None)), []);
    }
}
