//! A network beside the host with services in it. Guests reach it as the outside.
//!
//! Needs root.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use test_network::Network;

/// The host's address on the link to it.
pub const HOST: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// The address of the other end, where the services are.
pub const OTHER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// Port of a web server, which answers with the files of a directory.
pub const HTTP_PORT: u16 = 7000;
/// Port that discards all received bytes.
pub const SINK_PORT: u16 = 7001;
/// Port that answers with a line after a number of bytes.
pub const COUNTING_PORT: u16 = 7002;

/// The network, as long as this lives.
pub struct Outside {
    network: Network,
    services: Vec<Child>,
    files: tempfile::TempDir,
}

impl Outside {
    /// Creates the network and a web server in it. The content of its file is `said`.
    ///
    /// # Errors
    ///
    /// If the caller is not root, or a program fails.
    pub fn new(said: &str) -> Result<Self> {
        let network = Network::new()?.context("a network of its own needs root")?;
        let path = network.path();
        ip(&format!(
            "link add bellows-out type veth peer name eth0 netns {path}"
        ))?;
        ip(&format!("addr add {HOST}/30 dev bellows-out"))?;
        ip("link set bellows-out up")?;
        network.ip(&format!("addr add {OTHER}/30 dev eth0"));
        network.ip("link set eth0 up");
        let mut outside = Self {
            network,
            services: Vec::new(),
            files: tempfile::tempdir()?,
        };
        std::fs::write(outside.files().join("said"), said)?;
        let at = format!("{OTHER}:{HTTP_PORT}");
        let files = outside.files().display().to_string();
        outside.serve(&["httpd", "-f", "-p", &at, "-h", &files])?;
        Ok(outside)
    }

    /// The directory of the web server.
    #[must_use]
    pub fn files(&self) -> &Path {
        self.files.path()
    }

    /// Takes one connection at [`SINK_PORT`] and all that comes by it.
    ///
    /// # Errors
    /// When the program fails.
    pub fn take_one(&mut self) -> Result<()> {
        self.serve(&["nc", "-l", "-p", &SINK_PORT.to_string()])
    }

    /// Accepts one connection at [`COUNTING_PORT`], and answers `done` after `bytes` bytes.
    ///
    /// # Errors
    ///
    /// If the program fails.
    pub fn take_bytes(&mut self, bytes: u64) -> Result<()> {
        let answer = format!("head -c {bytes} > /dev/null; echo done");
        let port = COUNTING_PORT.to_string();
        self.serve(&["nc", "-l", "-p", &port, "-e", "sh", "-c", &answer])
    }

    fn serve(&mut self, words: &[&str]) -> Result<()> {
        let mut command = self.network.command("busybox");
        // One that reads the end of its input would end its connection.
        command.args(words).stdin(Stdio::piped());
        let service = command.stdout(Stdio::null()).spawn();
        self.services.push(service.context("busybox")?);
        Ok(())
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        for service in &mut self.services {
            let _ = service.kill();
            let _ = service.wait();
        }
        self.network.ip("link del eth0");
    }
}

fn ip(words: &str) -> Result<()> {
    let output = Command::new("ip")
        .args(words.split_whitespace())
        .stdin(Stdio::null())
        .output()
        .context("ip")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {words}: {said}");
    Ok(())
}
