//! Modes over real sockets: the label of the namespace, the annotation of the VM, the setting of
//! the node; changed while it runs.

mod peers;

use peers::guest::Page;
use peers::{
    Seen, World, is_patch, patched_to, permits, position, units, until, until_asked_again,
};
use serde_json::{Value, json};

const MODE: &str = "autoscaling.neon.tech/mode";

/// The bounds of the VM's newest decision.
fn bounds(world: &World) -> Vec<String> {
    let dump = world.state.dump();
    let bounds = dump.pointer("/pods/0/lastDecision/boundedBy");
    let words = bounds.and_then(Value::as_array).into_iter().flatten();
    words.filter_map(Value::as_str).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespace_mode_changes_from_observe_to_grow_to_full() {
    let mut world = World::new().await;
    world.config["scheduler"]["requestAtLeastEverySeconds"] = json!(1);
    world.api.label_namespace("default", "observe");
    world.start_connected().await;
    world.guest.set(Page::Good(0.9, 0.0));
    until("it is held back by its mode", || {
        bounds(&world) == ["observe_mode"]
    })
    .await;
    until_asked_again(&world).await;
    let all = world.trace.all();
    assert_eq!(position(&all, is_patch), None, "{all:?}");
    assert!(permits(&all).iter().all(|(asked, _)| *asked == units(1)));
    world
        .until_metric("autoscaling_agent_decisions_bounded_total{bound=\"observe_mode\"} ")
        .await;

    world.api.label_namespace("default", "grow");
    world
        .trace
        .until("it grows", |all| position(all, patched_to(4)))
        .await;
    world
        .trace
        .until("the monitor is told", |all| {
            position(all, |seen| matches!(seen, Seen::Granted(_)))
        })
        .await;
    world.guest.set(Page::Good(0.0, 0.0));
    until("it is held back by its mode", || {
        bounds(&world) == ["grow_mode"]
    })
    .await;
    until_asked_again(&world).await;
    let asked = |seen: &Seen| matches!(seen, Seen::AskedToShrink(_));
    assert_eq!(position(&world.trace.all(), asked), None);

    world.api.label_namespace("default", "full");
    world
        .trace
        .until("it shrinks", |all| position(all, patched_to(1)))
        .await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vm_mode_wins_over_namespace_and_node() {
    let mut world = World::new().await;
    world.config["scaling"]["defaultConfig"]["mode"] = json!("observe");
    world.start_connected().await;
    world.guest.set(Page::Good(0.5, 0.0));
    until("it is held back by its mode", || {
        bounds(&world) == ["observe_mode"]
    })
    .await;
    world.api.change_vm("vm", |vm| {
        vm["metadata"]["annotations"] = json!({ MODE: "full" });
    });
    world
        .trace
        .until("it grows", |all| position(all, patched_to(2)))
        .await;
    // What it says for itself holds, whatever its namespace says.
    world.api.label_namespace("default", "observe");
    world.guest.set(Page::Good(0.9, 0.0));
    world
        .trace
        .until("it grows on", |all| position(all, patched_to(4)))
        .await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_runs_without_access_to_namespaces() {
    let mut world = World::new().await;
    world.api.hide_namespaces();
    world.start_connected().await;
    world.guest.set(Page::Good(0.5, 0.0));
    world
        .trace
        .until("it grows", |all| position(all, patched_to(2)))
        .await;
    world.stop().await;
}
