use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use kube::api::Patch;
use protocol::object::Pod;
use serde_json::{Value, json};

use super::pods::pods;
use super::{KubeApi, as_json_patch, patch_params};
use crate::core::Refusal;
use crate::core::metadata::PatchOp;
use crate::core::testing::{ready_pod, sample_vm};

const USAGE: &str = "vm.neon.tech/usage";

fn failure(code: u16) -> Response {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure",
        "message": "no", "reason": "Invalid", "code": code,
    });
    let code = StatusCode::from_u16(code).expect("a code");
    (code, Json(status)).into_response()
}

/// An API server with one pod or none, which answers every patch by this code.
async fn api(code: u16, pod: Option<Pod>) -> KubeApi {
    let read = async |State(pod): State<Arc<Mutex<Option<Pod>>>>| {
        let pod = pod.lock().expect("whole").clone();
        pod.map_or_else(|| failure(404), |pod| Json(pod).into_response())
    };
    let routes = get(read).patch(async move || failure(code));
    let routes = Router::new().route("/api/v1/namespaces/default/pods/example", routes);
    let routes = routes.with_state(Arc::new(Mutex::new(pod)));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("binds");
    let at = listener.local_addr().expect("bound");
    tokio::spawn(async move { axum::serve(listener, routes).await });
    let url = format!("http://{at}").parse().expect("an address");
    let client = api_client::connect(kube::Config::new(url)).expect("a client");
    KubeApi::new(client)
}

fn pod_with_usage(usage: &str) -> Pod {
    let mut pod = ready_pod(&sample_vm(), "example");
    let annotations = &mut pod.metadata.annotations;
    annotations.insert(USAGE.into(), usage.into());
    pod
}

/// A change that rests on what another has changed meanwhile is answered by how the pod is;
/// whatever else is refused stays refused.
#[tokio::test]
async fn patch_on_other_state_of_pod_is_decided_again() {
    let ops = [PatchOp::Test {
        path: "/metadata/annotations/vm.neon.tech~1usage".into(),
        value: json!("small"),
    }];
    let sync = async |code, pod| {
        let api = api(code, pod).await;
        let found = api.sync_pod("default", "example", &ops).await;
        found.map(|pod| pod.map(|pod| pod.metadata.annotations[USAGE].clone()))
    };
    assert_eq!(
        sync(422, Some(pod_with_usage("large"))).await,
        Ok(Some("large".into()))
    );
    assert_eq!(sync(422, None).await, Ok(None));
    for (code, usage) in [(422, "small"), (403, "large")] {
        let refused = sync(code, Some(pod_with_usage(usage))).await;
        let is_permanent = matches!(
            refused,
            Err(Refusal::Failed {
                permanent: true,
                ..
            })
        );
        assert!(is_permanent, "{code} {usage}: {refused:?}");
    }
}

/// Writes an object to an API server that keeps these field managers, which the embedded one would
/// work out by itself. Returns the object and the patches that the API server received.
async fn written(entries: Value, keep_field_owners: bool) -> (Value, Vec<Value>) {
    let patches = Arc::new(Mutex::new(Vec::new()));
    let patch = move |State(patches): State<Arc<Mutex<Vec<Value>>>>, Json(ops): Json<Value>| {
        let cleared = ops[1]["path"] == "/metadata/managedFields";
        let entries = if cleared { json!([]) } else { entries.clone() };
        patches.lock().expect("whole").push(ops);
        let object = json!({"metadata": {"resourceVersion": "7", "managedFields": entries}});
        async { Json(object) }
    };
    let path = "/api/v1/namespaces/default/pods/example";
    let routes = Router::new().route(path, axum::routing::patch(patch));
    let routes = routes.with_state(Arc::clone(&patches));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("binds");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    let config = kube::Config::new(url.parse().expect("an address"));
    let mut api = KubeApi::new(api_client::connect(config).expect("a client"));
    api.keep_field_owners = keep_field_owners;
    let objects = pods("default");
    let object = objects.patch(
        "example",
        &patch_params(),
        &Patch::Merge(json!([{"op": "add"}])),
    );
    let written = api.send(object.map(as_json_patch)).await;
    let written = api.disown(&objects, "example", written).await;
    let patches = patches.lock().expect("whole").clone();
    (written.expect("an object"), patches)
}

#[tokio::test]
async fn who_set_which_field_is_cleared_once_where_nobody_applies() {
    let plain = json!([{"manager": "kubelet", "operation": "Update"}]);
    let (object, patches) = written(plain.clone(), false).await;
    assert_eq!(object["metadata"]["managedFields"], json!([]));
    let rests = json!({"op": "test", "path": "/metadata/resourceVersion", "value": "7"});
    assert_eq!((patches.len(), &patches[1][0]), (2, &rests));
    let applier = json!([{"manager": "flux", "operation": "Apply"}]);
    for (entries, keep) in [(applier, false), (plain, true)] {
        let (object, patches) = written(entries.clone(), keep).await;
        assert_eq!(object["metadata"]["managedFields"], entries);
        assert_eq!(patches.len(), 1);
    }
}
