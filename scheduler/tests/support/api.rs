//! The API server of a scheduler's test, with the faults that these tests order, and what the
//! embedded one lacks: reviews of tokens.

use std::ops::Deref;

use serde_json::{Value, json};
use test_api::{Call, TestApi};
use tokio::net::TcpListener;

/// Beginning of the line of a write of a VM.
const VM_WRITES: &str = "PATCH /apis/vm.neon.tech/v1/namespaces/";
const REVIEWS: &str = "POST /apis/authentication.k8s.io/v1/tokenreviews";
const KINDS: [&str; 3] = [
    "GET /api/v1/nodes",
    "GET /api/v1/pods",
    "GET /apis/vm.neon.tech/v1/virtualmachine",
];

/// What becomes of the next writes of VMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// They are refused with this status and change nothing.
    Refuse(u16),
    /// They are never answered and change nothing.
    Swallow,
    /// They are carried out and never answered.
    Apply,
}

/// A handle of the running peer.
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
        Self::serve_on(TcpListener::bind("127.0.0.1:0").await.expect("binds"))
    }

    /// Starts one on a socket that listens already.
    pub(crate) fn serve_on(listener: TcpListener) -> Self {
        let api = Self(TestApi::serve(listener));
        api.always(REVIEWS, test_api::Fault::answer(review));
        api.always("DELETE /", test_api::Fault::answer(refuse_without_uid));
        api.set_copies(true);
        api
    }

    pub(crate) fn set_fault(&self, fault: Fault) {
        self.take_back(VM_WRITES);
        let fault = match fault {
            Fault::None => return,
            Fault::Refuse(status) => test_api::Fault::Refuse(status),
            Fault::Swallow => test_api::Fault::Swallow,
            Fault::Apply => test_api::Fault::Lose,
        };
        self.always(VM_WRITES, fault);
    }

    pub(crate) fn set_lists_hang(&self, hang: bool) {
        for kind in KINDS {
            if hang {
                self.always(kind, test_api::Fault::Hold);
            } else {
                self.take_back(kind);
            }
        }
    }

    /// Whether a VM's annotations are copied to its pods at once, as its controller does.
    pub(crate) fn set_copies(&self, copies: bool) {
        self.after_writes(move |api, call| {
            if copies && call.line.starts_with(VM_WRITES) {
                copy_annotations(api, call.name());
            }
        });
    }

    /// All objects of a kind.
    pub(crate) fn all(&self, kind: &str) -> Vec<Value> {
        self.list(kind)
    }

    pub(crate) fn delete(&self, kind: &str, namespace: &str, name: &str) {
        self.take(kind, namespace, name);
    }

    /// Successful writes of VMs so far.
    pub(crate) fn writes(&self) -> usize {
        self.count(VM_WRITES, Call::is_done)
    }
}

fn copy_annotations(api: &TestApi, vm: &str) {
    let Some(object) = api.get("virtualmachines", "default", vm) else {
        return;
    };
    let from = object["metadata"]["annotations"].as_object();
    for pod in api.list("pods") {
        if pod["metadata"]["ownerReferences"][0]["name"] != vm {
            continue;
        }
        let name = pod["metadata"]["name"].as_str().expect("is text");
        api.edit("pods", "default", name, |pod| {
            for (key, value) in from.into_iter().flatten() {
                pod["metadata"]["annotations"][key] = value.clone();
            }
        });
    }
}

/// Says of a token what object `tokens/default/TOKEN` says, and keeps the review.
fn review(api: &TestApi, call: &Call) -> Option<(u16, Value)> {
    let mut review = call.json();
    let token = review["spec"]["token"].as_str().unwrap_or_default();
    let known = api.get("tokens", "default", token);
    let said = known.map_or(json!({"authenticated": false}), |known| {
        known["status"].clone()
    });
    if said == "fails" {
        return Some((
            500,
            json!({"kind": "Status", "status": "Failure", "code": 500}),
        ));
    }
    let count = api.list("tokenreviews").len();
    review["metadata"] = json!({"name": count.to_string(), "namespace": "default"});
    review["status"] = said;
    api.put("tokenreviews", review.clone());
    Some((201, review))
}

/// The scheduler deletes no object without the uid that it means.
fn refuse_without_uid(_: &TestApi, call: &Call) -> Option<(u16, Value)> {
    let is_named = call.json()["preconditions"]["uid"].is_string();
    let refusal = json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict"});
    (!is_named).then_some((409, refusal))
}
