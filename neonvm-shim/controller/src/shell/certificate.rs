//! The steps to a guest's certificate as requests to the API server. Each step reads the objects
//! that it changes, so a repeated step, or one beside another controller, does no harm. Each step
//! ends with a read of all three objects.

mod facts;
mod x509;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::TryStreamExt as _;
use kube::api::{DeleteParams, GetParams, Patch, Preconditions, WatchEvent, WatchParams};
use kube::core::Request;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::api::{ApiError, KubeApi, patch_params, post_params};
use super::secret::is_owned;
use crate::core::certificate::{Facts, Order, Step};
use crate::core::{ActionResponse, Refusal};
use facts::{CERTIFICATE, KEY};

pub use x509::CertificateError;

/// The kind of the request.
const GROUP: &str = "cert-manager.io";
/// Timeout in seconds of one watch of a certificate request. A new watch follows.
const WATCH_S: u32 = 30;
/// Slack for the connection on top of the watch's timeout.
const WATCH_SLACK: Duration = Duration::from_secs(10);
/// A watch that ends sooner, and without an event, does not work.
const TOO_SOON: Duration = Duration::from_secs(1);

/// Reads and writes the objects of one VM's certificate.
pub(super) struct CertificateClient<'a> {
    api: &'a KubeApi,
    /// Name of the VM and of its request.
    vm: &'a str,
    order: &'a Order,
    secrets: Request,
    requests: Request,
}

impl<'a> CertificateClient<'a> {
    pub(super) fn new(api: &'a KubeApi, namespace: &str, vm: &'a str, order: &'a Order) -> Self {
        let requests = format!("/apis/{GROUP}/v1/namespaces/{namespace}/certificaterequests");
        Self {
            api,
            vm,
            order,
            secrets: Request::new(format!("/api/v1/namespaces/{namespace}/secrets")),
            requests: Request::new(requests),
        }
    }

    /// Carries out one step of the order and returns the objects as they are after it.
    pub(super) async fn take(&self, step: &Step) -> Result<ActionResponse, Refusal> {
        let done = match step {
            Step::Read => Ok(()),
            Step::MakeKey => self.make_key().await,
            Step::Request => self.request().await,
            Step::Await { version, .. } => self.wait(version).await,
            Step::Store => self.store().await,
            Step::Withdraw { uid } => self.withdraw(uid).await,
            Step::Tidy => self.tidy().await,
        };
        let facts = match done {
            Ok(()) => self.read().await,
            Err(error) => Err(error),
        };
        let facts = facts.map_err(|error| self.refusal(&error))?;
        Ok(ActionResponse::Certificate(Box::new(facts)))
    }

    /// None of the refusals here is about the VM object.
    fn refusal(&self, error: &ApiError) -> Refusal {
        match error.refusal() {
            // A missing object is no error here, so only the kind can be missing.
            Refusal::Failed { .. } if error.code() == Some(404) => Refusal::Failed {
                message: "the API server has no CertificateRequest of cert-manager.io/v1: is cert-manager installed?".into(),
                permanent: true,
            },
            // Another controller was faster. The objects are read again, and the conflict is no
            // problem of the VM.
            Refusal::Failed { message, .. } if error.code() == Some(409) => Refusal::Failed {
                message,
                permanent: false,
            },
            other => other,
        }
    }

    async fn read(&self) -> Result<Facts, ApiError> {
        let temporary = self.order.temporary();
        let (stored, key, request) = tokio::try_join!(
            self.get(&self.secrets, &self.order.secret),
            self.get(&self.secrets, &temporary),
            self.get(&self.requests, self.vm),
        )?;
        let owner = &self.order.owner;
        Ok(Facts {
            stored: facts::stored(stored.as_ref(), owner),
            key: facts::temporary(key.as_ref(), owner),
            request: facts::request(request.as_ref(), owner),
        })
    }

    /// An object, if it is there and ours.
    async fn ours(&self, of: &Request, name: &str) -> Result<Option<Value>, ApiError> {
        let found = self.get(of, name).await?;
        Ok(found.filter(|object| is_owned(object, &self.order.owner)))
    }

    async fn get(&self, of: &Request, name: &str) -> Result<Option<Value>, ApiError> {
        match self.api.send(of.get(name, &GetParams::default())).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn create(&self, of: &Request, object: &Value) -> Result<(), ApiError> {
        let body = object.to_string().into_bytes();
        match self.api.send(of.create(&post_params(), body)).await {
            Ok(_) => Ok(()),
            // Another controller has made it. The read that follows shows the object.
            Err(error) if error.code() == Some(409) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn secret(&self, name: &str, kind: &str, data: &Value) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "ownerReferences": [self.order.owner]},
            "type": kind,
            "data": data,
        })
    }

    async fn make_key(&self) -> Result<(), ApiError> {
        let name = self.order.temporary();
        // One of ours is there only if there is no key in it.
        if let Some(empty) = self.ours(&self.secrets, &name).await? {
            self.delete(&self.secrets, &name, facts::uid(&empty))
                .await?;
        }
        let key = x509::new_key().map_err(ApiError::Certificate)?;
        let data = json!({KEY: STANDARD.encode(key)});
        let secret = self.secret(&name, "Opaque", &data);
        self.create(&self.secrets, &secret).await
    }

    async fn request(&self) -> Result<(), ApiError> {
        let Some(secret) = self.ours(&self.secrets, &self.order.temporary()).await? else {
            return Ok(());
        };
        let wanted = &self.order.wanted;
        let key = facts::data(&secret, KEY).unwrap_or_default();
        let request = x509::request(&key, &wanted.name).map_err(ApiError::Certificate)?;
        let mut object = json!({
            "apiVersion": format!("{GROUP}/v1"),
            "kind": "CertificateRequest",
            "metadata": {"name": self.vm, "ownerReferences": [self.order.owner]},
            "spec": {
                "request": STANDARD.encode(request),
                "issuerRef": {"name": wanted.issuer, "kind": "ClusterIssuer", "group": GROUP},
            },
        });
        if let Some(duration) = &wanted.expire_after {
            object["spec"]["duration"] = json!(duration);
        }
        self.create(&self.requests, &object).await
    }

    /// Waits for a change of the request, or for the end of the watch.
    async fn wait(&self, version: &str) -> Result<(), ApiError> {
        let params = WatchParams::default()
            .fields(&format!("metadata.name={}", self.vm))
            .timeout(WATCH_S);
        let request = self.requests.watch(&params, version);
        let request = request.map_err(ApiError::Build)?;
        let began = Instant::now();
        let change = async {
            let events = self.api.client.request_events::<Value>(request).await?;
            let mut events = std::pin::pin!(events);
            while let Some(event) = events.try_next().await? {
                if !matches!(event, WatchEvent::Bookmark(_)) {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        let limit = Duration::from_secs(u64::from(WATCH_S)) + WATCH_SLACK;
        match timeout(limit, change).await {
            Ok(Ok(false)) if began.elapsed() < TOO_SOON => Err(ApiError::Timeout),
            Ok(Err(error)) => Err(ApiError::Kube(Box::new(error))),
            Ok(Ok(_)) | Err(_) => Ok(()),
        }
    }

    /// Key and certificate in one write, if they belong together.
    async fn store(&self) -> Result<(), ApiError> {
        let temporary = self.order.temporary();
        let (key, request) = tokio::try_join!(
            self.ours(&self.secrets, &temporary),
            self.ours(&self.requests, self.vm),
        )?;
        let key = key.and_then(|secret| facts::data(&secret, KEY));
        let chain = request.and_then(|request| facts::chain(&request));
        let (Some(key), Some(chain)) = (key, chain) else {
            return Ok(());
        };
        let bears = x509::certificate(&chain).ok().map(|found| found.key);
        if bears.is_none() || bears != x509::public_key(&key) {
            return Ok(());
        }
        let name = &self.order.secret;
        let data = json!({KEY: STANDARD.encode(key), CERTIFICATE: STANDARD.encode(chain)});
        match self.get(&self.secrets, name).await? {
            None => {
                let secret = self.secret(name, "kubernetes.io/tls", &data);
                self.create(&self.secrets, &secret).await
            }
            Some(secret) if is_owned(&secret, &self.order.owner) => {
                let version = &secret["metadata"]["resourceVersion"];
                let patch = json!({"metadata": {"resourceVersion": version}, "data": data});
                let patch = Patch::Merge(patch);
                let request = self.secrets.patch(name, &patch_params(), &patch);
                self.api.send(request).await.map(drop)
            }
            Some(_) => Ok(()),
        }
    }

    async fn withdraw(&self, uid: &str) -> Result<(), ApiError> {
        self.delete(&self.requests, self.vm, uid.to_owned()).await
    }

    async fn tidy(&self) -> Result<(), ApiError> {
        if let Some(request) = self.ours(&self.requests, self.vm).await? {
            self.withdraw(&facts::uid(&request)).await?;
        }
        let temporary = self.order.temporary();
        match self.ours(&self.secrets, &temporary).await? {
            Some(key) => {
                self.delete(&self.secrets, &temporary, facts::uid(&key))
                    .await
            }
            None => Ok(()),
        }
    }

    /// Deletes this incarnation; that it is gone, or another, is as good.
    async fn delete(&self, of: &Request, name: &str, uid: String) -> Result<(), ApiError> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match self.api.send(of.delete(name, &params)).await {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
