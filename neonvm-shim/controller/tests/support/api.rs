//! The API server of a controller's test, with the kinds of a cluster that the embedded one lacks.

use std::ops::Deref;

use serde_json::{Value, json};
use test_api::{Call, Fault, TestApi, define};

/// The namespace that these tests work in.
const NAMESPACE: &str = "default";

#[derive(Clone)]
pub(crate) struct FakeApi(TestApi);

impl Deref for FakeApi {
    type Target = TestApi;

    fn deref(&self) -> &TestApi {
        &self.0
    }
}

impl FakeApi {
    pub(crate) async fn start() -> Self {
        let api = TestApi::start().await;
        for kind in [
            "MutatingWebhookConfiguration",
            "ValidatingWebhookConfiguration",
        ] {
            let plural = format!("{}s", kind.to_lowercase());
            api.serve_kind(define("admissionregistration.k8s.io", kind, &plural, false));
        }
        let kind = "NetworkAttachmentDefinition";
        let plural = "network-attachment-definitions";
        api.serve_kind(define("k8s.cni.cncf.io", kind, plural, true));
        Self(api)
    }

    /// Creates an object as it is, status and all.
    pub(crate) fn create(&self, plural: &str, mut object: Value) {
        object["metadata"]["generation"] = json!(1);
        object["metadata"]["creationTimestamp"] = json!("2026-11-21T10:00:00Z");
        self.put(plural, object);
    }

    pub(crate) fn get(&self, plural: &str, name: &str) -> Option<Value> {
        self.0.get(plural, NAMESPACE, name)
    }

    /// Edits an object whole, status and all; a spec that changed counts as a new generation.
    pub(crate) fn edit(&self, plural: &str, name: &str, mut edit: impl FnMut(&mut Value)) {
        self.0.edit(plural, NAMESPACE, name, |object| {
            let before = object["spec"].clone();
            edit(object);
            if object["spec"] != before {
                let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
                object["metadata"]["generation"] = json!(generation + 1);
            }
        });
    }

    pub(crate) fn delete(&self, plural: &str, name: &str, grace: bool) {
        self.0.delete(plural, NAMESPACE, name, grace);
    }

    /// Answers the next `times` calls whose line begins so with an error.
    pub(crate) fn refuse(&self, starts: &str, times: u32, code: u16) {
        self.order(starts, times, Fault::Refuse(code));
    }

    /// Says that it resizes pods in place, which the embedded API server does not.
    pub(crate) fn say_that_it_resizes_pods(&self) {
        let core = |_: &TestApi, call: &Call| {
            let resize = json!({
                "name": "pods/resize", "singularName": "", "namespaced": true, "kind": "Pod", "verbs": ["patch"],
            });
            let kinds = json!({
                "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": [resize],
            });
            (call.line == "GET /api/v1").then_some((200, kinds))
        };
        self.always("GET /api/v1", Fault::answer(core));
    }

    /// Waits until what is stored satisfies `holds`.
    pub(crate) async fn wait<T>(&self, what: &str, mut holds: impl FnMut(&Self) -> Option<T>) -> T {
        self.0.wait(what, |_| holds(self)).await
    }

    pub(crate) async fn wait_vm(
        &self,
        what: &str,
        name: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Value {
        self.wait(what, |api| {
            api.get("virtualmachines", name).filter(|vm| holds(vm))
        })
        .await
    }

    pub(crate) async fn wait_phase(&self, name: &str, phase: &str) -> Value {
        self.wait_vm(phase, name, |vm| vm["status"]["phase"] == phase)
            .await
    }

    /// Waits for the pod a VM says it has.
    pub(crate) async fn wait_pod(&self, vm: &str) -> String {
        self.wait("the pod", |api| {
            let name = api.get("virtualmachines", vm)?["status"]["podName"]
                .as_str()?
                .to_owned();
            api.get("pods", &name).map(|_| name)
        })
        .await
    }

    /// The node starts a pod.
    pub(crate) fn run_pod(&self, name: &str) {
        self.edit("pods", name, |pod| {
            pod["spec"]["nodeName"] = json!("here");
            pod["status"] = json!({
                "phase": "Running",
                "podIP": "127.9.1.1",
                "containerStatuses": [{"name": "neonvm-runner", "ready": true, "image": "x", "imageID": "", "restartCount": 0}],
            });
        });
    }
}
