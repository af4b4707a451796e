//! Reading of environments, revisions and deployments, as the commands need them.

use std::collections::BTreeMap;

use fleet_store::{KeptRevision, kept_revisions};
use protocol::fleet::{FleetKind, KEY_ENVIRONMENT};
use serde::Deserialize;
use serde_json::Value;

use crate::api::{Api, Kind};
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::view::fleet::{Deployed, Env, sort_newest_first};

pub(super) const ENVIRONMENT: Kind = Kind::Fleet(FleetKind::Environment);
pub(super) const DEPLOYMENT: Kind = Kind::Fleet(FleetKind::Deployment);
pub(super) const INSTANCE: Kind = Kind::Fleet(FleetKind::Instance);

/// # Errors
/// 1 if there is no such environment.
pub(super) async fn get_env(api: &Api, (namespace, name): (&str, &str)) -> Outcome<Env> {
    let object = api.get(ENVIRONMENT, namespace, name).await?;
    Env::of(object)
        .map_err(|error| Fail::not_so(format!("fleet environment {namespace}/{name}: {error}")))
}

/// The environment, if there is one.
pub(super) async fn find_env(api: &Api, key: (&str, &str)) -> Outcome<Option<Env>> {
    let all = list_envs(api, Some(key.0)).await?;
    Ok(all.into_iter().find(|one| one.name == key.1))
}

/// The readable environments.
pub(super) async fn list_envs(api: &Api, namespace: Option<&str>) -> Outcome<Vec<Env>> {
    let objects = api.list(ENVIRONMENT, namespace).await?;
    Ok(objects
        .into_iter()
        .filter_map(|one| Env::of(one).ok())
        .collect())
}

/// The readable deployments, the newest first.
pub(super) async fn list_deployments(api: &Api, namespace: Option<&str>) -> Outcome<Vec<Deployed>> {
    let objects = api.list(DEPLOYMENT, namespace).await?;
    let mut all: Vec<Deployed> = objects
        .iter()
        .filter_map(|one| Deployed::of(one).ok())
        .collect();
    sort_newest_first(&mut all);
    Ok(all)
}

/// The instances. In a cluster a person may lack the right to read them, or the kind may be
/// missing.
pub(super) async fn instances_if_readable(
    context: &Context,
    api: &Api,
    namespace: Option<&str>,
) -> Outcome<Vec<Value>> {
    match api.list(INSTANCE, namespace).await {
        Err(_) if context.asks_cluster() => Ok(Vec::new()),
        listed => listed,
    }
}

/// Deployments of one environment, the newest first.
pub(super) async fn deployments_of(
    api: &Api,
    (namespace, name): (&str, &str),
) -> Outcome<Vec<Deployed>> {
    let mut all = list_deployments(api, Some(namespace)).await?;
    all.retain(|one| one.spec.environment == name);
    Ok(all)
}

/// Revisions of an environment, the newest first.
pub(super) async fn revisions_of(
    api: &Api,
    (namespace, name): (&str, &str),
) -> Outcome<Vec<KeptRevision>> {
    let label = KEY_ENVIRONMENT.replace('/', "%2F");
    let query = format!("?labelSelector={label}%3D{name}");
    let objects = api.list_by(Kind::Revision, Some(namespace), &query).await?;
    Ok(kept_revisions(&objects))
}

/// Labels of an object.
pub(super) fn labels(object: &Value) -> BTreeMap<String, String> {
    BTreeMap::deserialize(&object["metadata"]["labels"]).unwrap_or_default()
}
