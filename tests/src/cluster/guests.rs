//! Commands in guests of a cluster, by ssh with the key that the controller made.

use std::io::Write as _;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use test_records::retry::known_tcg_bug;

use super::nodes::Cluster;

impl Cluster {
    /// Output of a command in the guest of a VM, without the white space around it.
    ///
    /// # Errors
    ///
    /// If the guest does not answer, or the command fails.
    pub fn guest(&self, vm: &Value, command: &str) -> Result<String> {
        let (mut ssh, root, _key) = self.reach("ssh", vm)?;
        let output = ssh.arg(root).arg(command).output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "ssh: {text}");
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    /// The panic on the console of a VM's guest without KVM. The log of each pod holds the messages
    /// of its runner, including the accelerator, and the guest's console.
    #[must_use]
    pub fn known_panic(&self, vm: &str) -> Option<String> {
        let plane = self.plane();
        let label = format!("vm.neon.tech/name={vm}");
        let pods = plane
            .ask(&["get", "pods", "-l", &label, "-o", "name"])
            .ok()?;
        pods.lines().find_map(|pod| {
            let log = plane.ask(&["logs", pod, "--all-containers"]).ok()?;
            let runs_by = |accel: &str| log.contains(&format!("\"accel\":\"{accel}\""));
            let accel = ["kvm", "tcg"].into_iter().find(|accel| runs_by(accel))?;
            known_tcg_bug(accel, &log)
        })
    }

    /// A program of ssh's for the guest at the pod's address, the user and host, and the file with
    /// the key.
    ///
    /// # Errors
    ///
    /// If the VM has no address or no key.
    pub fn reach(
        &self,
        program: &str,
        vm: &Value,
    ) -> Result<(Command, String, tempfile::NamedTempFile)> {
        let status = &vm["status"];
        let address = status["podIP"].as_str().context("it has an address")?;
        let name = status["sshSecretName"].as_str().context("it has a key")?;
        let namespace = vm["metadata"]["namespace"].as_str().unwrap_or("default");
        let get = ["get", "secret", name, "-n", namespace, "-o", "json"];
        let secret: Value = serde_json::from_str(&self.plane().ask(&get)?)?;
        let key = secret["data"]["ssh-privatekey"]
            .as_str()
            .context("it has no key")?;
        let mut file = tempfile::NamedTempFile::new_in(self.plane().dir())?;
        file.write_all(&STANDARD.decode(key)?)?;
        let mut command = self.on_network(program);
        command.arg("-i").arg(file.path());
        for option in [
            "BatchMode=yes",
            // A busy guest with a quarter of a CPU answers slowly.
            "ConnectTimeout=60",
            // A guest that stands still in the middle ends the session, two minutes later.
            "ServerAliveInterval=30",
            "LogLevel=ERROR",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
        ] {
            command.args(["-o", option]);
        }
        Ok((command, format!("root@{address}"), file))
    }
}
