//! Which policies there are, and which namespaces have chosen one.

use std::collections::BTreeMap;
use std::sync::Arc;

use policy_contract::{Digest, Spec};
use protocol::policy::{BUILTIN, Limits, Role, is_in_canary};

use crate::core::tallies::Version;

/// A version of a policy that can be asked.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Policy {
    pub name: String,
    pub spec: Spec,
    pub digest: Digest,
    /// Its own limits within those of the agent's administrator.
    pub limits: Limits,
    /// Own limits that are looser than those, as sentences.
    pub cut_limits: Vec<String>,
    pub namespaces: Vec<String>,
}

impl Policy {
    pub(super) fn version(&self) -> Version {
        Version {
            policy: self.name.clone(),
            digest: self.digest,
        }
    }

    /// A policy for all namespaces.
    #[cfg(test)]
    pub(super) fn of(name: &str, spec: Spec, limits: Limits) -> Self {
        Self {
            digest: spec.digest(),
            name: name.to_owned(),
            spec,
            limits,
            cut_limits: Vec::new(),
            namespaces: vec!["*".to_owned()],
        }
    }
}

/// What a `ScalingPolicy` says.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Listed {
    /// The version of the spec.
    pub newest: Arc<Policy>,
    /// Version that decides by the status.
    pub deciding: Option<Digest>,
    /// Percent of the VMs that the newest version decides about, if it is in canary.
    pub canary: Option<u32>,
}

/// The versions of a policy that VMs are asked about.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Versions {
    /// Decides. Without it the built-in goal does.
    pub live: Option<Arc<Policy>>,
    /// Its answers are recorded.
    pub candidate: Option<Arc<Policy>>,
    /// Version that should decide and whose source is not known yet.
    pub missing: Option<Digest>,
    /// Percent of the VMs that the candidate decides about, if it is in canary.
    pub canary: Option<u32>,
}

/// What a policy's object says, or why it says nothing.
pub(super) type Read = Result<Listed, String>;

/// All policies and the choices of namespaces.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Known {
    pub policies: BTreeMap<String, Result<Versions, String>>,
    pub namespaces: BTreeMap<String, String>,
}

/// The policy of a VM.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Choice {
    Builtin,
    /// The name that was chosen, and why it stands for no policy.
    Unknown(String, String),
    Policy(Versions),
}

impl Known {
    /// The policy of a VM: its annotation, else its namespace's label, else the default.
    pub(super) fn choose(
        &self,
        namespace: &str,
        annotation: Option<&str>,
        default: Option<&str>,
    ) -> Choice {
        let label = self.namespaces.get(namespace).map(String::as_str);
        let Some(name) = annotation.or(label).or(default).filter(|n| *n != BUILTIN) else {
            return Choice::Builtin;
        };
        let unknown = |why: &str| Choice::Unknown(name.to_owned(), why.to_owned());
        match self.policies.get(name) {
            None => unknown("there is no such policy"),
            Some(Err(problem)) => unknown(problem),
            Some(Ok(versions)) if versions.serve(namespace) => Choice::Policy(versions.clone()),
            Some(Ok(_)) => unknown("it is not for this namespace"),
        }
    }
}

impl Policy {
    /// Another version of the same object.
    pub(super) fn with_spec(&self, spec: Spec) -> Self {
        Self {
            digest: spec.digest(),
            spec,
            ..self.clone()
        }
    }
}

impl Versions {
    /// The versions of an object. `find` looks for the version that decides.
    pub(super) fn of(listed: &Listed, find: impl Fn(&Digest) -> Option<Spec>) -> Self {
        let newest = &listed.newest;
        match listed.deciding {
            None => Self {
                candidate: Some(Arc::clone(newest)),
                canary: listed.canary,
                ..Self::default()
            },
            Some(digest) if digest == newest.digest => Self {
                live: Some(Arc::clone(newest)),
                ..Self::default()
            },
            Some(digest) => {
                let live = find(&digest).map(|spec| Arc::new(newest.with_spec(spec)));
                Self {
                    missing: live.is_none().then_some(digest),
                    live,
                    candidate: Some(Arc::clone(newest)),
                    canary: listed.canary,
                }
            }
        }
    }

    /// Whether the candidate decides about the VM with this UID.
    pub(super) fn is_canary(&self, uid: &str) -> bool {
        self.candidate.is_some() && self.canary.is_some_and(|share| is_in_canary(uid, share))
    }

    /// The versions that the VM with this UID is asked about, by their role. In the canary the
    /// candidate decides, and the live version is in its shadow.
    pub(super) fn roles(&self, uid: &str) -> BTreeMap<Role, Arc<Policy>> {
        let [live, shadow] = if self.is_canary(uid) {
            [&self.candidate, &self.live]
        } else {
            [&self.live, &self.candidate]
        };
        let live = live.iter().map(|policy| (Role::Live, policy));
        let shadow = shadow.iter().map(|policy| (Role::Shadow, policy));
        let both = live.chain(shadow);
        both.map(|(role, policy)| (role, Arc::clone(policy)))
            .collect()
    }

    /// All versions that are known.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.live.iter().chain(&self.candidate)
    }

    /// Whether VMs of a namespace may have the policy.
    fn serve(&self, namespace: &str) -> bool {
        let mut namespaces = self.all().flat_map(|policy| &policy.namespaces);
        namespaces.any(|one| one == "*" || one == namespace)
    }
}

#[cfg(test)]
mod tests;
