//! The agent's own servers and its start: dump, metrics, readiness, refusals.

mod peers;

use agent::{Config, EventsError, Params, Ports, RunError};
use peers::guest::Page;
use peers::{Seen, World, address, http_get, position, until};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

/// Requirement: N45
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dump_has_the_deployed_agents_keys_and_the_decisions() {
    let mut world = World::new().await;
    let free = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("binds");
    let port = free.local_addr().expect("has an address").port();
    drop(free);
    world.config["dumpState"] = json!({"port": port, "timeoutSeconds": 5});
    world.start_connected().await;
    world.guest.set(Page::Good(0.5, 0.0));
    world
        .trace
        .until("the monitor is told", |all| {
            position(all, |seen| matches!(seen, Seen::Granted(_)))
        })
        .await;
    let dump_address = world
        .addresses
        .as_ref()
        .and_then(|a| a.dump)
        .expect("it is configured");
    for request in ["", "{}"] {
        let answer = http_get(dump_address, "/", request).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let dump: Value = serde_json::from_str(body(&answer)).expect("is JSON");
        let pod = &dump["pods"][0];
        assert_eq!(
            pod["podName"],
            json!({"namespace": "default", "name": "vm-pod"})
        );
        let state = &pod["runner"]["executorState"];
        for (pointer, wanted) in [
            (
                "/Config/ComputeUnit",
                json!({"vCPUs": "250m", "mem": "1Gi"}),
            ),
            ("/Config/PluginRetryWait", json!(3_000_000_000_u64)),
            ("/Plugin/Permit", json!({"vCPUs": "500m", "mem": "2Gi"})),
            ("/NeonVM/TargetRevision/revision/value", json!(1)),
            ("/VM/cpu/use", json!("500m")),
            (
                "/VM/mem",
                json!({"min": 1, "max": 4, "use": 2, "slotSize": "1Gi"}),
            ),
            ("/Metrics/LoadAverage1Min", json!(0.5)),
            ("/LFCMetrics", Value::Null),
        ] {
            assert_eq!(state.pointer(pointer), Some(&wanted), "{pointer}");
        }
        assert_eq!(pod["lastDecision"]["reason"], "cpu");
        assert!(pod["lastDecision"]["votes"]["cpu"].is_number());
        assert!(pod["lastDecision"]["goalUnits"].is_number());
        assert!(pod["lastDecision"]["at"].is_string(), "{pod}");
        assert!(
            pod["decisions"]
                .as_array()
                .is_some_and(|all| !all.is_empty())
        );
    }
    assert!(
        http_get(dump_address, "/", "no JSON")
            .await
            .starts_with("HTTP/1.1 400")
    );
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_have_the_deployed_agents_names() {
    let mut world = World::new().await;
    world.start_connected().await;
    world.guest.set(Page::Good(0.5, 0.0));
    world
        .trace
        .until("the monitor is told", |all| {
            position(all, |seen| matches!(seen, Seen::Granted(_)))
        })
        .await;
    until("the growth is measured", || {
        let state = world.state.dump();
        state.pointer("/pods/0/runner/executorState/NeonVM/CurrentRevision/value")
            == Some(&json!(1))
    })
    .await;
    for line in [
        "autoscaling_agent_scheduler_plugin_requests_total{code=\"200\"} ",
        "autoscaling_agent_scheduler_plugin_requested_cpu_change_total{direction=\"inc\"} 0.25",
        "autoscaling_agent_scheduler_plugin_accepted_mem_change_total{direction=\"inc\"} 1024",
        "autoscaling_agent_monitor_outbound_requests_total{endpoint=\"UpscaleNotification\",code=\"ok\"} 1",
        "autoscaling_agent_monitor_approved_cpu_change_total{direction=\"inc\"} 0.25",
        "autoscaling_agent_monitor_requested_mem_change_total{direction=\"dec\"} 0",
        "autoscaling_agent_neonvm_outbound_requests_total{result=\"ok\"} 1",
        "autoscaling_agent_neonvm_requested_cpu_change_total{direction=\"inc\"} 0.25",
        "autoscaling_agent_neonvm_requested_mem_changed_total{direction=\"inc\"} 1024",
        "autoscaling_agent_scaling_full_denials_total{direction=\"dec\"} 0",
        "autoscaling_agent_scaling_partial_approvals_total{direction=\"inc\"} 0",
        "autoscaling_agent_runners_current{is_endpoint=\"false\",state=\"ok\"} 1",
        "autoscaling_agent_runners_current{is_endpoint=\"true\",state=\"panicked\"} 0",
        "autoscaling_agent_runner_thread_panics_total 0",
        "autoscaling_agent_runner_starts 1",
        "autoscaling_agent_runner_restarts 0",
        "autoscaling_agent_runner_next_actions_total ",
        "autoscaling_agent_scaling_latency_seconds_count{direction=\"inc\"} 1",
        "autoscaling_agent_plugin_latency_seconds_count{direction=\"inc\"} 1",
        "autoscaling_agent_neonvm_latency_seconds_bucket{le=\"60.0\",direction=\"inc\"} 1",
        "autoscaling_agent_watchers_client_calls_total{watcher_instance=\"VirtualMachines\",method=\"List\"} 1",
        "autoscaling_agent_watchers_alive_current{watcher_instance=\"Scheduler Pod\"} 1",
        "autoscaling_agent_core_faults_total 0",
    ] {
        world.until_metric(line).await;
    }
    let vm = "vm_namespace=\"default\",vm_name=\"vm\",endpoint_id=\"\",project_id=\"\"";
    for line in [
        format!("autoscaling_vm_cpu_cores{{{vm},value=\"spec_use\"}} 0.5"),
        format!("autoscaling_vm_memory_bytes{{{vm},value=\"spec_max\"}} 4294967296"),
        format!("autoscaling_vm_restart_count{{{vm}}} 0"),
        format!("autoscaling_vm_extra_ip{{{vm}}} 0"),
        format!("autoscaling_vm_desired_cu{{{vm},component=\"total\"}} 0.5"),
    ] {
        world.until_line(|a| a.vm_metrics, &line).await;
    }
    let text = world.get(|a| a.vm_metrics, "/metrics").await;
    assert!(
        !text.contains("status_use"),
        "the object has no status sizes:\n{text}"
    );
    world.api.delete_vm("vm");
    until("it is not managed", || world.state.managed() == 0).await;
    world.until_gone(|a| a.vm_metrics, "vm_name=").await;
    world.stop().await;
}

/// Requirement: N01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_starts_alone_and_reports_when_it_is_ready() {
    let mut world = World::new().await;
    let good = std::mem::replace(&mut world.api.url, "http://127.0.0.1:1".into());
    world.start().await;
    let answer = world.get(|a| a.metrics, "/readyz").await;
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.contains("VirtualMachines"),
        "{answer}"
    );
    assert!(
        world
            .get(|a| a.metrics, "/healthz")
            .await
            .starts_with("HTTP/1.1 200")
    );
    world.stop().await;
    let mut world = World::new().await;
    assert_ne!(world.api.url, good);
    world.start().await;
    until("it is ready", || world.state.ready().is_ok()).await;
    assert!(
        world
            .get(|a| a.metrics, "/readyz")
            .await
            .starts_with("HTTP/1.1 200")
    );
    world.stop().await;
    // Whether there are VMs or a scheduler, no probe asks.
    let mut world = World::new().await;
    world.api = peers::api::Api::start(world.trace.clone()).await;
    world.start().await;
    until("it is ready without any", || world.state.ready().is_ok()).await;
    world.stop().await;
}

#[tokio::test]
async fn agent_refuses_to_start_rather_than_lose_events() {
    let mut world = World::new().await;
    world.config["billing"]["clients"]["http"] = json!({
        "url": "http://x", "pushEverySeconds": 1, "pushRequestTimeoutSeconds": 1, "maxBatchSize": 1,
    });
    let config = Config::from_json(&world.config.to_string()).expect("valid");
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = world.api.url.parse().expect("is a URL");
    let client = kube::Client::try_from(kube::Config::new(url)).expect("makes a client");
    let mut params = Params::new(config, "node-1".into(), client, address());
    params.ports = Ports {
        metrics: 0,
        vm_metrics: 0,
    };
    let bound = agent::bind(params.clone()).await.expect("binds");
    let without_folder = bound.run(CancellationToken::new()).await;
    assert!(
        matches!(without_folder, Err(RunError::Events(EventsError::NoFolder))),
        "{without_folder:?}"
    );
    // A folder that cannot be one.
    params.events_folder = Some("/dev/null/events".into());
    let bound = agent::bind(params).await.expect("binds");
    let bad_folder = bound.run(CancellationToken::new()).await;
    assert!(
        matches!(bad_folder, Err(RunError::Events(EventsError::Locked(_)))),
        "{bad_folder:?}"
    );
}

#[tokio::test]
async fn error_names_a_taken_port() {
    let mut world = World::new().await;
    let taken = tokio::net::TcpListener::bind((address(), 0))
        .await
        .expect("binds");
    let address = taken.local_addr().expect("has an address");
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client =
        kube::Client::try_from(kube::Config::new(world.api.url.parse().expect("is a URL")));
    let config = Config::from_json(&world.config.take().to_string()).expect("valid");
    let mut params = Params::new(
        config,
        "n".into(),
        client.expect("makes a client"),
        address.ip(),
    );
    params.ports = Ports {
        metrics: address.port(),
        vm_metrics: 0,
    };
    match agent::bind(params).await.err() {
        Some(RunError::Bind { address: named, .. }) => assert_eq!(named, address.to_string()),
        other => panic!("not a bind error: {other:?}"),
    }
}
