//! The compute unit is a setting: the program reads it from its file, and its decisions go by it.

mod peers;

use std::path::Path;

use peers::guest::Page;
use peers::program::Program;
use peers::{Seen, World, http_get, patched_to, position, until};
use protocol::units::{Bytes, MilliCpu, Resources};
use serde_json::{Value, json};

/// The targets of a VM, in its annotation.
const ANNOTATION: &str = "autoscaling.neon.tech/config";

fn size(milli: u32, gib: u64) -> Resources {
    Resources {
        cpu: MilliCpu(milli),
        mem: Bytes::gib(gib),
    }
}

/// Waits until the VM's newest decision aims at so many units, and returns its target.
async fn target_of(program: &Program, units: u32) -> Resources {
    let admin = program.at(9100);
    until("the program listens", || {
        std::net::TcpStream::connect(admin).is_ok()
    })
    .await;
    let decided = async {
        loop {
            let answer = http_get(admin, "/debug/state", "").await;
            let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
            let dump: Value = serde_json::from_str(body.expect("a body")).expect("is JSON");
            let last = &dump["pods"][0]["lastDecision"];
            if last["goalUnits"] == units {
                return serde_json::from_value(last["target"].clone()).expect("is a size");
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(std::time::Duration::from_secs(30), decided).await;
    waited.unwrap_or_else(|_| panic!("no decision for {units} units"))
}

/// The units that the scheduler was told in all its requests since the `from`th thing seen.
fn units_told(world: &World, from: usize) -> Vec<Resources> {
    let all = world.trace.all();
    let units = all[from..].iter().filter_map(|seen| match seen {
        Seen::Permit(request) => Some(request.compute_unit),
        _ => None,
    });
    units.collect()
}

/// Starts the program with this unit in its file.
fn start(folder: &Path, world: &mut World, unit: Resources) -> Program {
    world.config["scaling"]["computeUnit"] = json!(unit);
    Program::start(folder, world)
}

/// Requirements: N04, N10. The guest uses 1.6 GiB all the time. What changes is the configuration.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn goal_in_decisions_changes_with_configured_compute_unit() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut world = World::new().await;
    world.guest.set(Page::Good(0.0, 1.6));

    // At three quarters of memory in use, 1.6 GiB take 2.1 GiB: three units of 1 GiB.
    let unit = size(250, 1);
    let program = start(folder.path(), &mut world, unit);
    assert_eq!(target_of(&program, 3).await, size(750, 3));
    let grown = world
        .trace
        .until("it has three slots", |all| position(all, patched_to(3)));
    grown.await;
    assert_eq!(program.terminate().await, Some(0));
    let told = units_told(&world, 0);
    assert!(
        !told.is_empty() && told.iter().all(|it| *it == unit),
        "{told:?}"
    );

    // Two units of 2 GiB.
    let (unit, before) = (size(500, 2), world.trace.all().len());
    let program = start(folder.path(), &mut world, unit);
    assert_eq!(target_of(&program, 2).await, size(1_000, 4));
    let grown = world
        .trace
        .until("it has four slots", |all| position(all, patched_to(4)));
    grown.await;
    let told = units_told(&world, before);
    assert!(
        !told.is_empty() && told.iter().all(|it| *it == unit),
        "{told:?}"
    );

    // The VM's own target, while the program runs: 1.7 GiB, one unit of 2 GiB.
    world.api.change_vm("vm", |vm| {
        vm["metadata"]["annotations"][ANNOTATION] = json!(r#"{"memoryUsageFractionTarget":0.95}"#);
    });
    assert_eq!(target_of(&program, 1).await, size(500, 2));
    assert_eq!(program.terminate().await, Some(0));
}
