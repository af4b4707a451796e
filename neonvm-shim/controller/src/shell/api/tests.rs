use std::sync::Mutex;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};

use super::*;
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
    let client = Client::try_from(kube::Config::new(url)).expect("a client");
    KubeApi::new(client)
}

fn said(usage: &str) -> Pod {
    let mut pod = ready_pod(&sample_vm(), "example");
    let annotations = &mut pod.metadata.annotations;
    annotations.insert(USAGE.into(), usage.into());
    pod
}

/// A change that rests on what another has changed meanwhile is answered by how the pod is; whatever else is refused stays refused.
#[tokio::test]
async fn what_rests_on_another_state_of_a_pod_is_decided_anew() {
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
        sync(422, Some(said("large"))).await,
        Ok(Some("large".into()))
    );
    assert_eq!(sync(422, None).await, Ok(None));
    for (code, usage) in [(422, "small"), (403, "large")] {
        let refused = sync(code, Some(said(usage))).await;
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
