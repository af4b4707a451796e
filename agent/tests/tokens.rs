//! What the agent shows on one machine: to the scheduler a token of the process, to each monitor
//! the token of its VM.

mod peers;

use daemon_kit::bearer::VmKey;
use peers::{Seen, World, until};

#[tokio::test]
async fn scheduler_gets_the_token_given_at_start() {
    let mut world = World::new().await;
    let wanted = &world.scheduler.authorization;
    *wanted.lock().expect("no panics") = Some("Bearer of-this-start".into());
    world.permit_token = Some("of-this-start".into());
    world.start().await;
    world
        .until_metric(r#"autoscaling_agent_scheduler_plugin_requests_total{code="200"}"#)
        .await;
    world.stop().await;
}

#[tokio::test]
async fn monitor_gets_the_token_of_its_vm() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = VmKey::load_or_create(&folder.path().join("agent.key")).expect("made");
    let mut world = World::new().await;
    let token = key.token("default", "vm", "uid-vm");
    let wanted = &world.guest.manners.authorization;
    *wanted.lock().expect("no panics") = Some(format!("Bearer {token}"));
    // Without the key it is refused.
    world.start().await;
    until("a refusal", || world.trace.all().contains(&Seen::Refused)).await;
    world.stop().await;
    world.monitor_key = Some(key);
    world.start_connected().await;
    world.stop().await;
}
