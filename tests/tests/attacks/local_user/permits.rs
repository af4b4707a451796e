//! Requests for permits, state, metrics and monitors from a user who can only reach the loopback.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::process::Stdio;
use std::time::Duration;

use bellows_tests::attacks::{Outcome, Report};
use bellows_tests::guest::Guest;
use bellows_tests::guest_or_skip;
use bellows_tests::patience::wait_for;
use bellows_tests::site::{BOOT_PATIENCE, Site, postgres_vm};
use protocol::vm::VmPhase;
use serde_json::{Value, json};
use tokio::process::Command;

/// IDs of the user and group `nobody`.
const NOBODY: u32 = 65534;
const PATIENCE: Duration = Duration::from_secs(60);
/// Headers of a WebSocket client.
const UPGRADE: [&str; 4] = [
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
];

/// Status and body of curl's response. The status is 0 without a response.
struct Seen {
    status: u16,
    body: String,
}

impl Seen {
    /// The wall held if the port is closed or wants a proof. Any other answer was worked out for
    /// the caller.
    fn outcome(&self) -> Outcome {
        let text: String = self.body.trim().chars().take(120).collect();
        let text = format!("{} {text}", self.status);
        if matches!(self.status, 0 | 401 | 403) {
            Outcome::Refused(text)
        } else {
            Outcome::Succeeded(text)
        }
    }
}

/// Runs curl as a user without groups and capabilities.
async fn curl(words: &[&str]) -> Seen {
    let output = Command::new("setpriv")
        .args([
            "--reuid",
            &NOBODY.to_string(),
            "--regid",
            &NOBODY.to_string(),
        ])
        .args(["--clear-groups", "--inh-caps=-all", "--bounding-set=-all"])
        .args([
            "curl",
            "--silent",
            "--max-time",
            "5",
            "--write-out",
            "\n%{http_code}",
        ])
        .args(words)
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let (body, status) = text.rsplit_once('\n').unwrap_or(("", &text));
    let status = status.trim().parse();
    Seen {
        status: status.unwrap_or_else(|_| panic!("curl did not run: {output:?}")),
        body: body.to_owned(),
    }
}

/// A VM of an image that no store has: it has a pod on the node, and no guest.
fn vm_without_guest() -> Value {
    json!({
        "apiVersion": "vm.neon.tech/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": "pg", "namespace": "default", "labels": {"autoscaling.neon.tech/enabled": "true"}},
        "spec": {
            "schedulerName": "autoscale-scheduler",
            "guest": {
                "cpus": {"min": "250m", "use": "250m", "max": "500m"},
                "memorySlotSize": "128Mi",
                "memorySlots": {"min": 1, "use": 1, "max": 2},
                "rootDisk": {"image": "nowhere/none:1"},
                "ports": [],
            },
        },
    })
}

/// The VM's pod, once the scheduler has bound it.
async fn bound_pod(site: &Site) -> String {
    wait_for("a bound pod", PATIENCE, || async {
        let form = "jsonpath={.items[0].metadata.name} {.items[0].spec.nodeName}";
        let pods = site.kubectl(&["get", "pods", "-o", form]).await;
        let pods = pods.map_err(|error| format!("{error:#}"))?;
        match pods.split_once(' ') {
            Some((pod, node)) if !node.is_empty() => Ok(pod.to_owned()),
            _ => Err(pods),
        }
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_user_gets_no_permit_and_reads_neither_state_nor_metrics() {
    let site = Site::fresh().await.unwrap();
    let block = site.ready["block"].as_u64().unwrap();
    site.create(&vm_without_guest()).await.unwrap();
    let pod = bound_pod(&site).await;
    let mut report = Report::new("local user");

    let wish = json!({
        "protoVersion": 7,
        "pod": {"namespace": "default", "name": pod},
        "computeUnit": {"vCPUs": 1, "mem": "1Gi"},
        "resources": {"vCPUs": 100, "mem": "100Gi"},
    });
    let permits = format!("http://127.{block}.0.2:10299/");
    for (how, header) in [
        ("POST, 100 CPU above max", "Accept: */*"),
        (
            "POST with a made-up token",
            "Authorization: Bearer 0123456789abcdef0123456789abcdef",
        ),
    ] {
        let seen = curl(&["--header", header, "--data", &wish.to_string(), &permits]).await;
        report.record("W4", &permits, how, seen.outcome());
    }
    for (last, port) in [(1, 8080), (2, 9100), (3, 9100), (3, 9101), (3, 10300)] {
        for (method, path) in [
            ("GET", "/"),
            ("GET", "/metrics"),
            ("GET", "/debug/state"),
            ("PUT", "/debug/log"),
        ] {
            let url = format!("http://127.{block}.0.{last}:{port}{path}");
            let seen = curl(&["--request", method, "--data", "debug", &url]).await;
            // A page that does not exist reveals nothing.
            let is_absent = seen.status == 404 && path == "/";
            let outcome = if is_absent {
                Outcome::Refused("404".into())
            } else {
                seen.outcome()
            };
            report.record("W4", url, method, outcome);
        }
    }
    for name in ["metrics.token", "agent.key", "admin.sock"] {
        let path = site.state_dir().join(name);
        let url = format!("file://{}", path.display());
        let seen = curl(&[&url]).await;
        let outcome = if seen.body.is_empty() {
            Outcome::Refused("cannot be read".into())
        } else {
            Outcome::Succeeded(seen.body)
        };
        report.record("W4", path.display().to_string(), "read", outcome);
    }
    report.finish();

    // The wall has a gate: the holder of the token reads the metrics.
    let token = std::fs::read_to_string(site.state_dir().join("metrics.token")).unwrap();
    let header = format!("Authorization: Bearer {}", token.trim());
    // The page of single VMs is empty: no VM runs here.
    for (last, port, has_series) in [
        (1, 8080, true),
        (2, 9100, true),
        (3, 9100, true),
        (3, 9101, false),
    ] {
        let url = format!("http://127.{block}.0.{last}:{port}/metrics");
        let seen = curl(&["--header", &header, &url]).await;
        let is_as_wanted = if has_series {
            seen.body.starts_with("# HELP ")
        } else {
            seen.body.is_empty()
        };
        let is_shown = seen.status == 200 && is_as_wanted;
        assert!(is_shown, "{url}: {} {}", seen.status, seen.body);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_user_does_not_take_the_agents_place_at_a_monitor() {
    if !guest_or_skip("local_user_does_not_take_the_agents_place_at_a_monitor") {
        return;
    }
    let site = Site::fresh().await.unwrap();
    let vm = postgres_vm("pg", (1000, 1000, 1000), (1, 1, 2), true);
    site.create(&vm).await.unwrap();
    let running = site.wait_vm("pg", "phase Running", BOOT_PATIENCE, |vm| {
        let status = vm.status.as_ref();
        status.is_some_and(|status| status.phase == VmPhase::Running)
    });
    let ip = running.await.unwrap().status.unwrap().pod_ip;
    let guest = Guest::new(ip.parse().unwrap()).unwrap();
    wait_for("the agent at the monitor", BOOT_PATIENCE, || async {
        let dump = site.bellows(&["dump", "agent"]).await;
        let dump: Value = serde_json::from_str(&dump.map_err(|error| format!("{error:#}"))?)
            .map_err(|error| error.to_string())?;
        match dump["pods"][0]["status"]["lastSuccessfulMonitorComm"].as_str() {
            Some(_) => Ok(()),
            None => Err(dump["pods"][0]["status"].to_string()),
        }
    })
    .await
    .unwrap();

    let mut report = Report::new("local user");
    let url = format!("http://{ip}:10301/monitor");
    for (how, header) in [
        ("WebSocket", "Accept: */*"),
        (
            "WebSocket with a made-up token",
            "Authorization: Bearer 0123456789abcdef0123456789abcdef",
        ),
    ] {
        let mut words = vec!["--no-buffer", "--header", header];
        words.extend(UPGRADE.iter().flat_map(|header| ["--header", *header]));
        words.push(&url);
        report.record("W3", &url, how, curl(&words).await.outcome());
    }
    report.finish();
    let state: Value =
        serde_json::from_str(&guest.page(9100, "/debug/state").await.unwrap()).unwrap();
    assert_eq!(state["counters"]["replaced"], 0, "{state}");
    assert!(!state["connection"].is_null(), "{state}");
    assert_eq!(
        state["counters"]["handshake_failures"]["no_token"], 2,
        "{state}"
    );
}
