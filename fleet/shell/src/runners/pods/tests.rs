use axum::Router;
use axum::http::{HeaderMap, header};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use test_api::TestApi;
use test_authority::{Authority, Identity};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;

const LIMIT: Duration = Duration::from_secs(5);

fn vm() -> VirtualMachine {
    let object = json!({
        "metadata": {"name": "pg", "namespace": "default", "uid": "u"},
        "spec": {"guest": {
            "cpus": {"min": 1, "max": 1, "use": 1},
            "memorySlotSize": "1Gi", "memorySlots": {"min": 1, "max": 1, "use": 1},
            "rootDisk": {"image": "image"},
        }},
        "status": {"phase": "Running", "podName": "pg-1"},
    });
    serde_json::from_value(object).expect("a VM")
}

fn pod() -> Value {
    json!({
        "metadata": {
            "name": "pg-1", "namespace": "default", "labels": {LABEL_VM_NAME: "pg"},
            "ownerReferences": [{
                "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": "pg",
                "uid": "u", "controller": true,
            }],
        },
        "status": {"podIP": "10.0.0.1", "containerStatuses": [
            {"state": {"running": {"startedAt": "2026-01-05T12:00:00Z"}}},
            {"state": {"running": {"startedAt": "2026-01-05T12:00:07Z"}}},
        ]},
    })
}

fn found(object: &Value) -> Option<SocketAddr> {
    let pods: PodsByOwner = Pod::read(object).into_iter().collect();
    pods.of(&vm()).and_then(|pod| pod.runner_at(&vm()).0)
}

#[test]
fn runner_is_at_the_address_of_its_vms_pod() {
    let expected = "10.0.0.1:25183".parse().expect("an address");
    assert_eq!(found(&pod()), Some(expected));
    let read = Pod::read(&pod()).expect("a pod");
    assert_eq!(read.started, WallTime::parse("2026-01-05T12:00:07Z").ok());
}

/// Requirement: B48
#[test]
fn pod_that_only_resembles_that_of_the_vm_is_left_alone() {
    let changes = [
        ("/metadata/name", json!("pg-2")),
        ("/metadata/namespace", json!("other")),
        ("/metadata/labels", json!({})),
        ("/metadata/labels", json!({LABEL_VM_NAME: "pg2"})),
        ("/metadata/ownerReferences", json!([])),
        ("/metadata/ownerReferences/0/uid", json!("v")),
        ("/metadata/ownerReferences/0/uid", json!("")),
        (
            "/metadata/ownerReferences/0/kind",
            json!("VirtualMachineSet"),
        ),
        (
            "/metadata/ownerReferences/0/apiVersion",
            json!("vm.example/v1"),
        ),
        ("/metadata/ownerReferences/0/controller", json!(false)),
        ("/status/podIP", json!("pg.example")),
        ("/status/podIP", Value::Null),
    ];
    for (member, value) in changes {
        let mut near = pod();
        *near.pointer_mut(member).expect("a member") = value;
        assert_eq!(found(&near), None, "{near}");
    }
}

#[test]
fn pod_without_its_members_is_no_pod_of_a_vm() {
    for odd in [
        Value::Null,
        json!([]),
        json!({"metadata": {"ownerReferences": 7}}),
    ] {
        assert_eq!(Pod::read(&odd), None);
    }
}

/// A runner that serves the token that it is shown.
async fn serve(identity: &Identity) -> SocketAddr {
    let config = daemon_kit::tls::showing(identity.cert.as_bytes(), identity.key.as_bytes());
    let acceptor = TlsAcceptor::from(config.expect("a pair"));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let at = listener.local_addr().expect("bound");
    let shown = async |headers: HeaderMap| {
        let token = headers.get(header::AUTHORIZATION);
        token.map_or(String::new(), |token| {
            token.to_str().expect("text").to_owned()
        })
    };
    let routes = Router::new().route("/v1/state", get(shown));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else {
                continue;
            };
            let service = TowerToHyperService::new(routes.clone());
            let http = hyper::server::conn::http1::Builder::new();
            tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
        }
    });
    at
}

fn secret(identity: &Authority) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {
            "name": "runner-neonvm-pg", "namespace": "default",
            "ownerReferences": [{
                "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": "pg", "uid": "u",
            }],
        },
        "data": {
            "token": STANDARD.encode("it"),
            "tls.crt": STANDARD.encode(&identity.pem),
        },
    })
}

fn runner(at: Option<SocketAddr>) -> Runner {
    Runner {
        namespace: "default".to_owned(),
        vm: "pg".to_owned(),
        uid: "u".to_owned(),
        pod: "pg-1".to_owned(),
        at,
        started: None,
    }
}

async fn asked(pods: &Pods, runner: &Runner) -> Result<Bytes, HttpError> {
    pods.send(runner, Method::GET, "/v1/state", Bytes::new(), LIMIT)
        .await
}

/// Requirement: B48
#[tokio::test]
async fn runner_is_shown_the_token_only_with_the_certificate_of_its_vm() {
    let (own, other) = (Authority::new("own"), Authority::new("other"));
    let api = TestApi::start().await;
    let pods = Pods::new(api.client());
    let at = serve(&own.signs(ORDERS_NAME)).await;

    let refused = asked(&pods, &runner(Some(at)))
        .await
        .expect_err("no secret");
    assert!(
        daemon_kit::chain(&refused).contains("runner-neonvm-pg"),
        "{refused:?}"
    );
    api.put("secrets", secret(&own));
    let token = asked(&pods, &runner(Some(at))).await.expect("a response");
    assert_eq!(token, "Bearer it");

    let stranger = serve(&other.signs(ORDERS_NAME)).await;
    let refused = asked(&pods, &runner(Some(stranger))).await;
    assert!(matches!(refused, Err(HttpError::Connect(_))), "{refused:?}");
    let misnamed = serve(&own.signs("another")).await;
    let refused = asked(&pods, &runner(Some(misnamed))).await;
    assert!(matches!(refused, Err(HttpError::Connect(_))), "{refused:?}");
    let refused = asked(&pods, &runner(None)).await;
    assert!(matches!(refused, Err(HttpError::Connect(_))), "{refused:?}");
}

#[tokio::test]
async fn secret_is_read_once_and_forgotten_with_its_vm() {
    let own = Authority::new("own");
    let api = TestApi::start().await;
    api.put("secrets", secret(&own));
    let pods = Pods::new(api.client());
    let at = serve(&own.signs(ORDERS_NAME)).await;
    let line = "GET /api/v1/namespaces/default/secrets/runner-neonvm-pg";
    for _ in 0..3 {
        asked(&pods, &runner(Some(at))).await.expect("a response");
    }
    pods.keep_only(&[vm()]);
    asked(&pods, &runner(Some(at))).await.expect("a response");
    assert_eq!(api.count(line, |_| true), 1);
    pods.keep_only(&[]);
    asked(&pods, &runner(Some(at))).await.expect("a response");
    assert_eq!(api.count(line, |_| true), 2);
}
