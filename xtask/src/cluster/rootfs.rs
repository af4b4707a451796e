//! Root file systems of Debian packages. The nodes' has a container runtime and network plugins,
//! but nothing to boot a machine. Another boots with systemd, to install packages in. Two more are
//! for kind without Docker: its nodes', and one with Docker.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::store;
use crate::progress::{self, Work};
use crate::shell;

/// Name of the nodes' root file system in the store. The test kit uses it.
const NODE: &str = "bellows/node:bookworm";
/// Root file system of foreign guests.
pub(crate) const SYSTEMD: &str = "bellows/systemd:bookworm";
/// Root file system of foreign guests with dnf.
pub(crate) const RPM: &str = "bellows/rpm:bookworm";
/// Root file system of kind's nodes: it boots, with a container runtime and kubeadm's requirements.
const KIND_NODE: &str = "bellows/kind-node:bookworm";
/// A machine for Docker where none is installed.
const DOCKER: &str = "bellows/docker:bookworm";
const SUITE: &str = "bookworm";
/// Raised when later code makes something else of the same packages.
const RECIPE: &str = "1";
/// containerd and its programs, a first process that reaps orphans, and busybox.
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
const RPM_PACKAGES: [&str; 8] = [
    "ca-certificates",
    "createrepo-c",
    "curl",
    "dnf",
    "dnf-plugins-core",
    "gnupg",
    "rpm",
    "systemd-sysv",
];
/// List of the packages.
const LIST: &str = "packages.txt";

/// The folder with the nodes' `rootfs`. It is built if it is missing.
pub(super) fn ensure() -> Result<PathBuf> {
    ensure_of(NODE, &PACKAGES)
}

/// The root file systems with systemd and apt, and with systemd and dnf.
pub(crate) fn ensure_systemd() -> Result<()> {
    ensure_of(SYSTEMD, &["apt", "systemd-sysv"])?;
    ensure_of(RPM, &RPM_PACKAGES)?;
    Ok(())
}

/// The root file system of kind's nodes.
pub(super) fn ensure_kind_node() -> Result<PathBuf> {
    ensure_of(KIND_NODE, &KIND_PACKAGES)
}

/// The root file system with Docker's server and client.
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

/// The mirror of this machine's apt. Without one mmdebstrap uses Debian's.
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

/// The address in a line of either format, if it is a Debian archive without security updates.
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
