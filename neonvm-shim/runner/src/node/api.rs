//! Requests of the driver to the API about one pod.

use k8s_openapi::api::core::v1::{Event, Pod, Secret};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use protocol::time::WallTime;
use serde_json::{Value, json};

const COMPONENT: &str = "bellows-node";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodId {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

impl PodId {
    pub(super) fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    pub(super) fn of_key(key: &str, uid: &str) -> Option<Self> {
        let (namespace, name) = key.split_once('/')?;
        Some(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        })
    }

    /// Name of the pod's directory. Neither part can contain an underscore.
    pub(super) fn dir_name(&self) -> String {
        format!("{}_{}", self.namespace, self.name)
    }
}

/// Writes the driver's members of a pod's status. A missing pod is no error.
pub(super) async fn patch_status(
    client: &kube::Client,
    pod: &PodId,
    status: &Value,
) -> Result<(), kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    // The uid makes the patch fail on a successor with the same name.
    let patch = json!({ "metadata": { "uid": pod.uid }, "status": status });
    absent_is_fine(
        pods.patch_status(&pod.name, &PatchParams::default(), &Patch::Merge(&patch))
            .await,
    )
}

/// Whether the API has the pod with this uid.
pub(super) async fn is_there(client: &kube::Client, pod: &PodId) -> Result<bool, kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let found = pods.get_metadata_opt(&pod.name).await?;
    Ok(found.is_some_and(|found| found.metadata.uid.as_deref() == Some(pod.uid.as_str())))
}

/// Deletes the pod's object without grace. A missing pod, or a successor with the same name, is no
/// error.
pub(super) async fn delete(client: &kube::Client, pod: &PodId) -> Result<(), kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions {
            uid: Some(pod.uid.clone()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match pods.delete(&pod.name, &params).await {
        Err(error) if is_conflict(&error) => Ok(()),
        other => absent_is_fine(other),
    }
}

pub(super) fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

fn absent_is_fine<T>(result: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

/// Type of a Kubernetes event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventType {
    Normal,
    Warning,
}

impl EventType {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

pub(super) async fn event(
    client: &kube::Client,
    pod: &PodId,
    kind: EventType,
    reason: &str,
    message: &str,
    now: WallTime,
) -> Result<(), kube::Error> {
    let events: Api<Event> = Api::namespaced(client.clone(), &pod.namespace);
    let event = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "name": format!("{}.{:x}", pod.name, now.0), "namespace": pod.namespace },
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "name": pod.name, "namespace": pod.namespace, "uid": pod.uid,
        },
        "type": kind.as_str(),
        "reason": reason,
        "message": message,
        "source": { "component": COMPONENT },
        "reportingComponent": COMPONENT,
        "reportingInstance": "",
        "firstTimestamp": now.to_string(),
        "lastTimestamp": now.to_string(),
        "count": 1,
    });
    let event = serde_json::from_value(event).map_err(kube::Error::SerdeError)?;
    events
        .create(&PostParams::default(), &event)
        .await
        .map(drop)
}

/// Public key in a VM's ssh secret, if there is one.
pub(super) async fn ssh_key(client: &kube::Client, namespace: &str, vm: &str) -> Option<String> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    // Without the secret the guest runs, but nobody can log in by ssh.
    let secret = secrets.get_opt(&format!("ssh-neonvm-{vm}")).await.ok()??;
    let key = secret.data?.remove("ssh-publickey")?;
    String::from_utf8(key.0).ok()
}
