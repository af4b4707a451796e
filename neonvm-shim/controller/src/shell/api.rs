//! Actions of the core as requests to the API server.

use std::sync::Arc;
use std::time::Duration;

use daemon_kit::chain;
use kube::Client;
use kube::api::{
    DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions, ValidationDirective,
};
use kube::core::{Request, request};
use protocol::object::Pod;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::certificate::{self, CertificateError};
use super::decode::{self, DecodeError};
use super::monitor_key::MonitorKey;
use super::overlay::Pools;
use super::secret::{
    KeyError, is_key_pair_of, is_owned, runner_lacks, runner_secret, ssh_secret, token,
};
use crate::core::metadata::{self, PatchOp};
use crate::core::requests::{self, SUBRESOURCE};
use crate::core::volumes;
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
    /// The API server did not answer within the timeout.
    #[error("the API server did not answer within {REQUEST_TIMEOUT:?}")]
    Timeout,
    /// The answer is not the object.
    #[error("the API server's answer")]
    Decode(#[source] DecodeError),
    /// No key pair, or no certificate.
    #[error("a secret of the VM")]
    Key(#[source] KeyError),
    /// A step to a certificate.
    #[error("a guest's certificate")]
    Certificate(#[source] CertificateError),
}

impl ApiError {
    /// The HTTP status of a refusal.
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            Self::Kube(error) => match error.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the server was not reached, or had no answer for now: the same request may work
    /// later. Others need somebody's hand.
    pub(super) fn is_away(&self) -> bool {
        match self {
            Self::Timeout => true,
            Self::Kube(error) => match error.as_ref() {
                kube::Error::Api(status) => status.code >= 500 || status.code == 429,
                kube::Error::HyperError(_) | kube::Error::Service(_) => true,
                _ => false,
            },
            _ => false,
        }
    }

    pub(super) fn refusal(&self) -> Refusal {
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

/// What is known of a pod after a request about it; `None`: there is none of that name.
pub(super) type Found = Result<Option<Box<Pod>>, Refusal>;

/// Whether the API server has the subresource by which pods are resized in place.
///
/// # Errors
/// When it cannot be asked.
pub(super) async fn offers_resize(client: &Client) -> Result<bool, ApiError> {
    let name = format!("pods/{SUBRESOURCE}");
    let offered = timeout(REQUEST_TIMEOUT, client.list_core_api_resources("v1")).await;
    let offered = offered.map_err(|_| ApiError::Timeout)?;
    let offered = offered.map_err(|error| ApiError::Kube(Box::new(error)))?;
    Ok(offered.resources.iter().any(|it| it.name == name))
}

/// The API server as one VM's worker uses it.
pub(super) struct KubeApi {
    pub(super) client: Client,
    slots: Semaphore,
    /// API servers keep field managers. `false` clears them (`field_managers.rs`).
    pub(super) keep_field_owners: bool,
    /// The addresses of the overlay, if there is one.
    pub(super) pools: Option<Arc<Pools>>,
    /// What tokens of guests' monitors are derived from, if guests get any.
    pub(super) monitor_key: Option<MonitorKey>,
}

impl KubeApi {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            slots: Semaphore::new(REQUESTS_AT_ONCE),
            keep_field_owners: false,
            pools: None,
            monitor_key: None,
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
        let params = patch_params();
        let as_vm = |value| decode::vm(value).map(|vm| Reply::Vm(Box::new(vm)));
        match action {
            Action::PatchVm { patch, .. } => {
                let request = vms.patch(vm, &params, &Patch::Merge(patch));
                let written = self.send(request).await;
                object(self.disown(&vms, vm, written).await, as_vm)
            }
            Action::WriteStatus { patch, .. } => {
                let patch = Patch::Merge(patch);
                let request = vms.patch_subresource("status", vm, &params, &patch);
                let written = self.send(request).await;
                object(self.disown(&vms, vm, written).await, as_vm)
            }
            Action::ReadVm => {
                let request = vms.get(vm, &GetParams::default());
                object(self.send(request).await, as_vm)
            }
            Action::ReadTaker { name, .. } => self.read_claiming_migration(namespace, &name).await,
            Action::EnsureSshSecret { name, owner } => {
                let make = || ssh_secret(namespace, &name, &owner);
                let fits = |secret: &Value| is_key_pair_of(secret, &owner);
                self.ensure_secret(namespace, &name, make, fits).await?;
                Ok(Reply::SecretReady)
            }
            Action::EnsureRunnerSecret { name, owner } => {
                self.ensure_runner_secret(namespace, &name, &owner).await?;
                Ok(Reply::SecretReady)
            }
            Action::ReadPod { name } => reply(self.read_pod(namespace, &name).await, name),
            Action::CreatePod { name, pod } => {
                reply(self.create_pod(namespace, &name, &pod).await, name)
            }
            Action::PatchPodMetadata { name, ops } | Action::PatchPodCounted { name, ops } => {
                reply(self.sync_pod(namespace, &name, &ops).await, name)
            }
            Action::ResizePod { name, ops } => {
                reply(self.resize_pod(namespace, &name, &ops).await, name)
            }
            Action::DeletePod { name, uid, grace_s } => {
                let left = self.delete_pod(namespace, &name, uid, grace_s).await;
                reply(left, name)
            }
            Action::OrphanPod { name, uid } => {
                reply(self.orphan_pod(namespace, &name, &uid).await, name)
            }
            Action::TakeAddress { holder } => self.pools()?.take(self, &holder).await,
            Action::ReleaseAddress { holder } => self.pools()?.give_back(self, &holder).await,
            Action::Certificate { step, order } => {
                let client = certificate::CertificateClient::new(self, namespace, vm, &order);
                client.take(&step).await
            }
            Action::SetSize { .. } | Action::PlugAhead { .. } => Err(Refusal::Failed {
                message: "sizes are the runner's business".into(),
                permanent: true,
            }),
        }
    }

    fn pools(&self) -> Result<&Pools, Refusal> {
        self.pools.as_deref().ok_or_else(|| Refusal::Failed {
            message: "there are no addresses to give".into(),
            permanent: true,
        })
    }

    /// The uid of the migration of that name, if there is one.
    async fn read_claiming_migration(&self, namespace: &str, name: &str) -> Result<Reply, Refusal> {
        let migrations = Request::new(format!(
            "/apis/vm.neon.tech/v1/namespaces/{namespace}/virtualmachinemigrations"
        ));
        match self.send(migrations.get(name, &GetParams::default())).await {
            Ok(found) => {
                let uid = found["metadata"]["uid"].as_str();
                Ok(Reply::MigrationClaim(uid.map(str::to_owned)))
            }
            Err(error) if error.code() == Some(404) => Ok(Reply::MigrationClaim(None)),
            Err(error) => Err(error.refusal()),
        }
    }

    /// Takes the owners off the pod of this uid.
    async fn orphan_pod(&self, namespace: &str, name: &str, uid: &str) -> Found {
        let ops = json!([
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "remove", "path": "/metadata/ownerReferences"},
        ]);
        self.edit_pod(namespace, name, &ops).await
    }

    /// Reads a pod.
    pub(super) async fn read_pod(&self, namespace: &str, name: &str) -> Found {
        let request = pods(namespace).get(name, &GetParams::default());
        found(self.send(request).await)
    }

    /// Creates a pod; one of that name that is there already is what is found.
    pub(super) async fn create_pod(&self, namespace: &str, name: &str, pod: &Value) -> Found {
        let pods = pods(namespace);
        let request = pods.create(&post_params(), pod.to_string().into_bytes());
        let made = self.send(request).await;
        match self.disown(&pods, name, made).await {
            // Created before, by us or another: the core looks whose it is.
            Err(error) if error.code() == Some(409) => self.read_pod(namespace, name).await,
            // Not found is the namespace here, not the pod.
            Err(error) => Err(error.refusal()),
            answer => found(answer),
        }
    }

    /// Applies a JSON patch to a pod.
    pub(super) async fn edit_pod(&self, namespace: &str, name: &str, ops: &Value) -> Found {
        let patch = Patch::Merge(ops);
        let request = pods(namespace).patch(name, &patch_params(), &patch);
        found(self.send(request.map(as_json_patch)).await)
    }

    /// Applies a JSON patch to a pod's owners, labels and annotations.
    pub(super) async fn sync_pod(&self, namespace: &str, name: &str, ops: &[PatchOp]) -> Found {
        let patch = Patch::Merge(json!(ops));
        let pods = pods(namespace);
        let request = pods.patch(name, &patch_params(), &patch);
        let rests = |pod: &Pod| metadata::rest_on_others(ops, &pod.metadata);
        let written = self.send(request.map(as_json_patch)).await;
        match self.disown(&pods, name, written).await {
            Err(error) if error.code() == Some(422) => {
                self.unless_changed(namespace, name, &error, rests).await
            }
            answer => found(answer),
        }
    }

    /// Applies a JSON patch to what a pod requests. Not found is the subresource or the pod, so it
    /// says nothing of the pod.
    async fn resize_pod(&self, namespace: &str, name: &str, ops: &[PatchOp]) -> Found {
        let patch = Patch::Merge(json!(ops));
        let pods = pods(namespace);
        // A guest waits for this, and nobody reads warnings about fields.
        let params = PatchParams {
            field_validation: Some(ValidationDirective::Ignore),
            ..patch_params()
        };
        let request = pods.patch_subresource(SUBRESOURCE, name, &params, &patch);
        let rests = |pod: &Pod| requests::rest_on_another(ops, pod);
        match self.send(request.map(as_json_patch)).await {
            Err(error) if error.code() == Some(422) => {
                self.unless_changed(namespace, name, &error, rests).await
            }
            Err(error) => Err(error.refusal()),
            answer => found(answer),
        }
    }

    /// The answer to a patch that does not apply: the refusal, unless the patch `rests` on another
    /// state of the pod than it has now. Then it is how the pod is, by which the core decides anew.
    async fn unless_changed(
        &self,
        namespace: &str,
        name: &str,
        error: &ApiError,
        rests: impl Fn(&Pod) -> bool,
    ) -> Found {
        match self.read_pod(namespace, name).await {
            Ok(Some(pod)) if rests(&pod) => Ok(Some(pod)),
            Ok(None) => Ok(None),
            _ => Err(error.refusal()),
        }
    }

    /// Deletes the pod of this uid; finds what is left of it, which may be a pod that takes its
    /// time to end.
    pub(super) async fn delete_pod(
        &self,
        namespace: &str,
        name: &str,
        uid: String,
        grace_s: u32,
    ) -> Found {
        let params = DeleteParams {
            grace_period_seconds: Some(grace_s),
            preconditions: Some(Preconditions {
                uid: Some(uid),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let request = pods(namespace).delete(name, &params);
        match self.send(request).await {
            // A bare "Success": what is left of it must be read.
            Ok(answer) if answer["kind"] == "Status" => self.read_pod(namespace, name).await,
            answer => found(answer),
        }
    }

    pub(super) async fn ensure_secret(
        &self,
        namespace: &str,
        name: &str,
        make: impl FnOnce() -> Result<Value, KeyError>,
        fits: impl Fn(&Value) -> bool,
    ) -> Result<Value, Refusal> {
        let secrets = Request::new(format!("/api/v1/namespaces/{namespace}/secrets"));
        let found = match self.send(secrets.get(name, &GetParams::default())).await {
            Err(error) if error.code() == Some(404) => {
                let secret = make().map_err(|error| ApiError::Key(error).refusal())?;
                let body = secret.to_string().into_bytes();
                match self.send(secrets.create(&post_params(), body)).await {
                    // Made by another meanwhile.
                    Err(error) if error.code() == Some(409) => {
                        self.send(secrets.get(name, &GetParams::default())).await
                    }
                    made => made,
                }
            }
            found => found,
        };
        match found {
            Ok(secret) if fits(&secret) => Ok(secret),
            Ok(_) => Err(Refusal::Failed {
                message: format!("secret {name} is not this VM's"),
                permanent: false,
            }),
            Err(error) => Err(error.refusal()),
        }
    }

    /// Sees that a VM has what its runners are known by.
    pub(super) async fn ensure_runner_secret(
        &self,
        namespace: &str,
        name: &str,
        owner: &Value,
    ) -> Result<(), Refusal> {
        let monitor = self.monitor_token(namespace, owner).await?;
        let make = || runner_secret(namespace, name, owner, monitor.as_deref());
        // One that an earlier VM of the name left goes with it, and another's is not ours to use.
        let fits = |secret: &Value| is_owned(secret, owner) && token(secret).is_some();
        let secret = self.ensure_secret(namespace, name, make, fits).await?;
        match runner_lacks(&secret, monitor.as_deref())
            .map_err(|error| ApiError::Key(error).refusal())?
        {
            Some(data) => self.complete(namespace, name, &secret, &data).await,
            None => Ok(()),
        }
    }

    /// Puts into a secret what it lacks. What else it holds stays, as runners know us by it.
    async fn complete(
        &self,
        namespace: &str,
        name: &str,
        secret: &Value,
        data: &Value,
    ) -> Result<(), Refusal> {
        let secrets = Request::new(format!("/api/v1/namespaces/{namespace}/secrets"));
        let patch = Patch::Merge(json!({
            // Not into one that was made anew meanwhile.
            "metadata": {"resourceVersion": secret["metadata"]["resourceVersion"]},
            "data": data,
        }));
        match self
            .send(secrets.patch(name, &patch_params(), &patch))
            .await
        {
            Ok(_) => Ok(()),
            // It has just been changed by another, and is looked at again.
            Err(error) if error.code() == Some(409) => Err(Refusal::Failed {
                message: format!("secret {name} has changed meanwhile"),
                permanent: false,
            }),
            Err(error) => Err(error.refusal()),
        }
    }

    /// What the runners of a VM know us by, and we them; `None` if it has nothing: its pods are
    /// older than that.
    pub(super) async fn read_runner_secret(
        &self,
        namespace: &str,
        vm: &str,
    ) -> Result<Option<Value>, ApiError> {
        let secrets = Request::new(format!("/api/v1/namespaces/{namespace}/secrets"));
        let name = volumes::runner_secret(vm);
        match self.send(secrets.get(&name, &GetParams::default())).await {
            Ok(secret) => Ok(Some(secret)),
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(error),
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

    pub(super) async fn send(
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

pub(super) fn patch_params() -> PatchParams {
    PatchParams {
        field_manager: Some(FIELD_MANAGER.into()),
        ..PatchParams::default()
    }
}

pub(super) fn post_params() -> PostParams {
    PostParams {
        field_manager: Some(FIELD_MANAGER.into()),
        ..PostParams::default()
    }
}

fn pods(namespace: &str) -> Request {
    Request::new(format!("/api/v1/namespaces/{namespace}/pods"))
}

/// The library takes operations it has parsed itself; ours are data already.
pub(super) fn as_json_patch(mut request: hyper::Request<Vec<u8>>) -> hyper::Request<Vec<u8>> {
    request.headers_mut().insert(
        hyper::header::CONTENT_TYPE,
        hyper::header::HeaderValue::from_static("application/json-patch+json"),
    );
    request
}

/// The object an answer holds, read. That it is not there is [`Refusal::Gone`].
pub(super) fn object<T>(
    answer: Result<Value, ApiError>,
    read: impl FnOnce(Value) -> Result<T, DecodeError>,
) -> Result<T, Refusal> {
    let value = answer.map_err(|error| match error.code() {
        Some(404) => Refusal::Gone,
        Some(409) => Refusal::Conflict,
        _ => error.refusal(),
    })?;
    read(value).map_err(|error| ApiError::Decode(error).refusal())
}

/// The pod an answer holds.
fn found(answer: Result<Value, ApiError>) -> Found {
    match answer {
        Ok(value) => match decode::pod(value) {
            Ok(pod) => Ok(Some(Box::new(pod))),
            Err(error) => Err(ApiError::Decode(error).refusal()),
        },
        Err(error) if error.code() == Some(404) => Ok(None),
        Err(error) => Err(error.refusal()),
    }
}

fn reply(found: Found, name: String) -> Result<Reply, Refusal> {
    Ok(found?.map_or_else(|| Reply::PodGone(name), Reply::Pod))
}

#[cfg(test)]
mod tests;
