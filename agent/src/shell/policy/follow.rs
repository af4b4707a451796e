//! Follows `ScalingPolicy` objects and the namespaces with the label [`KEY_POLICY`], and publishes
//! what they say.

use std::collections::BTreeMap;
use std::sync::Arc;

use api_client::watch::{self as api_watch, Config, Event, Events, Retry};
use futures::StreamExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use policy_contract::{Digest, Spec};
use protocol::policy::{
    GROUP, KEY_POLICY, KIND, Limits, PLURAL, ScalingPolicySpec, ScalingPolicyStatus, Scope,
    VERSION, canary_percent,
};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::known::{Listed, Policy, Read};
use super::revisions::Revisions;
use super::{PolicyRuntime, cut};
use crate::shell::RunError;
use crate::shell::metrics::AgentMetrics;
use crate::shell::modes::is_refused;

pub(super) fn read_policy(object: &DynamicObject, ceiling: Limits) -> Option<(String, Read)> {
    let name = object.metadata.name.clone()?;
    let spec = ScalingPolicySpec::of_object(&object.data);
    // The policy controller asks policies of sets.
    if spec.as_ref().is_ok_and(|spec| spec.scope == Scope::Set) {
        return None;
    }
    let read = || -> Read {
        let spec = spec?;
        spec.check().map_err(|refusal| refusal.to_string())?;
        let status = ScalingPolicyStatus::of_object(&object.data)?;
        let deciding = status.deciding().map(|text| {
            Digest::of(text).ok_or_else(|| format!("its status names no digest: {text:?}"))
        });
        let deciding = deciding.transpose()?;
        let limits = spec.limits.within(ceiling);
        let cut_limits = cut::sentences(spec.limits, ceiling);
        let namespaces = spec.namespaces.clone();
        let spec = Spec::from(spec);
        let newest = Arc::new(Policy {
            digest: spec.digest(),
            name: name.clone(),
            spec,
            limits,
            cut_limits,
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
            let is_changed = keeper.0.known.send_if_modified(|known| {
                let is_other = known.namespaces != *listed;
                known.namespaces.clone_from(listed);
                is_other
            });
            if is_changed {
                keeper.store();
            }
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
