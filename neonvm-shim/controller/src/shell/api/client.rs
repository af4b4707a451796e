//! Requests to the API server, with a bound on their number and their time.

use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::{Request, request};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::error::{ApiError, REQUEST_TIMEOUT};
use crate::core::Refusal;
use crate::core::requests::SUBRESOURCE;
use crate::shell::decode::DecodeError;
use crate::shell::monitor_key::MonitorKey;

/// Field manager of every write.
const FIELD_MANAGER: &str = "neonvm-controller";
/// Requests under way at once, of all VMs together. More would only queue in the API server.
const REQUESTS_AT_ONCE: usize = 128;

/// Client of the API server for all drivers.
pub(crate) struct KubeApi {
    pub(crate) client: Client,
    slots: Semaphore,
    /// API servers keep field managers. `false` clears them (`field_managers.rs`).
    pub(crate) keep_field_owners: bool,
    /// Key from which the tokens of guests' monitors are derived; `None` if guests get no token.
    pub(crate) monitor_key: Option<MonitorKey>,
}

impl KubeApi {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            slots: Semaphore::new(REQUESTS_AT_ONCE),
            keep_field_owners: false,
            monitor_key: None,
        }
    }

    pub(crate) async fn send(
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

    /// Writes an event object. Losing one is no failure of the VM's.
    pub(crate) async fn write_event(&self, namespace: &str, event: &Value) -> Result<(), ApiError> {
        let events = Request::new(format!("/api/v1/namespaces/{namespace}/events"));
        self.send(events.create(&post_params(), event.to_string().into_bytes()))
            .await
            .map(drop)
    }

    /// Counts an event that happened again.
    pub(crate) async fn count_event(
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
}

/// Whether the API server has the subresource that resizes pods in place.
///
/// # Errors
/// When the request fails.
pub(crate) async fn offers_resize(client: &Client) -> Result<bool, ApiError> {
    let name = format!("pods/{SUBRESOURCE}");
    let offered = timeout(REQUEST_TIMEOUT, client.list_core_api_resources("v1"))
        .await
        .map_err(|_| ApiError::Timeout)?
        .map_err(|error| ApiError::Kube(Box::new(error)))?;
    Ok(offered.resources.iter().any(|it| it.name == name))
}

pub(crate) fn patch_params() -> PatchParams {
    PatchParams {
        field_manager: Some(FIELD_MANAGER.into()),
        ..PatchParams::default()
    }
}

pub(crate) fn post_params() -> PostParams {
    PostParams {
        field_manager: Some(FIELD_MANAGER.into()),
        ..PostParams::default()
    }
}

/// The library takes operations it has parsed itself; ours are data already.
pub(crate) fn as_json_patch(mut request: hyper::Request<Vec<u8>>) -> hyper::Request<Vec<u8>> {
    request.headers_mut().insert(
        hyper::header::CONTENT_TYPE,
        hyper::header::HeaderValue::from_static("application/json-patch+json"),
    );
    request
}

/// Decodes the object of a response. A missing object is [`Refusal::Gone`].
pub(crate) fn object<T>(
    response: Result<Value, ApiError>,
    read: impl FnOnce(Value) -> Result<T, DecodeError>,
) -> Result<T, Refusal> {
    let value = response.map_err(|error| match error.code() {
        Some(404) => Refusal::Gone,
        Some(409) => Refusal::Conflict,
        _ => error.refusal(),
    })?;
    read(value).map_err(|error| ApiError::Decode(error).refusal())
}
