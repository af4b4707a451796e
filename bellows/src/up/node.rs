//! The node driver: starts a runner for each pod, and each runner a QEMU. Runners are this same
//! program.

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::http::Request;
use kube::Client;
use neonvm_runner::config::AccelChoice;
use neonvm_runner::node::{Allocatable, GuestWalls, NodeParams, UserRange};
use serde_json::Value;

use super::apiserver::Started;
use super::args::GuestNetworkArg;
use super::base::Base;
use super::supervisor::{Stage, Supervisor};
use crate::fail::{Fail, Outcome};
use crate::instance::users;
use crate::places::store_dir;

/// Name in the status.
const NAME: &str = "node";
/// Interval at which the Node object is read until it exists.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Cgroup under which each QEMU gets its own.
const CGROUP_PARENT: &str = "bellows";

/// Settings of the node driver, from the command line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeSettings {
    /// Resources that VMs may use together.
    pub(crate) allocatable: Allocatable,
    /// Accelerator of VMs that allow one.
    pub(crate) accel: AccelChoice,
    /// CPU quota in per cent of a VM's milli-CPU.
    pub(crate) cpu_quota_percent: u32,
    pub(crate) guest_network: GuestNetworkArg,
    /// First user of VMs' processes. `None` derives it from the block.
    pub(crate) vm_users: Option<UserRange>,
}

pub(crate) fn start(
    base: &Base,
    supervisor: &mut Supervisor,
    api: &Started,
    settings: NodeSettings,
) -> Outcome {
    let client = &api.client;
    let registered = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&registered);
    let ready = move || {
        if seen.load(Ordering::Acquire) {
            Ok(())
        } else {
            Err("the Node object is not registered yet".to_owned())
        }
    };
    base.parts.register(NAME, None, Box::new(ready), None);
    let params = NodeParams {
        store_id: api.store_id.clone(),
        orphans: base.orphans.clone(),
        client: client.clone(),
        node_name: base.instance.node().to_owned(),
        state_dir: base.state.path().to_owned(),
        store_dir: store_dir()?,
        loopback: [127, base.instance.block()],
        runner_command: runner_command()?,
        programs: None,
        accel: settings.accel,
        cpu_quota_percent: settings.cpu_quota_percent,
        cgroup_parent: Some(CGROUP_PARENT.to_owned()),
        walls: walls(base, settings)?,
        ssh_public_key: None,
        monitor_key: Some(base.secrets.agent_key.clone()),
        allocatable: settings.allocatable,
        clock: base.clock,
    };
    let (token, client) = (supervisor.token(Stage::Node), client.clone());
    let path = format!("/api/v1/nodes/{}", base.instance.node());
    supervisor.run(NAME, Stage::Node, async move {
        let driver = neonvm_runner::node::run(params, token);
        tokio::pin!(driver);
        tokio::select! {
            ended = &mut driver => return ended.map_err(|error| daemon_kit::chain(&error)),
            () = until_registered(&client, &path) => registered.store(true, Ordering::Release),
        }
        driver.await.map_err(|error| daemon_kit::chain(&error))
    });
    Ok(())
}

/// Walls between guests and this machine. As root each VM gets its own user, from a range that
/// nothing else uses.
fn walls(base: &Base, settings: NodeSettings) -> Outcome<GuestWalls> {
    if settings.guest_network == GuestNetworkArg::User {
        return Ok(GuestWalls::Open);
    }
    if !nix::unistd::geteuid().is_root() {
        return match settings.vm_users {
            None => Ok(GuestWalls::Walled(None)),
            Some(_) => Err(Fail::usage("--vm-users is for root alone")
                .rule("only root starts processes as other users")
                .fix("leave it out, or run as root")),
        };
    }
    let range = settings
        .vm_users
        .unwrap_or_else(|| UserRange::of_block(base.instance.block()));
    users::claim(&base.state, range)?;
    Ok(GuestWalls::Walled(Some(range)))
}

/// Waits until the Node object has its allocatable resources.
async fn until_registered(client: &Client, path: &str) {
    loop {
        if let Ok(request) = Request::get(path).body(Vec::new())
            && let Ok(node) = client.request::<Value>(request).await
            && node["status"]["allocatable"]["cpu"].is_string()
        {
            return;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The command `bellows runner run` of this program.
fn runner_command() -> Outcome<Vec<OsString>> {
    let exe = std::env::current_exe()
        .map_err(|error| Fail::bug(format!("the path of this program is unknown: {error}")))?;
    Ok(vec![exe.into(), "runner".into(), "run".into()])
}
