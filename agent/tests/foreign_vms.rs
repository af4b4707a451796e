//! VMs of other nodes, of which a cluster has many more than the agent's own.

mod peers;

use serde_json::json;

use peers::{World, api};

/// What the agent asks for in one answer. A list that comes whole takes 15 KiB of memory per VM.
const PAGE: usize = 500;

#[tokio::test]
async fn vms_of_other_nodes_are_listed_in_pages() {
    let mut world = World::new().await;
    for number in 0..2 * PAGE + 10 {
        let mut vm = api::vm(&format!("foreign-{number}"), "127.0.0.1");
        vm["status"]["node"] = json!("node-2");
        world.api.put_vm(vm);
    }
    // The agent's own VM has the last name, so it comes with the third page.
    world.start_connected().await;
    assert_eq!(world.api.longest_page(), PAGE);
    assert_eq!(world.state.managed(), 1);
    world.stop().await;
}
