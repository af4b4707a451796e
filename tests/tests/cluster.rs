//! Cases on a real cluster of two nodes with kubelets: pods run, talk across nodes, and are looked
//! into.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bellows_tests::cases::{self, Case, Wanted};
use bellows_tests::cluster::{Cluster, Lifetime, nodes_or_skip, pack_busybox};
use bellows_tests::patience::wait_for;

/// A pod that is there starts within seconds; the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(120);

const CASES: [&str; 2] = [
    // Requirement: N47.
    "pods_of_two_nodes_run_and_reach_each_other",
    // Requirement: N47.
    "an_ended_pod_is_reported_and_a_deleted_one_is_removed",
];

fn main() -> Result<ExitCode> {
    let chosen = Wanted::from_args().choose(&CASES);
    let Some((programs, kit)) = cases::shared(&chosen, nodes_or_skip) else {
        return Ok(ExitCode::SUCCESS);
    };
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let dir = tempfile::tempdir()?;
        let images = tempfile::tempdir()?;
        let archives = [pack_busybox(images.path())?];
        let cluster = Cluster::start(programs, &kit, dir.path(), 2, &archives, Lifetime::WithUs);
        let cluster = cluster.await?;
        let cases = chosen.into_iter().map(case).collect();
        let passed = cases::run(&cluster, cases, || cluster.logs()).await;
        Ok(if passed {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    })
}

fn case<'a>(name: &'static str) -> Case<'a, Cluster> {
    match name {
        // Requirement: N47.
        "pods_of_two_nodes_run_and_reach_each_other" => {
            (name, Box::new(|cluster| Box::pin(pods_run(cluster))))
        }
        _ => (name, Box::new(|cluster| Box::pin(pods_end(cluster)))),
    }
}

/// A pod on a node that serves a page with its name.
fn server(name: &str, node: &str) -> String {
    format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "{name}"}}, "spec": {{
            "nodeName": "{node}", "terminationGracePeriodSeconds": 0,
            "containers": [{{"name": "c", "image": "bellows/busybox:1", "imagePullPolicy": "Never",
                "command": ["sh", "-c", "echo $HOSTNAME serves; mkdir /w; echo page of $HOSTNAME > /w/page; exec httpd -f -p 8080 -h /w"],
                "readinessProbe": {{"httpGet": {{"path": "/page", "port": 8080}}, "periodSeconds": 1}},
                "resources": {{"limits": {{"memory": "32Mi", "cpu": "200m"}}}}}}]}}}}"#
    )
}

/// Waits until `holds` accepts the output of `kubectl`.
async fn until(cluster: &Cluster, args: &[&str], holds: impl Fn(&str) -> bool) -> Result<String> {
    let what = format!("kubectl {}", args.join(" "));
    wait_for(&what, PATIENCE, || async {
        match cluster.plane().ask(args) {
            Ok(text) if holds(&text) => Ok(text),
            Ok(text) => Err(text),
            Err(error) => Err(format!("{error:#}")),
        }
    })
    .await
}

async fn pods_run(cluster: &Cluster) -> Result<()> {
    let (plane, nodes) = (cluster.plane(), cluster.names());
    let mut pods = Vec::new();
    for (name, node) in ["one", "two"].into_iter().zip(&nodes) {
        plane.apply(&server(name, node))?;
    }
    for name in ["one", "two"] {
        let ready = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.podIP}"#;
        let args = ["get", "pod", name, "-o", ready];
        let text = until(cluster, &args, |text| text.starts_with("True ")).await?;
        let address = text
            .split_whitespace()
            .nth(1)
            .context("it has an address")?;
        pods.push((name, address.to_owned()));
    }
    for (from, (to, address)) in [("one", &pods[1]), ("two", &pods[0])] {
        let ask = format!("printf 'GET /page HTTP/1.0\\r\\n\\r\\n' | nc {address} 8080");
        let page = plane.ask(&["exec", from, "--", "sh", "-c", &ask])?;
        ensure!(
            page.ends_with(&format!("page of {to}\n")),
            "{from} read {page:?}"
        );
        let log = plane.ask(&["logs", to])?;
        ensure!(log == format!("{to} serves\n"), "the log of {to}: {log:?}");
        // The API is where pods look for it.
        let api = "nc -w 5 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT < /dev/null";
        plane.ask(&["exec", from, "--", "sh", "-c", api])?;
    }
    // Clients in the nodes' network reach pods as well.
    let mut reach = cluster.on_network("busybox");
    let status = reach.args(["nc", "-w", "5", &pods[0].1, "8080"]).status()?;
    ensure!(status.success(), "{} is not reached", pods[0].1);
    for name in ["one", "two"] {
        plane.ask(&["delete", "pod", name, "--wait=false"])?;
    }
    Ok(())
}

async fn pods_end(cluster: &Cluster) -> Result<()> {
    let plane = cluster.plane();
    let node = &cluster.names()[0];
    for (name, code, phase) in [("good", 0, "Succeeded"), ("bad", 3, "Failed")] {
        plane.apply(&format!(
            r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "{name}"}}, "spec": {{
                "nodeName": "{node}", "restartPolicy": "Never",
                "containers": [{{"name": "c", "image": "bellows/busybox:1", "imagePullPolicy": "Never",
                    "command": ["sh", "-c", "exit {code}"]}}]}}}}"#
        ))?;
        let args = ["get", "pod", name, "-o", "jsonpath={.status.phase}"];
        until(cluster, &args, |text| text == phase).await?;
        let exit = "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}";
        let found = plane.ask(&["get", "pod", name, "-o", exit])?;
        ensure!(found == code.to_string(), "{name} ended with {found}");
        plane.ask(&["delete", "pod", name, "--wait=false"])?;
        let args = ["get", "pod", name, "--ignore-not-found"];
        until(cluster, &args, str::is_empty).await?;
    }
    Ok(())
}
