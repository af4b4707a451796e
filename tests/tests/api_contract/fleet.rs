//! Objects of the fleet: both servers refuse the same ones, and name the same field.

use std::collections::BTreeMap;

use bellows_tests::api::{Api, Flavour};
use bellows_tests::patience::wait_for;
use hyper::Request;
use hyper::header::HeaderValue;
use kube::Api as Objects;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use kube::client::Body;
use protocol::fleet::{FleetKind, GROUP, VERSION};
use serde_json::{Value, json};

use super::{read, refusal};

async fn objects(api: &Api, kind: FleetKind) -> Objects<DynamicObject> {
    let gvk = GroupVersionKind::gvk(GROUP, VERSION, kind.as_str());
    let resource = ApiResource::from_gvk_with_plural(&gvk, kind.plural());
    Objects::default_namespaced_with(api.client().await.unwrap(), &resource)
}

fn object(kind: FleetKind, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": kind.as_str(),
        "metadata": {"name": name}, "spec": spec,
    })
}

fn sound(kind: FleetKind) -> Value {
    match kind {
        FleetKind::Environment => json!({
            "part": "monitor", "source": {"release": {"version": "1.2.3"}},
            "selector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}, "rollout": {},
        }),
        FleetKind::Deployment => json!({"environment": "m", "revision": "m-r1", "kind": "User"}),
        FleetKind::Channel => json!({
            "url": "https://releases.example", "name": "stable",
            "root": r#"{"signed": {"_type": "root"}}"#,
        }),
        FleetKind::Instance => json!({"parts": {"monitor": {
            "environment": "m", "deployment": "d", "revision": "m-r1", "version": "1.2.3",
            "sha256": "0".repeat(64), "token": "d-1", "epoch": 5, "attempt": 1,
        }}}),
    }
}

fn changed(kind: FleetKind, pointer: &str, value: &Value) -> Value {
    let mut spec = sound(kind);
    let (parent, member) = pointer.rsplit_once('/').unwrap();
    spec.pointer_mut(parent).unwrap()[member] = value.clone();
    spec
}

/// Requirement: B29, B09, B10
pub(super) async fn fleet_objects_are_refused_by_field(api: &Api) {
    use FleetKind::{Channel, Deployment, Environment, Instance};
    let version = "/source/release/version";
    let expression = "/selector/matchExpressions/0";
    let at_night = json!({"days": ["Sat"], "start": "02:00"});
    let tick = json!({"at": "2026-01-05T02:00:00Z"});
    let rows = [
        (Environment, "/part", json!("sshd"), "spec.part"),
        (Environment, "/type", json!("Service"), "spec.type"),
        (Environment, "/type", json!("Cron"), "spec.cron"),
        (Environment, "/cron", at_night, "spec.cron"),
        (Deployment, "/kind", json!("Cron"), "spec.tick"),
        (Deployment, "/tick", tick, "spec.tick"),
        (Environment, "/service", json!({}), "spec.service"),
        (
            Environment,
            version,
            json!("v1.2.3"),
            "spec.source.release.version",
        ),
        (
            Environment,
            version,
            json!("1.2.3+x"),
            "spec.source.release.version",
        ),
        (
            Environment,
            "/rollout/minHealthyPercent",
            json!(100),
            "spec.rollout.minHealthyPercent",
        ),
        (
            Environment,
            "/rollout/trialSeconds",
            json!(5),
            "spec.rollout.trialSeconds",
        ),
        (
            Environment,
            &format!("{expression}/values"),
            json!(["x"]),
            "spec.selector.matchExpressions[0].values",
        ),
        (
            Environment,
            "/source/channel",
            json!("stable"),
            "spec.source",
        ),
        (
            Channel,
            "/url",
            json!("http://releases.example"),
            "spec.url",
        ),
        (Channel, "/name", json!("Stable"), "spec.name"),
        (Channel, "/root", json!(""), "spec.root"),
        (Deployment, "/revision", json!("other-r1"), "spec.revision"),
        (Deployment, "/revision", json!("m-rx"), "spec.revision"),
        (Deployment, "/kind", json!("Rollback"), "spec.rollbackOf"),
        (Deployment, "/rollbackOf", json!("d"), "spec.rollbackOf"),
        (Instance, "/parts/monitor/version", json!("1"), "spec.parts"),
        (
            Instance,
            "/parts/monitor/sha256",
            json!("ABC"),
            "spec.parts",
        ),
    ];
    for (kind, pointer, value, field) in rows {
        let objects = objects(api, kind).await;
        let bad = read(object(kind, "bad", changed(kind, pointer, &value)));
        let refused = objects.create(&PostParams::default(), &bad).await;
        let (code, message) = refusal(refused);
        assert_eq!(code, 422, "{pointer} = {value}: {message}");
        assert!(message.contains(field), "{pointer} = {value}: {message}");
    }
}

/// Requirement: B09, B13
pub(super) async fn fixed_members_of_fleet_objects_stay(api: &Api) {
    use FleetKind::{Channel, Deployment, Environment, Instance};
    for kind in [Environment, Deployment, Instance, Channel] {
        let made = read(object(kind, "one", sound(kind)));
        let objects = objects(api, kind).await;
        objects.create(&PostParams::default(), &made).await.unwrap();
    }
    let rows = [
        (Environment, json!({"part": "guestd"}), "spec.part"),
        (
            Deployment,
            json!({"environment": "n", "revision": "n-r1"}),
            "spec.environment",
        ),
        (Deployment, json!({"revision": "m-r2"}), "spec.revision"),
        (Deployment, json!({"instances": ["vm-a"]}), "spec.instances"),
        (Deployment, json!({"reason": "x"}), "spec.reason"),
        (
            Instance,
            json!({"parts": {"monitor": {"token": "d-2", "epoch": 5}}}),
            "spec.parts",
        ),
        (
            Instance,
            json!({"parts": {"monitor": {"token": "d-2", "epoch": 4}}}),
            "spec.parts",
        ),
    ];
    for (kind, spec, field) in rows {
        let patch = Patch::Merge(json!({"spec": spec}));
        let objects = objects(api, kind).await;
        let patched = objects.patch("one", &PatchParams::default(), &patch).await;
        let (code, message) = refusal(patched);
        assert_eq!(code, 422, "{spec}: {message}");
        assert!(message.contains(field), "{spec}: {message}");
    }
    let deployments = objects(api, Deployment).await;
    let stop = |stop: bool| Patch::Merge(json!({"spec": {"stop": stop}}));
    let params = PatchParams::default();
    deployments
        .patch("one", &params, &stop(true))
        .await
        .unwrap();
    let (code, message) = refusal(deployments.patch("one", &params, &stop(false)).await);
    assert_eq!(
        (code, message.contains("spec.stop")),
        (422, true),
        "{message}"
    );
}

/// Requirement: B19
pub(super) async fn environment_in_a_rollout_is_not_deleted(api: &Api) {
    let kind = FleetKind::Environment;
    let objects = objects(api, kind).await;
    let made = read(object(kind, "busy", sound(kind)));
    objects.create(&PostParams::default(), &made).await.unwrap();
    let lock = |kind: &str| {
        Patch::Merge(json!({"status": {"lock": {"deployment": "d", "kind": kind, "epoch": 1}}}))
    };
    let params = PatchParams::default();
    objects
        .patch_status("busy", &params, &lock("User"))
        .await
        .unwrap();
    let refused = objects.delete("busy", &DeleteParams::default()).await;
    let (code, message) = refusal(refused);
    assert_eq!(
        (code, message.contains("stop d first")),
        (403, true),
        "{message}"
    );
    objects
        .patch_status("busy", &params, &lock("HealthRepair"))
        .await
        .unwrap();
    objects
        .delete("busy", &DeleteParams::default())
        .await
        .unwrap();
}

/// Requirement: B20, B28
pub(super) async fn fleet_objects_are_listed_by_field_and_label(api: &Api) {
    let deployments = objects(api, FleetKind::Deployment).await;
    for (name, environment, state, colour) in [
        ("a", "m", "Complete", "red"),
        ("b", "m", "Unhealthy", "blue"),
        ("c", "n", "Complete", "blue"),
    ] {
        let spec = json!({
            "environment": environment, "revision": format!("{environment}-r1"), "kind": "User",
        });
        let mut made = object(FleetKind::Deployment, name, spec);
        made["metadata"]["labels"] = json!({"colour": colour});
        let params = PostParams::default();
        deployments.create(&params, &read(made)).await.unwrap();
        let status = Patch::Merge(json!({"status": {"state": state}}));
        let params = PatchParams::default();
        let patched = deployments.patch_status(name, &params, &status).await;
        patched.unwrap();
    }
    for (fields, labels, expected) in [
        ("spec.environment=m", "", vec!["a", "b"]),
        ("status.state=Complete", "", vec!["a", "c"]),
        ("spec.environment=m,status.state!=Complete", "", vec!["b"]),
        ("spec.kind=User", "colour=blue", vec!["b", "c"]),
        ("metadata.name=c", "", vec!["c"]),
        ("spec.kind=Rollback", "", vec![]),
    ] {
        let params = ListParams::default().fields(fields).labels(labels);
        let listed = deployments.list(&params).await.unwrap().items;
        let names: Vec<String> = listed
            .into_iter()
            .filter_map(|one| one.metadata.name)
            .collect();
        assert_eq!(names, expected, "{fields} {labels}");
    }
    let unknown = ListParams::default().fields("spec.reason=x");
    let refused = deployments.list(&unknown).await;
    assert_eq!(refusal(refused).0, 400);
}

/// Calls by verb, URI and status.
type Calls = BTreeMap<(String, String, u16), usize>;

/// Sends a call as it is. Returns the status of the response, whose body was read.
async fn send(client: &kube::Client, method: &str, uri: &str, body: &Value) -> u16 {
    let content = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let body = if body.is_null() {
        Vec::new()
    } else {
        body.to_string().into_bytes()
    };
    let request = Request::builder().method(method).uri(uri);
    let request = request
        .header("content-type", content)
        .body(Body::from(body));
    let response = client.send(request.unwrap()).await.unwrap();
    let status = response.status().as_u16();
    response.into_body().collect_bytes().await.unwrap();
    status
}

/// Good and refused calls on an environment, as verb, method, URI, body and status.
fn calls_about(all: &str, name: &str) -> Vec<(&'static str, &'static str, String, Value, u16)> {
    let one = format!("{all}/{name}");
    let kind = FleetKind::Environment;
    let made = object(kind, name, sound(kind));
    let bad = object(kind, "bad", changed(kind, "/part", &json!("sshd")));
    let stale = json!({"metadata": {"resourceVersion": "1"}, "spec": {"paused": true}});
    let status = json!({"status": {"health": "Healthy"}});
    let watch = format!("{all}?watch=1&timeoutSeconds=1");
    vec![
        ("create", "POST", all.to_owned(), made.clone(), 201),
        ("create", "POST", all.to_owned(), made, 409),
        ("create", "POST", all.to_owned(), bad, 422),
        ("get", "GET", one.clone(), Value::Null, 200),
        ("list", "GET", format!("{all}?limit=1"), Value::Null, 200),
        ("watch", "GET", watch, Value::Null, 200),
        ("patch", "PATCH", format!("{one}/status"), status, 200),
        ("patch", "PATCH", one.clone(), stale, 409),
        ("delete", "DELETE", one.clone(), Value::Null, 200),
        ("get", "GET", one, Value::Null, 404),
    ]
}

/// Lines about paths that begin so.
fn lines(api: &Api, begin: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(&api.audit_log).unwrap_or_default();
    // The last line may still be written.
    let whole = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    let all = whole.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let is_about = |line: &Value| line["requestURI"].as_str().unwrap().starts_with(begin);
    all.filter(is_about).collect()
}

fn told(lines: &[Value]) -> Calls {
    let mut calls = Calls::new();
    for line in lines {
        let text = |name: &str| line[name].as_str().unwrap().to_owned();
        let code = line["responseStatus"]["code"].as_u64().unwrap();
        let key = (
            text("verb"),
            text("requestURI"),
            u16::try_from(code).unwrap(),
        );
        *calls.entry(key).or_default() += 1;
    }
    calls
}

/// Requirement: B49
pub(super) async fn calls_on_fleet_objects_are_lines_of_the_audit_log(api: &Api) {
    let client = api.client().await.unwrap();
    let path = format!("/apis/{GROUP}/{VERSION}/namespaces/{}/", api.namespace);
    let all = format!("{path}{}", FleetKind::Environment.plural());
    let mut made = Calls::new();
    for name in ["a", "b", "c"] {
        for (verb, method, uri, body, expected) in calls_about(&all, name) {
            let status = send(&client, method, &uri, &body).await;
            assert_eq!(status, expected, "{method} {uri}");
            *made.entry((verb.to_owned(), uri, status)).or_default() += 1;
        }
    }
    let nobody = api.client_with_token("nobody").await.unwrap();
    assert_eq!(send(&nobody, "GET", &all, &Value::Null).await, 401);
    made.insert(("list".to_owned(), all.clone(), 401), 1);
    let mut other = Request::get(&all).body(Body::empty()).unwrap();
    let user = HeaderValue::from_static("nobody");
    other.headers_mut().insert("impersonate-user", user);
    assert_eq!(client.send(other).await.unwrap().status(), 403);
    made.insert(("list".to_owned(), all.clone(), 403), 1);
    wait_for("a line for each call", super::PATIENCE, || async {
        let told = told(&lines(api, &path));
        if told == made {
            Ok(())
        } else {
            Err(format!("{told:?} of {made:?}"))
        }
    })
    .await
    .unwrap();
    for line in lines(api, &path) {
        let whole = line.to_string();
        assert_eq!(line["level"], "Metadata", "{whole}");
        // Kubernetes writes watches, and calls of nobody it knows, before their response ends.
        let is_early = api.flavour == Flavour::Kubernetes
            && (line["verb"] == "watch" || line["responseStatus"]["code"] == 401);
        let stage = if is_early {
            "ResponseStarted"
        } else {
            "ResponseComplete"
        };
        assert_eq!(line["stage"], stage, "{whole}");
        assert_eq!(line["objectRef"]["apiGroup"], GROUP, "{whole}");
        assert!(!whole.contains("1.2.3"), "a body is told: {whole}");
        assert!(!whole.contains("requestObject"), "{whole}");
    }
}
