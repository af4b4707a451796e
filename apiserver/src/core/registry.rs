//! All kinds being served, by group and resource.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::error::Cause;
use super::kind::{Kind, Version};

/// The kinds being served. Cheap to clone: kinds are shared.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    kinds: BTreeMap<(String, String), Arc<Kind>>,
}

impl Registry {
    /// Adds or replaces a kind.
    ///
    /// # Errors
    /// When another kind of the group has the same singular or CamelCase name, or the resource is a
    /// built-in one.
    pub fn insert(&mut self, kind: Kind) -> Result<(), Cause> {
        let same_group = self
            .kinds
            .values()
            .filter(|other| other.group == kind.group);
        for other in same_group {
            if other.resource == kind.resource {
                if other.builtin.is_some() {
                    return Err(taken("spec.names.plural", &kind.resource));
                }
            } else if other.kind == kind.kind {
                return Err(taken("spec.names.kind", &kind.kind));
            } else if other.singular == kind.singular {
                return Err(taken("spec.names.singular", &kind.singular));
            }
        }
        self.kinds
            .insert((kind.group.clone(), kind.resource.clone()), Arc::new(kind));
        Ok(())
    }

    /// Removes a kind with all its versions.
    pub fn remove(&mut self, group: &str, resource: &str) {
        self.kinds.remove(&(group.to_owned(), resource.to_owned()));
    }

    /// The kind served at `group`/`resource`.
    #[must_use]
    pub fn kind(&self, group: &str, resource: &str) -> Option<&Arc<Kind>> {
        self.kinds.get(&(group.to_owned(), resource.to_owned()))
    }

    /// The kind with this CamelCase name in `group`.
    #[must_use]
    pub fn by_kind(&self, group: &str, kind: &str) -> Option<&Arc<Kind>> {
        self.kinds
            .values()
            .find(|known| known.group == group && known.kind == kind)
    }

    /// All kinds by group, then resource.
    pub fn kinds(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.kinds.values()
    }

    /// Groups with their served versions, in order of preference. The core group is `""`.
    #[must_use]
    pub fn group_versions(&self) -> BTreeMap<String, Vec<String>> {
        let mut groups: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for kind in self.kinds.values() {
            let served = kind.versions.iter().filter(|version| version.served);
            groups
                .entry(kind.group.clone())
                .or_default()
                .extend(served.map(|v| v.name.as_str()));
        }
        let ordered = |names: BTreeSet<&str>| {
            let mut names: Vec<String> = names.into_iter().map(str::to_owned).collect();
            names.sort_by(|a, b| rank(b).cmp(&rank(a)).then_with(|| a.cmp(b)));
            names
        };
        groups
            .into_iter()
            .map(|(group, names)| (group, ordered(names)))
            .collect()
    }

    /// Kinds served in one group and version.
    pub fn served<'a>(
        &'a self,
        group: &'a str,
        version: &'a str,
    ) -> impl Iterator<Item = (&'a Arc<Kind>, &'a Version)> {
        let in_group = self.kinds.values().filter(move |kind| kind.group == group);
        in_group.filter_map(move |kind| Some((kind, kind.version(version)?)))
    }
}

fn taken(field: &str, name: &str) -> Cause {
    Cause {
        reason: "FieldValueInvalid".to_owned(),
        field: field.to_owned(),
        message: format!("Invalid value: {name:?}: is already in use in this group"),
    }
}

/// Order of versions: `v2` before `v1` before `v1beta2` before `v1beta1` before `v1alpha1` before
/// anything else.
fn rank(version: &str) -> (u8, u64, u64) {
    let Some(rest) = version.strip_prefix('v') else {
        return (0, 0, 0);
    };
    let split = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let Ok(major) = rest[..split].parse() else {
        return (0, 0, 0);
    };
    let suffix = &rest[split..];
    let stage = |name: &str| {
        suffix
            .strip_prefix(name)
            .and_then(|minor| minor.parse().ok())
    };
    if suffix.is_empty() {
        (3, major, 0)
    } else if let Some(minor) = stage("beta") {
        (2, major, minor)
    } else if let Some(minor) = stage("alpha") {
        (1, major, minor)
    } else {
        (0, 0, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ranked_as_kubernetes_ranks_them() {
        let mut names = vec!["foo", "v1alpha1", "v11", "v1beta2", "v2", "v1", "v1beta10"];
        names.sort_by_key(|name| std::cmp::Reverse(rank(name)));
        assert_eq!(
            names,
            ["v11", "v2", "v1", "v1beta10", "v1beta2", "v1alpha1", "foo"]
        );
    }
}
