//! The agent's own program, against the peers of a test.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Stdio;

use serde_json::json;
use tokio::process::{Child, Command};

use super::{World, address};

/// The program and where its servers listen.
pub struct Program {
    pub child: Child,
    pub ip: IpAddr,
}

/// The program with its files in `folder`, not started yet, on an address of its own.
pub fn command(folder: &Path, world: &World, ip: IpAddr) -> Command {
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "t",
        "clusters": [{"name": "t", "cluster": {"server": world.api.url}}],
        "users": [{"name": "t", "user": {}}],
        "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
    });
    for (name, value) in [("kubeconfig", &kubeconfig), ("config.json", &world.config)] {
        std::fs::write(folder.join(name), value.to_string()).expect("writes");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_autoscaler-agent"));
    command
        .env("CONFIG_PATH", folder.join("config.json"))
        .env("KUBECONFIG", folder.join("kubeconfig"))
        .env("K8S_NODE_NAME", "node-1")
        .env("K8S_POD_IP", ip.to_string())
        .env("EVENTS_DIR", folder.join("events"))
        .env_remove("RUST_LOG")
        .env_remove("BELLOWS_LOG")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    command
}

impl Program {
    /// Starts it; what it writes goes into `folder/log`.
    pub fn start(folder: &Path, world: &World) -> Self {
        let ip = address();
        let log = std::fs::File::create(folder.join("log")).expect("makes a file");
        let child = command(folder, world, ip)
            .stderr(log)
            .spawn()
            .expect("starts");
        Self { child, ip }
    }

    /// One of its servers.
    pub fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, port)
    }

    /// Asks it to end, and returns its exit code.
    pub async fn terminate(mut self) -> Option<i32> {
        let pid = self.child.id().expect("runs").to_string();
        let asked = Command::new("kill").args(["-TERM", &pid]).status().await;
        assert!(asked.expect("runs").success());
        let ended = tokio::time::timeout(super::LIMIT, self.child.wait()).await;
        ended.expect("in time").expect("ends").code()
    }
}
