//! Workloads of the API whose templates run parts: how they are read and written.

use std::time::Duration;

use fleet_core::Outcome;
use kube::api::{
    Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use protocol::fleet::TurnSpec;
use serde_json::Value;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use crate::image::digest;

/// Time after which a call counts as not answered.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// Field manager of the images.
pub(crate) const WRITER: &str = "bellows-fleet";
const CONFLICT: u16 = 409;

/// Why the object was not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unread {
    /// The namespace has none that this program may read.
    Absent(String),
    /// No answer for now.
    Failed(String),
}

impl From<Unread> for Outcome {
    fn from(problem: Unread) -> Self {
        match problem {
            Unread::Absent(text) | Unread::Failed(text) => Self::Transient(text),
        }
    }
}

/// A workload of a namespace.
#[derive(Clone)]
pub(crate) struct Workload {
    api: Api<DynamicObject>,
    kind: &'static str,
    name: &'static str,
    namespace: String,
}

impl Workload {
    /// A workload of the group `apps`.
    pub(crate) fn new(
        client: kube::Client,
        namespace: &str,
        kind: &'static str,
        name: &'static str,
    ) -> Self {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", kind));
        Self {
            api: Api::namespaced_with(client, namespace, &resource),
            kind,
            name,
            namespace: namespace.to_owned(),
        }
    }

    pub(crate) async fn read(&self) -> Result<Value, Unread> {
        let read = timeout(CALL_LIMIT, self.api.get(self.name)).await;
        let read = read.map_err(|_| Unread::Failed("no answer in time".to_owned()))?;
        let object = read.map_err(|error| match error {
            kube::Error::Api(refusal) if matches!(refusal.code, 403 | 404) => {
                let (namespace, kind, name) = (&self.namespace, self.kind, self.name);
                Unread::Absent(format!("namespace {namespace} has no {kind} {name}"))
            }
            error => Unread::Failed(daemon_kit::chain(&error)),
        })?;
        serde_json::to_value(object).map_err(|error| Unread::Failed(error.to_string()))
    }

    /// Replaces the version that was read.
    pub(crate) async fn replace(&self, object: Value) -> Result<(), Outcome> {
        let object: DynamicObject = serde_json::from_value(object)
            .map_err(|error| Outcome::Transient(error.to_string()))?;
        let params = PostParams {
            field_manager: Some(WRITER.to_owned()),
            ..PostParams::default()
        };
        written(timeout(CALL_LIMIT, self.api.replace(self.name, &params, &object)).await)
    }

    /// Applies fields to the version that was read. Fields of others are taken over: a person has
    /// ordered that.
    pub(crate) async fn apply(&self, fields: &Value) -> Result<(), Outcome> {
        let params = PatchParams::apply(WRITER).force();
        let patch = Patch::Apply(fields);
        written(timeout(CALL_LIMIT, self.api.patch(self.name, &params, &patch)).await)
    }
}

fn written(answer: Result<kube::Result<DynamicObject>, Elapsed>) -> Result<(), Outcome> {
    let late = |_| Outcome::Transient("the API did not answer in time".to_owned());
    match answer.map_err(late)? {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(refusal)) if refusal.code == CONFLICT => Err(Outcome::Conflict),
        Err(error) => Err(Outcome::Transient(daemon_kit::chain(&error))),
    }
}

/// Objects with a label.
pub(crate) async fn listed(api: &Api<DynamicObject>, label: &str) -> Result<Vec<Value>, String> {
    let params = ListParams::default().labels(label);
    let list = timeout(CALL_LIMIT, api.list(&params)).await;
    let list = list.map_err(|_| "no list in time".to_owned())?;
    let list = list.map_err(|error| daemon_kit::chain(&error))?;
    let items = list.items.into_iter().map(serde_json::to_value);
    Ok(items.filter_map(Result::ok).collect())
}

/// Image of a container in the template of a workload. Empty without that container.
pub(crate) fn image_of<'a>(object: &'a Value, container: &str) -> &'a str {
    let containers = object["spec"]["template"]["spec"]["containers"].as_array();
    let mut containers = containers.into_iter().flatten();
    let own = containers.find(|one| one["name"] == container);
    own.and_then(|one| one["image"].as_str()).unwrap_or("")
}

/// The image to which a turn goes back. `None` if `image` is not the turn's. `workload` is kind and
/// name.
///
/// # Errors
/// The image before is not known.
pub(crate) fn image_before<'a>(
    image: &str,
    before: &'a str,
    turn: &TurnSpec,
    workload: &str,
) -> Result<Option<&'a str>, String> {
    if digest(image).as_ref() != Some(&turn.sha256) {
        return Ok(None);
    }
    if before.is_empty() || digest(before).as_ref() == Some(&turn.sha256) {
        return Err(format!(
            "the image before {image} is not known: set the image of {workload}"
        ));
    }
    Ok(Some(before))
}

#[cfg(test)]
pub(crate) mod tests;
