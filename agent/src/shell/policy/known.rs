//! Which policies there are, and which namespaces have chosen one: watches `ScalingPolicy` objects
//! and the namespaces with the label [`KEY_POLICY`].

use std::collections::BTreeMap;
use std::sync::Arc;

use api_client::watch::{self as api_watch, Config, Event, Events, Retry};
use futures::StreamExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use policy_contract::{CONTRACT, Digest, Spec};
use protocol::policy::{
    BUILTIN, GROUP, KEY_POLICY, KIND, Limits, PLURAL, ScalingPolicySpec, Scope, VERSION,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{PolicyRuntime, sources};
use crate::shell::RunError;
use crate::shell::metrics::AgentMetrics;
use crate::shell::modes::is_refused;

/// A policy that can be asked.
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

/// A policy, or why its object has none.
type Read = Result<Arc<Policy>, String>;

/// All policies and the choices of namespaces.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Known {
    policies: BTreeMap<String, Read>,
    namespaces: BTreeMap<String, String>,
}

/// The policy of a VM.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Choice {
    Builtin,
    /// The name that was chosen, and why it stands for no policy.
    Unknown(String, String),
    Policy(Arc<Policy>),
}

impl Known {
    pub(super) fn policies(&self) -> impl Iterator<Item = (&String, &Read)> {
        self.policies.iter()
    }

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
            Some(Ok(policy)) => {
                let mut namespaces = policy.namespaces.iter();
                if namespaces.any(|one| one == "*" || one == namespace) {
                    Choice::Policy(Arc::clone(policy))
                } else {
                    unknown("it is not for this namespace")
                }
            }
        }
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
        let limits = spec.limits.within(ceiling);
        let namespaces = spec.namespaces;
        let spec = Spec {
            contract: CONTRACT,
            scope: spec.scope,
            source: spec.source,
            params: spec.params,
            series: spec.series,
            feeds: spec.feeds,
        };
        Ok(Arc::new(Policy {
            digest: spec.digest(),
            name: name.clone(),
            spec,
            limits,
            namespaces,
        }))
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
    let (keeper, ceiling) = (runtime.clone(), runtime.0.settings.limits);
    let events = api_watch::objects(policies, Config::default(), Retry::Steady);
    let follow_policies = follow(
        metrics.watches.count("ScalingPolicies", events),
        cancel.clone(),
        move |object| read_policy(object, ceiling),
        move |listed| keeper.publish_policies(listed),
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
        tokio::join!(follow_policies, follow_namespaces);
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

impl PolicyRuntime {
    fn publish_policies(&self, listed: &BTreeMap<String, Read>) {
        let before = self.0.known.borrow().clone();
        if before.policies == *listed {
            return;
        }
        for (name, read) in listed {
            if before.policies.get(name) == Some(read) {
                continue;
            }
            match read {
                Ok(policy) => {
                    let digest = policy.digest.short();
                    tracing::info!(policy = name, digest, "policy is a candidate");
                    sources::keep(self.0.sources.as_deref(), policy);
                }
                Err(problem) => tracing::warn!(policy = name, problem, "policy cannot be used"),
            }
        }
        self.0.known.send_modify(|known| {
            known.policies.clone_from(listed);
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, spec: serde_json::Value) -> DynamicObject {
        let object = json!({
            "apiVersion": "policy.bellows.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": {"name": name},
            "spec": spec,
        });
        serde_json::from_value(object).expect("an object")
    }

    fn known() -> Known {
        let objects = [
            object("db", json!({"source": "return 1"})),
            object("own", json!({"source": "return 1", "namespaces": ["a"]})),
            object("bad", json!({"source": "\u{0}"})),
            object("sets", json!({"source": "return 1", "scope": "set"})),
        ];
        let read = |object| read_policy(object, Limits::default());
        Known {
            policies: objects.iter().filter_map(read).collect(),
            namespaces: [("a".to_owned(), "own".to_owned())].into(),
        }
    }

    fn name_of(choice: &Choice) -> &str {
        match choice {
            Choice::Builtin => "builtin",
            Choice::Unknown(..) => "unknown",
            Choice::Policy(policy) => &policy.name,
        }
    }

    #[test]
    fn annotation_wins_over_label_over_default() {
        let known = known();
        let cases = [
            ("b", None, None, "builtin"),
            ("b", None, Some("db"), "db"),
            ("a", None, Some("db"), "own"),
            ("a", Some("db"), Some("own"), "db"),
            ("a", Some("builtin"), Some("db"), "builtin"),
            ("b", Some("own"), None, "unknown"),
            ("b", Some("absent"), Some("db"), "unknown"),
            ("b", Some("bad"), None, "unknown"),
            ("b", Some("sets"), None, "unknown"),
        ];
        for (namespace, annotation, default, expected) in cases {
            let choice = known.choose(namespace, annotation, default);
            assert_eq!(name_of(&choice), expected, "{namespace} {annotation:?}");
        }
    }
}
