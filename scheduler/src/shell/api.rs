//! Calls to the Kubernetes API: the write and the read of a VM, bindings, reads of pods, and
//! migrations. Events and conditions are in `reports`.

mod reports;

use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{self, Request};
use daemon_kit::clock::Clock;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, PostParams, Preconditions};
use protocol::permit::NamespacedName;
use protocol::time::Timestamp as Moment;
use serde_json::{Value, json};

use super::metrics::Metrics;
use crate::core::event::{BindOutcome, CallOutcome, MigrationOutcome, PodReadOutcome, VmWrite};
use crate::core::migrate::NewMigration;
use crate::core::view::{PodView, VmView};

/// Field manager of writes of VMs.
const FIELD_MANAGER: &str = "autoscale-scheduler";

/// Error of a call that was not sent.
const NOT_SENT: &str = "this replica's lead ran out before it was sent";

pub(super) fn virtual_machines() -> ApiResource {
    ApiResource {
        group: protocol::vm::GROUP.into(),
        version: protocol::vm::VERSION.into(),
        api_version: protocol::vm::API_VERSION.into(),
        kind: "VirtualMachine".into(),
        plural: "virtualmachines".into(),
    }
}

pub(super) fn virtual_machine_migrations() -> ApiResource {
    ApiResource {
        kind: "VirtualMachineMigration".into(),
        plural: "virtualmachinemigrations".into(),
        ..virtual_machines()
    }
}

/// The client of the API server and its settings.
pub(super) struct ApiContext {
    pub(super) client: Client,
    /// Time-out of one call.
    pub(super) timeout: Duration,
    pub(super) metrics: Metrics,
    /// Reporting component of events.
    pub(super) reporter: String,
    pub(super) clock: Clock,
}

/// Calls the API. Cheap to clone: the task of every grant has its own.
#[derive(Clone)]
pub(super) struct ApiClient {
    pub(super) context: Arc<ApiContext>,
    /// Deadline of every call. `None` without a Lease.
    pub(super) until: Option<Moment>,
}

/// Why a call failed.
enum Failure {
    Status(u16, String),
    Unclear(String),
    /// The call was not sent, because the lead ends first.
    NotSent,
}

impl Failure {
    fn outcome(&self) -> String {
        match self {
            Self::Status(code, _) => format!("error: status {code}"),
            Self::Unclear(_) => "error: no answer".into(),
            Self::NotSent => "error: not sent".into(),
        }
    }
}

impl From<Failure> for MigrationOutcome {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Status(code, message) if is_clear(code) => Self::Refused(message),
            Failure::NotSent => Self::Refused(NOT_SENT.into()),
            Failure::Status(_, message) | Failure::Unclear(message) => Self::Unclear(message),
        }
    }
}

impl ApiClient {
    async fn call<T>(
        &self,
        op: (&'static str, &'static str),
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Failure> {
        let left = self
            .until
            .map(|until| until.since(self.context.clock.now()));
        let timeout = left.map_or(self.context.timeout, |left| {
            left.to_duration().min(self.context.timeout)
        });
        if timeout.is_zero() {
            self.context
                .metrics
                .k8s_op_failed(op, &Failure::NotSent.outcome());
            return Err(Failure::NotSent);
        }
        let result = match tokio::time::timeout(timeout, call).await {
            Err(_) => Err(Failure::Unclear(format!("no answer within {timeout:?}"))),
            Ok(Err(kube::Error::Api(status))) => {
                Err(Failure::Status(status.code, status.message.clone()))
            }
            Ok(Err(error)) => Err(Failure::Unclear(daemon_kit::chain(&error))),
            Ok(Ok(value)) => Ok(value),
        };
        match &result {
            Ok(_) => self.context.metrics.k8s_op_done(op),
            Err(failure) => self.context.metrics.k8s_op_failed(op, &failure.outcome()),
        }
        result
    }

    /// Sends a compare-and-set as bytes. Every grant makes this call, and a typed patch and a typed
    /// object would be built only to be converted again.
    pub(super) async fn write_vm(&self, write: &VmWrite) -> CallOutcome {
        let Some(path) = vm_path(&write.vm) else {
            return CallOutcome::NotFound;
        };
        let path = format!("{path}?fieldManager={FIELD_MANAGER}");
        let request = Request::patch(path)
            .header(CONTENT_TYPE, "application/json-patch+json")
            .header(ACCEPT, "application/json")
            .body(write.patch());
        self.vm_call("Patch", request).await
    }

    pub(super) async fn read_vm(&self, vm: &NamespacedName) -> CallOutcome {
        let Some(path) = vm_path(vm) else {
            return CallOutcome::NotFound;
        };
        let request = Request::get(path).header(ACCEPT, "application/json");
        self.vm_call("Get", request.body(Vec::new())).await
    }

    async fn vm_call(
        &self,
        op: &'static str,
        request: http::Result<Request<Vec<u8>>>,
    ) -> CallOutcome {
        match request {
            Ok(request) => {
                let call = self.context.client.request_text(request);
                of_object(self.call((op, "VirtualMachine"), call).await)
            }
            Err(error) => CallOutcome::Refused(error.to_string()),
        }
    }

    pub(super) async fn bind(&self, pod: &NamespacedName, uid: &str, node: &str) -> BindOutcome {
        let pods: Api<Pod> = Api::namespaced(self.context.client.clone(), &pod.namespace);
        let binding = json!({"apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
        let params = PostParams::default();
        let call = pods.create_subresource::<_, Value>("binding", &pod.name, &params, &binding);
        match self.call(("Create", "Binding"), call).await {
            Ok(_) => BindOutcome::Bound,
            Err(Failure::Status(409, _)) => BindOutcome::Conflict,
            Err(Failure::Status(code, message)) if is_clear(code) => BindOutcome::Refused(message),
            Err(Failure::NotSent) => BindOutcome::Refused(NOT_SENT.into()),
            Err(Failure::Status(_, message) | Failure::Unclear(message)) => {
                BindOutcome::Unclear(message)
            }
        }
    }

    pub(super) async fn read_pod(&self, pod: &NamespacedName) -> PodReadOutcome {
        let kind = ApiResource::erase::<Pod>(&());
        let pods: Api<DynamicObject> =
            Api::namespaced_with(self.context.client.clone(), &pod.namespace, &kind);
        let object = match self.call(("Get", "Pod"), pods.get_opt(&pod.name)).await {
            Ok(Some(object)) => serde_json::to_value(object),
            Ok(None) => return PodReadOutcome::Gone,
            Err(Failure::Status(_, why) | Failure::Unclear(why)) => {
                return PodReadOutcome::Unclear(why);
            }
            Err(Failure::NotSent) => return PodReadOutcome::Unclear(NOT_SENT.into()),
        };
        let view = object.map_err(|error| error.to_string());
        let view = view.and_then(|object| PodView::read(&object).map_err(|e| e.to_string()));
        view.map_or_else(PodReadOutcome::Unclear, |view| {
            PodReadOutcome::Pod(Box::new(view))
        })
    }

    /// Creates a migration. An existing one of the name is a success.
    pub(super) async fn create_migration(&self, migration: &NewMigration) -> MigrationOutcome {
        let object = match serde_json::from_value::<DynamicObject>(migration.object()) {
            Ok(object) => object,
            Err(error) => return MigrationOutcome::Refused(error.to_string()),
        };
        let api = self.migrations(&migration.key.namespace);
        let params = PostParams::default();
        let call = api.create(&params, &object);
        match self.call(("Create", "VirtualMachineMigration"), call).await {
            Ok(_) | Err(Failure::Status(409, _)) => MigrationOutcome::Done,
            Err(failure) => failure.into(),
        }
    }

    /// Deletes the migration of this name and uid.
    pub(super) async fn delete_migration(
        &self,
        migration: &NamespacedName,
        uid: &str,
    ) -> MigrationOutcome {
        let api = self.migrations(&migration.namespace);
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let call = api.delete(&migration.name, &params);
        match self.call(("Delete", "VirtualMachineMigration"), call).await {
            // The migration is gone, or another one has its name.
            Ok(_) | Err(Failure::Status(404 | 409, _)) => MigrationOutcome::Done,
            Err(failure) => failure.into(),
        }
    }

    fn migrations(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(
            self.context.client.clone(),
            namespace,
            &virtual_machine_migrations(),
        )
    }
}

/// Whether a status proves that the call has no effect, now or later.
fn is_clear(code: u16) -> bool {
    // A server or proxy that responds 408 or 429 may have passed the call on.
    (400..500).contains(&code) && code != 408 && code != 429
}

/// Path of a VM. `None` if the name is invalid: the API server does not check the owner reference
/// in which a pod names its VM.
fn vm_path(vm: &NamespacedName) -> Option<String> {
    let (group, version) = (protocol::vm::GROUP, protocol::vm::VERSION);
    let NamespacedName { namespace, name } = vm;
    let is_name = |text: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
        text.starts_with(|first: char| first.is_ascii_alphanumeric()) && text.bytes().all(is_part)
    };
    let path = format!("/apis/{group}/{version}/namespaces/{namespace}/virtualmachines/{name}");
    (is_name(namespace) && is_name(name)).then_some(path)
}

fn of_object(result: Result<String, Failure>) -> CallOutcome {
    match result {
        Ok(object) => VmView::read_text(&object).map_or_else(
            |error| CallOutcome::Unclear(error.to_string()),
            |view| CallOutcome::Done(Box::new(view)),
        ),
        Err(Failure::Status(404, _)) => CallOutcome::NotFound,
        Err(Failure::Status(409 | 422, _)) => CallOutcome::Conflict,
        Err(Failure::Status(code, message)) if is_clear(code) => CallOutcome::Refused(message),
        Err(Failure::NotSent) => CallOutcome::Refused(NOT_SENT.into()),
        Err(Failure::Status(_, message) | Failure::Unclear(message)) => {
            CallOutcome::Unclear(message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vm_of_an_invalid_name_has_no_path() {
        let path = |namespace: &str, name: &str| {
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            vm_path(&NamespacedName { namespace, name })
        };
        let expected = "/apis/vm.neon.tech/v1/namespaces/default/virtualmachines/pg-1.a";
        assert_eq!(path("default", "pg-1.a").as_deref(), Some(expected));
        for name in [
            "",
            "..",
            ".",
            "a/../../../api/v1/secrets",
            "a?x=1",
            "a#b",
            "a%2fb",
            "a b",
            "é",
        ] {
            assert_eq!(path("default", name), None, "{name}");
            assert_eq!(path(name, "pg"), None, "{name}");
        }
    }
}
