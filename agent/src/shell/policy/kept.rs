//! Which versions decide, stored beside their sources. An agent that starts while the policies
//! cannot be read goes on with them.
//!
//! * A version counts only if its stored source has its digest.
//! * The first list of the API replaces all of it.
//! * Limits are stored as they hold, and cut again by those of the agent's file at the start.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use policy_contract::Digest;
use protocol::policy::Limits;
use serde::{Deserialize, Serialize};

use super::known::{Known, Policy, Versions};
use super::{PolicyRuntime, cut, sources};

/// Name of the file in the folder of the sources.
const FILE: &str = "known.json";

/// Policies and choices of namespaces, with digests in the place of sources.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    policies: BTreeMap<String, KeptPolicy>,
    namespaces: BTreeMap<String, String>,
}

/// Versions of a policy.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptPolicy {
    live: Option<Digest>,
    candidate: Option<Digest>,
    canary: Option<u32>,
    limits: Limits,
    namespaces: Vec<String>,
}

impl Kept {
    fn of(known: &Known) -> Self {
        let readable = known.policies.iter().filter_map(|(name, versions)| {
            let versions = versions.as_ref().ok()?;
            Some((name.clone(), KeptPolicy::of(versions)?))
        });
        Self {
            policies: readable.collect(),
            namespaces: known.namespaces.clone(),
        }
    }

    fn restore(&self, folder: &Path, ceiling: Limits) -> Known {
        let restore = |(name, kept): (&String, &KeptPolicy)| {
            let versions = kept.restore(name, folder, ceiling);
            (name.clone(), Ok(versions))
        };
        Known {
            policies: self.policies.iter().map(restore).collect(),
            namespaces: self.namespaces.clone(),
        }
    }
}

impl KeptPolicy {
    /// `None` if no version's source is known.
    fn of(versions: &Versions) -> Option<Self> {
        let any = versions.all().next()?;
        let digest = |policy: &Option<Arc<Policy>>| policy.as_ref().map(|policy| policy.digest);
        Some(Self {
            live: digest(&versions.live).or(versions.missing),
            candidate: digest(&versions.candidate),
            canary: versions.canary,
            limits: any.limits,
            namespaces: any.namespaces.clone(),
        })
    }

    fn restore(&self, name: &str, folder: &Path, ceiling: Limits) -> Versions {
        let read = |digest: Option<Digest>| {
            let digest = digest?;
            let Some(spec) = sources::read(Some(folder), &digest) else {
                let digest = digest.short();
                tracing::warn!(policy = name, digest, "stored source is missing or altered");
                return None;
            };
            Some(Arc::new(Policy {
                name: name.to_owned(),
                spec,
                digest,
                limits: self.limits.within(ceiling),
                cut_limits: cut::sentences(self.limits, ceiling),
                namespaces: self.namespaces.clone(),
            }))
        };
        let (live, candidate) = (read(self.live), read(self.candidate));
        Versions {
            missing: self.live.filter(|_| live.is_none()),
            canary: self.canary.filter(|_| candidate.is_some()),
            live,
            candidate,
        }
    }
}

impl PolicyRuntime {
    /// Takes what an earlier agent stored, until the API is read.
    pub(super) fn restore(&self) {
        let Some(folder) = self.0.sources.as_deref() else {
            return;
        };
        let path = folder.join(FILE);
        let read = std::fs::read(&path);
        if matches!(&read, Err(error) if error.kind() == ErrorKind::NotFound) {
            return;
        }
        let kept = read.and_then(|text| Ok(serde_json::from_slice::<Kept>(&text)?));
        match kept {
            Ok(kept) => {
                let known = kept.restore(folder, self.0.settings.limits);
                tracing::info!(policies = known.policies.len(), "stored policies restored");
                self.0.known.send_replace(known);
                self.follow_versions();
            }
            Err(error) => {
                let path = path.display();
                tracing::warn!(%error, %path, "failed to read stored policies");
            }
        }
    }

    /// Stores the sources of the known versions, then which of them are used. Sizing goes on if
    /// that fails.
    pub(super) fn store(&self) {
        if self.0.sources.is_none() {
            return;
        }
        let runtime = self.clone();
        tokio::task::spawn_blocking(move || {
            // One after the other, so that the newest state is written last.
            let storing = runtime.0.storing.lock();
            let _turn = storing.unwrap_or_else(PoisonError::into_inner);
            let known = runtime.0.known.borrow().clone();
            runtime.write(&known);
        });
    }

    fn write(&self, known: &Known) {
        let Some(folder) = self.0.sources.as_deref() else {
            return;
        };
        let readable = known.policies.values().filter_map(|one| one.as_ref().ok());
        sources::keep(folder, readable.flat_map(Versions::all));
        let written = serde_json::to_vec(&Kept::of(known))
            .map_err(std::io::Error::from)
            .and_then(|text| sources::replace(&folder.join(FILE), &text));
        if let Err(error) = written {
            let path = folder.display();
            tracing::warn!(%error, %path, "failed to store which policies decide");
        }
    }
}

#[cfg(test)]
mod tests {
    use policy_contract::Spec;

    use super::*;

    fn policy(source: &str) -> Arc<Policy> {
        let limits = Limits {
            max_units: Some(8),
            ..Limits::default()
        };
        Arc::new(Policy::of("db", Spec::of_source(source), limits))
    }

    /// A policy in canary and one that cannot be read. The sources of the first are stored.
    fn stored(folder: &Path) -> Known {
        let versions = Versions {
            live: Some(policy("return 1")),
            candidate: Some(policy("return 2")),
            missing: None,
            canary: Some(25),
        };
        sources::keep(folder, versions.all());
        let unreadable = ("bad".to_owned(), Err("it has no spec".to_owned()));
        Known {
            policies: BTreeMap::from([("db".to_owned(), Ok(versions)), unreadable]),
            namespaces: BTreeMap::from([("a".to_owned(), "db".to_owned())]),
        }
    }

    fn versions(known: &Known) -> &Versions {
        known.policies["db"].as_ref().expect("versions")
    }

    /// Requirement: V40
    #[test]
    fn v40_restored_policies_are_those_that_were_stored() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut known = stored(folder.path());
        let text = serde_json::to_string(&Kept::of(&known)).expect("JSON");
        assert!(!text.contains("return"), "sources are stored once: {text}");
        let kept: Kept = serde_json::from_str(&text).expect("it reads");
        known.policies.remove("bad");
        assert_eq!(kept.restore(folder.path(), Limits::default()), known);
    }

    /// Requirement: V34
    #[test]
    fn v34_limits_of_the_agents_file_cut_restored_policies() {
        let folder = tempfile::tempdir().expect("a folder");
        let ceiling = Limits {
            max_units: Some(4),
            ..Limits::default()
        };
        let kept = Kept::of(&stored(folder.path()));
        let known = kept.restore(folder.path(), ceiling);
        let all: Vec<_> = versions(&known).all().collect();
        assert_eq!(all.len(), 2);
        for policy in all {
            assert_eq!(policy.limits, ceiling);
            assert_eq!(policy.cut_limits.len(), 1, "{:?}", policy.cut_limits);
        }
    }

    /// Requirement: V40
    #[test]
    fn v40_stored_source_with_another_digest_does_not_count() {
        let folder = tempfile::tempdir().expect("a folder");
        let known = stored(folder.path());
        let live = versions(&known).live.as_ref().expect("a version").digest;
        let path = sources::path_of(folder.path(), &live);
        let text = std::fs::read_to_string(&path).expect("a source");
        std::fs::write(&path, text.replace("return 1", "return 9")).expect("written");
        let known = Kept::of(&known).restore(folder.path(), Limits::default());
        let versions = versions(&known);
        assert_eq!((&versions.live, versions.missing), (&None, Some(live)));
        assert!(versions.candidate.is_some());
    }
}
