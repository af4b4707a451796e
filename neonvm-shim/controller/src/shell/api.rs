//! Actions of the core as requests to the API server.

use std::time::Duration;

use kube::Client;
use kube::api::{DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{Request, request};
use serde_json::{Value, json};
use telemetry::chain;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::decode::{self, DecodeError};
use super::secret::{KeyError, ssh_secret};
use crate::core::{Action, Refusal, Reply};

/// Who writes, as the server's book-keeping of fields shows it.
pub(super) const FIELD_MANAGER: &str = "neonvm-controller";
/// A request that takes longer has failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests under way at once, all VMs together: more would only queue in the server.
const REQUESTS_AT_ONCE: usize = 128;

/// A request to the API server that did not work.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The request could not be built.
    #[error("could not build the request")]
    Build(#[source] request::Error),
    /// The server refused, or was not reached.
    #[error("the API server")]
    Kube(#[source] Box<kube::Error>),
    /// It took too long.
    #[error("the API server did not answer within {REQUEST_TIMEOUT:?}")]
    Timeout,
    /// The answer is not the object.
    #[error("the API server's answer")]
    Decode(#[source] DecodeError),
    /// No key pair.
    #[error("SSH keys")]
    Key(#[source] KeyError),
}

impl ApiError {
    /// The HTTP status of a refusal.
    fn code(&self) -> Option<u16> {
        match self {
            Self::Kube(error) => match error.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }

    fn refusal(&self) -> Refusal {
        let code = self.code();
        let message = match self {
            Self::Kube(error) => match error.as_ref() {
                kube::Error::Api(status) => format!("{} ({})", status.message, status.code),
                other => chain(other),
            },
            other => chain(other),
        };
        let permanent = code.is_some_and(|code| (400..500).contains(&code) && code != 429);
        Refusal::Failed { message, permanent }
    }
}

/// The API server as one VM's worker uses it.
pub(super) struct KubeApi {
    client: Client,
    slots: Semaphore,
}

impl KubeApi {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            slots: Semaphore::new(REQUESTS_AT_ONCE),
        }
    }

    /// Carries out an action on the VM `namespace/name`.
    pub(super) async fn carry_out(
        &self,
        namespace: &str,
        vm: &str,
        action: Action,
    ) -> Result<Reply, Refusal> {
        let vms = Request::new(format!(
            "/apis/vm.neon.tech/v1/namespaces/{namespace}/virtualmachines"
        ));
        let pods = Request::new(format!("/api/v1/namespaces/{namespace}/pods"));
        let (params, get) = (patch_params(), GetParams::default());
        match action {
            Action::PatchVm { patch, .. } => vm_reply(
                self.send(vms.patch(vm, &params, &Patch::Merge(patch)))
                    .await,
            ),
            Action::WriteStatus { patch, .. } => {
                let patch = Patch::Merge(patch);
                vm_reply(
                    self.send(vms.patch_subresource("status", vm, &params, &patch))
                        .await,
                )
            }
            Action::ReadVm => vm_reply(self.send(vms.get(vm, &get)).await),
            Action::ReadPod { name } => pod_reply(&name, self.send(pods.get(&name, &get)).await),
            Action::EnsureSshSecret { name, owner } => {
                self.ensure_secret(namespace, &name, &owner).await
            }
            Action::CreatePod { name, pod } => self.create_pod(&pods, &name, &pod).await,
            Action::PatchPodMetadata { name, ops } => {
                let body = json_patch(&pods, &name, &json!(ops));
                pod_reply(&name, self.send(body).await)
            }
            Action::DeletePod { name, uid, grace_s } => {
                let params = DeleteParams {
                    grace_period_seconds: Some(grace_s),
                    preconditions: Some(Preconditions {
                        uid: Some(uid),
                        resource_version: None,
                    }),
                    ..DeleteParams::default()
                };
                match self.send(pods.delete(&name, &params)).await {
                    // A bare "Success": what is left of it must be read.
                    Ok(answer) if answer["kind"] == "Status" => {
                        pod_reply(&name, self.send(pods.get(&name, &get)).await)
                    }
                    answer => pod_reply(&name, answer),
                }
            }
            Action::OrphanPod { name, uid } => {
                let ops = json!([
                    {"op": "test", "path": "/metadata/uid", "value": uid},
                    {"op": "remove", "path": "/metadata/ownerReferences"},
                ]);
                pod_reply(&name, self.send(json_patch(&pods, &name, &ops)).await)
            }
            Action::SetSize { .. } => Err(Refusal::Failed {
                message: "sizes are the runner's business".into(),
                permanent: true,
            }),
        }
    }

    async fn create_pod(&self, pods: &Request, name: &str, pod: &Value) -> Result<Reply, Refusal> {
        match self
            .send(pods.create(&post_params(), pod.to_string().into_bytes()))
            .await
        {
            // Created before, by us or another: the core looks whose it is.
            Err(error) if error.code() == Some(409) => {
                pod_reply(name, self.send(pods.get(name, &GetParams::default())).await)
            }
            // Not found is the namespace here, not the pod.
            Err(error) => Err(error.refusal()),
            answer => pod_reply(name, answer),
        }
    }

    async fn ensure_secret(
        &self,
        namespace: &str,
        name: &str,
        owner: &Value,
    ) -> Result<Reply, Refusal> {
        let secrets = Request::new(format!("/api/v1/namespaces/{namespace}/secrets"));
        match self.send(secrets.get(name, &GetParams::default())).await {
            Ok(_) => return Ok(Reply::SecretReady),
            Err(error) if error.code() == Some(404) => {}
            Err(error) => return Err(error.refusal()),
        }
        let secret = ssh_secret(namespace, name, owner).map_err(|e| ApiError::Key(e).refusal())?;
        match self
            .send(secrets.create(&post_params(), secret.to_string().into_bytes()))
            .await
        {
            Ok(_) => Ok(Reply::SecretReady),
            Err(error) if error.code() == Some(409) => Ok(Reply::SecretReady),
            Err(error) => Err(error.refusal()),
        }
    }

    /// Writes an event object. Losing one is no failure of the VM's.
    pub(super) async fn write_event(&self, namespace: &str, event: &Value) -> Result<(), ApiError> {
        let events = Request::new(format!("/api/v1/namespaces/{namespace}/events"));
        self.send(events.create(&post_params(), event.to_string().into_bytes()))
            .await
            .map(drop)
    }

    /// Counts an event that happened again.
    pub(super) async fn count_event(
        &self,
        namespace: &str,
        name: &str,
        patch: Value,
    ) -> Result<(), ApiError> {
        let events = Request::new(format!("/api/v1/namespaces/{namespace}/events"));
        self.send(events.patch(name, &patch_params(), &Patch::Merge(patch)))
            .await
            .map(drop)
    }

    async fn send(
        &self,
        request: Result<hyper::Request<Vec<u8>>, request::Error>,
    ) -> Result<Value, ApiError> {
        let request = request.map_err(ApiError::Build)?;
        let _slot = self.slots.acquire().await;
        timeout(REQUEST_TIMEOUT, self.client.request::<Value>(request))
            .await
            .map_err(|_| ApiError::Timeout)?
            .map_err(|error| ApiError::Kube(Box::new(error)))
    }
}

fn patch_params() -> PatchParams {
    PatchParams {
        field_manager: Some(FIELD_MANAGER.into()),
        ..PatchParams::default()
    }
}

fn post_params() -> PostParams {
    PostParams {
        field_manager: Some(FIELD_MANAGER.into()),
        ..PostParams::default()
    }
}

fn json_patch(
    pods: &Request,
    name: &str,
    ops: &Value,
) -> Result<hyper::Request<Vec<u8>>, request::Error> {
    let mut request = pods.patch(name, &patch_params(), &Patch::Merge(ops))?;
    request.headers_mut().insert(
        hyper::header::CONTENT_TYPE,
        hyper::header::HeaderValue::from_static("application/json-patch+json"),
    );
    Ok(request)
}

fn vm_reply(answer: Result<Value, ApiError>) -> Result<Reply, Refusal> {
    let value = answer.map_err(|error| match error.code() {
        Some(404) => Refusal::VmGone,
        Some(409) => Refusal::Conflict,
        _ => error.refusal(),
    })?;
    let vm = decode::vm(value).map_err(|error| ApiError::Decode(error).refusal())?;
    Ok(Reply::Vm(Box::new(vm)))
}

fn pod_reply(name: &str, answer: Result<Value, ApiError>) -> Result<Reply, Refusal> {
    match answer {
        Ok(value) => {
            let pod = decode::pod(value).map_err(|error| ApiError::Decode(error).refusal())?;
            Ok(Reply::Pod(Box::new(pod)))
        }
        Err(error) if error.code() == Some(404) => Ok(Reply::PodGone(name.to_owned())),
        Err(error) => Err(error.refusal()),
    }
}
