//! The sources of versions that decide although their object's spec is newer: in memory, beside the
//! journal, or in the API as a `ControllerRevision`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use policy_contract::{Digest, Spec};
use protocol::policy::{REVISION_NAMESPACE, revision_name};
use serde::Deserialize as _;
use tokio::sync::watch;

use super::known::{Policy, Read, Versions};
use super::{PolicyRuntime, sources};

/// Wait before another attempt to read a revision.
const RETRY: Duration = Duration::from_secs(10);

/// The policies as their objects name them.
type AllRead = BTreeMap<String, Read>;

/// The task that finds the sources and publishes the policies.
pub(super) struct Revisions {
    runtime: PolicyRuntime,
    api: Api<DynamicObject>,
    /// Versions of objects that are there.
    specs: BTreeMap<Digest, Spec>,
}

impl Revisions {
    pub(super) fn new(runtime: PolicyRuntime, kube: kube::Client) -> Self {
        let kind = GroupVersionKind::gvk("apps", "v1", "ControllerRevision");
        let resource = ApiResource::from_gvk(&kind);
        Self {
            runtime,
            api: Api::namespaced_with(kube, REVISION_NAMESPACE, &resource),
            specs: BTreeMap::new(),
        }
    }

    /// Runs until the objects are followed no more.
    pub(super) async fn run(mut self, mut listed: watch::Receiver<AllRead>) {
        while listed.changed().await.is_ok() {
            loop {
                let read = listed.borrow_and_update().clone();
                if self.publish(&read).await {
                    break;
                }
                tokio::select! {
                    () = tokio::time::sleep(RETRY) => {}
                    changed = listed.changed() => if changed.is_err() { return },
                }
            }
        }
    }

    /// Publishes the policies. Returns whether every source is known.
    async fn publish(&mut self, read: &AllRead) -> bool {
        let mut is_whole = true;
        for (name, listed) in read {
            let Ok(listed) = listed else { continue };
            let newest = &listed.newest;
            self.specs
                .entry(newest.digest)
                .or_insert_with(|| newest.spec.clone());
            if let Some(digest) = listed.deciding
                && let Err(error) = self.find(name, digest).await
            {
                tracing::warn!(
                    policy = name,
                    digest = digest.short(),
                    error,
                    "the version that decides is not found; the built-in goal decides"
                );
                is_whole = false;
            }
        }
        let policies: BTreeMap<_, _> = read
            .iter()
            .map(|(name, listed)| {
                let find = |digest: &Digest| self.specs.get(digest).cloned();
                let versions = listed.as_ref().map(|listed| Versions::of(listed, find));
                (name.clone(), versions.map_err(Clone::clone))
            })
            .collect();
        self.forget_others(&policies);
        self.runtime.publish_policies(policies);
        is_whole
    }

    async fn find(&mut self, policy: &str, digest: Digest) -> Result<(), String> {
        if self.specs.contains_key(&digest) {
            return Ok(());
        }
        let kept = sources::read(self.runtime.0.sources.as_deref(), &digest);
        let spec = match kept {
            Some(spec) => spec,
            None => self.fetch(policy, digest).await?,
        };
        self.specs.insert(digest, spec);
        Ok(())
    }

    async fn fetch(&self, policy: &str, digest: Digest) -> Result<Spec, String> {
        let name = revision_name(policy, &digest.to_string());
        let object = self.api.get(&name).await;
        let object = object.map_err(|error| daemon_kit::chain(&error))?;
        let spec = Spec::deserialize(&object.data["data"]).map_err(|error| error.to_string())?;
        spec.check().map_err(|refusal| refusal.to_string())?;
        if spec.digest() != digest {
            return Err(format!("revision {name} has another digest"));
        }
        Ok(spec)
    }

    fn forget_others(&mut self, policies: &BTreeMap<String, Result<Versions, String>>) {
        let used = |digest: &Digest| {
            let mut all = policies.values().filter_map(|one| one.as_ref().ok());
            all.any(|versions| versions.all().any(|policy| policy.digest == *digest))
        };
        self.specs.retain(|digest, _| used(digest));
    }
}

impl PolicyRuntime {
    fn publish_policies(&self, policies: BTreeMap<String, Result<Versions, String>>) {
        let before = self.0.known.borrow().policies.clone();
        if before == policies {
            return;
        }
        for (name, versions) in &policies {
            if before.get(name) == Some(versions) {
                continue;
            }
            match versions {
                Ok(versions) => {
                    let short = |policy: &Arc<Policy>| policy.digest.short();
                    let live = versions.live.as_ref().map(short);
                    let candidate = versions.candidate.as_ref().map(short);
                    tracing::info!(policy = name, live, candidate, "policy changed");
                }
                Err(problem) => tracing::warn!(policy = name, problem, "policy cannot be used"),
            }
        }
        let used = policies.values().filter_map(|one| one.as_ref().ok());
        let used = used.flat_map(Versions::all);
        let digests: BTreeSet<Digest> = used.map(|policy| policy.digest).collect();
        for link in [&self.0.live, &self.0.shadow] {
            link.keep_aside(|digest| digests.contains(digest));
        }
        self.0.known.send_modify(|known| known.policies = policies);
        self.store();
        self.follow_versions();
    }
}

#[cfg(test)]
mod tests;
