//! Root file systems made of Debian's packages: that of a cluster's nodes, with a container
//! runtime, network plugins and what they call, and nothing that a machine of flesh would need to
//! boot; one that boots with systemd, to install packages in; and, for kind where there is no
//! Docker, that of its nodes and one with Docker.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::store;
use crate::progress::{self, Work};
use crate::shell;

/// The nodes'. The store knows it under this name; read by the black-box kit.
const NODE: &str = "bellows/node:bookworm";
/// What guests of another make than ours run.
pub(crate) const SYSTEMD: &str = "bellows/systemd:bookworm";
/// What the nodes of kind's run: a machine that boots, with a container runtime, and what kubeadm
/// looks for.
const KIND_NODE: &str = "bellows/kind-node:bookworm";
/// A machine for Docker where none is installed.
const DOCKER: &str = "bellows/docker:bookworm";
const SUITE: &str = "bookworm";
/// Raised when what follows makes something else of the same packages.
const RECIPE: &str = "1";
/// containerd and what it runs pods with; the first process of a node, which reaps orphans; what
/// pods without an image of their own are made of.
const PACKAGES: [&str; 10] = [
    "busybox-static",
    "containerd",
    "containernetworking-plugins",
    "iproute2",
    "iptables",
    "mount",
    "procps",
    "runc",
    "tini",
    "util-linux",
];
const KIND_PACKAGES: [&str; 18] = [
    "busybox-static",
    "ca-certificates",
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "curl",
    "dbus",
    "ebtables",
    "ethtool",
    "iproute2",
    "iptables",
    "kmod",
    "mount",
    "procps",
    "runc",
    "socat",
    "systemd-sysv",
    "util-linux",
];
const DOCKER_PACKAGES: [&str; 8] = [
    "ca-certificates",
    "docker.io",
    "iproute2",
    "iptables",
    "mount",
    "procps",
    "tini",
    "util-linux",
];
/// What is written down of each package.
const LIST: &str = "packages.txt";

/// The folder with the nodes' `rootfs`, made if it is not there.
pub(super) fn ensure() -> Result<PathBuf> {
    ensure_of(NODE, &PACKAGES)
}

/// The same with systemd.
pub(crate) fn ensure_systemd() -> Result<PathBuf> {
    ensure_of(SYSTEMD, &["systemd-sysv"])
}

/// The same for the nodes of kind's.
pub(super) fn ensure_kind_node() -> Result<PathBuf> {
    ensure_of(KIND_NODE, &KIND_PACKAGES)
}

/// The same with Docker, its server and its client.
pub(super) fn ensure_docker() -> Result<PathBuf> {
    ensure_of(DOCKER, &DOCKER_PACKAGES)
}

fn ensure_of(reference: &str, packages: &[&str]) -> Result<PathBuf> {
    let inputs = format!("{RECIPE} {SUITE} {}", packages.join(" "));
    let inputs = store::digest_of(inputs.as_bytes())?;
    let work = ("rootfs-build", "a root file system");
    store::ensure((reference, &inputs), work, &[LIST], |_, out| {
        let root = out.join("rootfs");
        let what = format!("make {reference}");
        progress::run(&what, &mut bootstrap(&root, packages), Work::Unknown)?;
        let mut list = Command::new("dpkg-query");
        list.arg(format!(
            "--admindir={}",
            root.join("var/lib/dpkg").display()
        ))
        .args(["--show", "--showformat=${Package} ${Version}\n"]);
        Ok(fs::write(out.join(LIST), shell::output(&mut list)?)?)
    })
}

fn bootstrap(root: &Path, packages: &[&str]) -> Command {
    let mut command = Command::new("mmdebstrap");
    command
        .args(["--mode=root", "--variant=essential", "--quiet"])
        .arg("--aptopt=APT::Install-Recommends \"false\"")
        .args(
            ["doc", "info", "locale", "man"]
                .map(|what| format!("--dpkgopt=path-exclude=/usr/share/{what}/*")),
        )
        .arg("--dpkgopt=path-include=/usr/share/doc/*/copyright")
        .arg(format!("--include={}", packages.join(",")))
        .arg(SUITE)
        .arg(root);
    if let Some(mirror) = mirror() {
        command.arg(mirror);
    }
    command
}

/// The archive this machine's own apt uses; mmdebstrap knows Debian's where there is none.
fn mirror() -> Option<String> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    let more = fs::read_dir("/etc/apt/sources.list.d").ok();
    files.extend(
        more.into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path())),
    );
    files.sort();
    let texts = files
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok());
    texts
        .into_iter()
        .find_map(|text| text.lines().find_map(archive_of))
}

/// The address in a line of either format, if it is that of a Debian archive and not of its
/// security updates.
fn archive_of(line: &str) -> Option<String> {
    let words = line
        .strip_prefix("URIs:")
        .or_else(|| line.strip_prefix("deb "))?;
    let address = words.split_whitespace().find(|word| word.contains("://"))?;
    let plain = address.trim_end_matches('/');
    plain.ends_with("/debian").then(|| plain.to_owned())
}

#[cfg(test)]
mod tests {
    use super::archive_of;

    #[test]
    fn the_archive_of_either_format_is_read() {
        let read = |line| archive_of(line).unwrap_or_default();
        assert_eq!(
            read("URIs: http://m.example/debian/"),
            "http://m.example/debian"
        );
        assert_eq!(
            read("deb [signed-by=/k.gpg] https://m.example/debian bookworm main"),
            "https://m.example/debian"
        );
        assert_eq!(read("URIs: http://m.example/debian-security"), "");
        assert_eq!(read("# deb http://m.example/debian bookworm main"), "");
    }
}
