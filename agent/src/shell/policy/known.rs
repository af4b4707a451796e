//! Which policies there are, and which namespaces have chosen one: watches `ScalingPolicy` objects
//! and the namespaces with the label [`KEY_POLICY`].

use std::collections::BTreeMap;
use std::sync::Arc;

use api_client::watch::{self as api_watch, Config, Event, Events, Retry};
use futures::StreamExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use policy_contract::{Digest, Spec};
use protocol::policy::{
    BUILTIN, GROUP, KEY_POLICY, KIND, Limits, PLURAL, Role, ScalingPolicySpec, ScalingPolicyStatus,
    Scope, VERSION, canary_percent, is_in_canary,
};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::PolicyRuntime;
use super::revisions::Revisions;
use crate::core::tallies::Version;
use crate::shell::RunError;
use crate::shell::metrics::AgentMetrics;
use crate::shell::modes::is_refused;

/// A version of a policy that can be asked.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Policy {
    pub name: String,
    pub spec: Spec,
    pub digest: Digest,
    /// Its own limits within those of the agent's administrator.
    pub limits: Limits,
    namespaces: Vec<String>,
}

impl Policy {
    /// A policy for all namespaces.
    #[cfg(test)]
    pub(super) fn of(name: &str, spec: Spec, limits: Limits) -> Self {
        Self {
            digest: spec.digest(),
            name: name.to_owned(),
            spec,
            limits,
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
    namespaces: BTreeMap<String, String>,
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
    pub(super) fn version(&self) -> Version {
        Version {
            policy: self.name.clone(),
            digest: self.digest,
        }
    }

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

fn read_policy(object: &DynamicObject, ceiling: Limits) -> Option<(String, Read)> {
    let name = object.metadata.name.clone()?;
    let read = || -> Read {
        let spec = ScalingPolicySpec::of_object(&object.data)?;
        spec.check().map_err(|refusal| refusal.to_string())?;
        if spec.scope != Scope::Vm {
            return Err("its scope is not vm".into());
        }
        let status = ScalingPolicyStatus::of_object(&object.data)?;
        let deciding = status.deciding().map(|text| {
            Digest::of(text).ok_or_else(|| format!("its status names no digest: {text:?}"))
        });
        let deciding = deciding.transpose()?;
        let limits = spec.limits.within(ceiling);
        let namespaces = spec.namespaces.clone();
        let spec = Spec::from(spec);
        let newest = Arc::new(Policy {
            digest: spec.digest(),
            name: name.clone(),
            spec,
            limits,
            namespaces,
        });
        // A newer version than the one in canary is tried in shadow first.
        let is_canary = status.canary() == Some(&*newest.digest.to_string());
        let canary = is_canary.then(|| canary_percent(&object.data));
        Ok(Listed {
            newest,
            deciding,
            canary,
        })
    };
    let read = read();
    Some((name, read))
}

fn read_namespace(object: &DynamicObject) -> Option<(String, String)> {
    let name = object.metadata.name.clone()?;
    let label = object.metadata.labels.as_ref()?.get(KEY_POLICY)?;
    Some((name, label.clone()))
}

/// Starts both watches.
pub(super) fn spawn(
    runtime: &PolicyRuntime,
    kube: kube::Client,
    metrics: &AgentMetrics,
    tasks: &mut JoinSet<Result<(), RunError>>,
    cancel: &CancellationToken,
) {
    let gvk = GroupVersionKind::gvk(GROUP, VERSION, KIND);
    let resource = ApiResource::from_gvk_with_plural(&gvk, PLURAL);
    let policies: Api<DynamicObject> = Api::all_with(kube.clone(), &resource);
    let (publisher, listed) = watch::channel(BTreeMap::new());
    let revisions = Revisions::new(runtime.clone(), kube.clone());
    let ceiling = runtime.0.settings.limits;
    let events = api_watch::objects(policies, Config::default(), Retry::Steady);
    let follow_policies = follow(
        metrics.watches.count("ScalingPolicies", events),
        cancel.clone(),
        move |object| read_policy(object, ceiling),
        move |listed| {
            publisher.send_replace(listed.clone());
        },
    );
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Namespace"));
    let namespaces: Api<DynamicObject> = Api::all_with(kube, &resource);
    let config = Config::default().labels(KEY_POLICY);
    let events = api_watch::objects(namespaces, config, Retry::Steady);
    let keeper = runtime.clone();
    let follow_namespaces = follow(
        metrics.watches.count("Policy Namespaces", events),
        cancel.clone(),
        read_namespace,
        move |listed| {
            keeper.0.known.send_if_modified(|known| {
                let is_other = known.namespaces != *listed;
                known.namespaces.clone_from(listed);
                is_other
            });
        },
    );
    tasks.spawn(async move {
        tokio::join!(follow_policies, follow_namespaces, revisions.run(listed));
        Ok(())
    });
}

/// Follows objects that are known by their name, until cancelled.
async fn follow<T>(
    events: Events<DynamicObject>,
    cancel: CancellationToken,
    read: impl Fn(&DynamicObject) -> Option<(String, T)>,
    publish: impl Fn(&BTreeMap<String, T>),
) {
    let mut events = events.take_until(cancel.cancelled_owned()).boxed();
    let mut listed = BTreeMap::new();
    let mut is_listing = false;
    let mut was_refused = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => (is_listing, listed) = (true, BTreeMap::new()),
            Ok(Event::InitApply(object)) => listed.extend(read(&object)),
            Ok(Event::InitDone) => (is_listing, was_refused) = (false, false),
            Ok(Event::Apply(object)) => {
                listed.remove(object.metadata.name.as_deref().unwrap_or_default());
                listed.extend(read(&object));
            }
            Ok(Event::Delete(object)) => {
                listed.remove(object.metadata.name.as_deref().unwrap_or_default());
            }
            Err(error) => {
                let is_first = !std::mem::replace(&mut was_refused, is_refused(&error));
                if is_first || !was_refused {
                    let error = daemon_kit::chain(&error);
                    tracing::warn!(error, "cannot follow the policies");
                }
                continue;
            }
        }
        if !is_listing {
            publish(&listed);
        }
    }
}

#[cfg(test)]
mod tests;
