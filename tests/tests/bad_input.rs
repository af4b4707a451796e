//! Bad input gets a clear error and loses nothing: command lines, requests and files.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::process::{Output, Stdio};
use std::time::Duration;

use bellows_tests::bellows_bin;
use bellows_tests::site::{Site, postgres_vm};
use serde_json::{Value, json};

fn run(arguments: &[&str], state: &std::path::Path) -> Output {
    std::process::Command::new(bellows_bin())
        .args(arguments)
        .arg("--state-dir")
        .arg(state)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// An HTTPS client that trusts the site's own authority, and the server's address and token.
async fn raw_client(site: &Site) -> (reqwest::Client, String, String) {
    let text = std::fs::read_to_string(site.state_dir().join("kubeconfig")).unwrap();
    let config = kube::config::Kubeconfig::from_yaml(&text).unwrap();
    let cluster = config.clusters[0].cluster.clone().unwrap();
    let server = cluster.server.unwrap().trim_end_matches('/').to_owned();
    let loaded = kube::Config::from_custom_kubeconfig(
        config.clone(),
        &kube::config::KubeConfigOptions::default(),
    )
    .await
    .unwrap();
    let mut builder = reqwest::Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(10));
    for der in loaded.root_cert.unwrap() {
        builder = builder.add_root_certificate(reqwest::Certificate::from_der(&der).unwrap());
    }
    // The client library hides the token, so it is read from the file.
    let token = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("token: "))
        .unwrap();
    let token = token.trim_matches('"').to_owned();
    (builder.build().unwrap(), server, token)
}

const VMS: &str = "/apis/vm.neon.tech/v1/namespaces/default/virtualmachines";

/// Token missing 401, unknown kind 404, stale resourceVersion 409, wrong patch type 415, malformed
/// VM 422 with field paths.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusal_of_the_api_names_the_field() {
    let site = Site::fresh().await.unwrap();
    let (http, server, token) = raw_client(&site).await;
    let url = format!("{server}{VMS}");

    let answer = http.get(&url).send().await.unwrap();
    assert_eq!(answer.status(), 401);
    let status: Value = answer.json().await.unwrap();
    assert_eq!(
        (&status["kind"], &status["reason"]),
        (&json!("Status"), &json!("Unauthorized"))
    );
    assert_eq!(
        http.get(&url)
            .bearer_auth("wrong")
            .send()
            .await
            .unwrap()
            .status(),
        401
    );

    let unknown = format!("{server}/apis/vm.neon.tech/v1/namespaces/default/virtualtoasters");
    assert_eq!(
        http.get(unknown)
            .bearer_auth(&token)
            .send()
            .await
            .unwrap()
            .status(),
        404
    );

    let mut bad = postgres_vm("bad", (2000, 1000, 4000), (1, 3, 2), false);
    let answer = http
        .post(&url)
        .bearer_auth(&token)
        .json(&bad)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 422);
    let status: Value = answer.json().await.unwrap();
    assert_eq!(status["reason"], "Invalid");
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .contains("spec.guest.cpus.use"),
        "{status}"
    );
    bad["spec"]["guest"]["cpus"]["use"] = json!("2");
    let answer = http
        .post(&url)
        .bearer_auth(&token)
        .json(&bad)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 422);
    let status: Value = answer.json().await.unwrap();
    assert!(
        status["message"].as_str().unwrap().contains("memorySlots"),
        "{status}"
    );

    // A missing image: the object is accepted, and the pod reports the image and how to build it.
    let mut vm = postgres_vm("imageless", (1000, 1000, 1000), (1, 1, 1), false);
    vm["spec"]["guest"]["rootDisk"]["image"] = json!("no/such:image");
    let answer = http
        .post(&url)
        .bearer_auth(&token)
        .json(&vm)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 201);
    let created: Value = answer.json().await.unwrap();

    let mut stale = created.clone();
    stale["metadata"]["resourceVersion"] = json!("1");
    stale["spec"]["terminationGracePeriodSeconds"] = json!(7);
    let answer = http
        .put(format!("{url}/imageless"))
        .bearer_auth(&token)
        .json(&stale)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 409);

    let answer = http
        .patch(format!("{url}/imageless"))
        .bearer_auth(&token)
        .header("content-type", "application/strategic-merge-patch+json")
        .body("{}")
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 415);

    let events = bellows_tests::patience::wait_for(
        "an event about the image",
        Duration::from_secs(30),
        || async {
            let text = site
                .kubectl(&["get", "events", "-o", "json"])
                .await
                .map_err(|error| format!("{error:#}"))?;
            if text.contains("no/such:image") && text.contains("bellows image build") {
                Ok(text)
            } else {
                Err(text)
            }
        },
    );
    events.await.unwrap();
    site.kubectl(&["delete", "neonvm", "imageless", "--timeout=30s"])
        .await
        .unwrap();
}

/// A second `bellows up` on the same state directory names the first one and ends with 75; wrong
/// flags end with 64.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_up_names_the_first() {
    let site = Site::fresh().await.unwrap();
    let second = run(&["up"], site.state_dir());
    assert_eq!(second.status.code(), Some(75), "{}", said(&second));
    let pid = site.ready["pid"].as_u64().unwrap().to_string();
    assert!(said(&second).contains(&pid), "{}", said(&second));
    let wrong = run(&["up", "--no-such-flag"], site.state_dir());
    assert_eq!(wrong.status.code(), Some(64));
    // The first one still answers.
    site.kubectl(&["get", "nodes"]).await.unwrap();
}

/// A store that was cut off is opened or named, never silently empty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncated_store_is_never_silently_empty() {
    let dir = tempfile::Builder::new()
        .prefix("bellows-test-")
        .tempdir()
        .unwrap();
    {
        let site = Site::start(dir.path()).await.unwrap();
        site.kubectl(&["create", "configmap", "kept", "--from-literal=a=b"])
            .await
            .unwrap();
        site.bellows(&["down"]).await.unwrap();
    }
    let store = dir.path().join("api.redb");
    let whole = std::fs::read(&store).unwrap();
    for keep in [0, 100, whole.len() / 2] {
        std::fs::write(&store, &whole[..keep]).unwrap();
        match Site::start(dir.path()).await {
            Ok(site) => {
                site.kubectl(&["get", "configmap", "kept"]).await.unwrap();
                site.bellows(&["down"]).await.unwrap();
            }
            Err(error) => {
                let text = format!("{error:#}");
                assert!(
                    text.contains("api.redb"),
                    "the store cut to {keep} bytes is not named: {text}"
                );
            }
        }
    }
    std::fs::write(&store, &whole).unwrap();
    let site = Site::start(dir.path()).await.unwrap();
    site.kubectl(&["get", "configmap", "kept"]).await.unwrap();
}
