//! What a cluster of kind's is made of where there is no Docker, and the image of its nodes, which
//! is made of it.
//!
//! ```text
//! cache/kind-build/              while the image is made; gone when it is done
//! store/blobs/<sha256>/node.tar  the image, 1 GB, for `docker import`
//! store/refs/bellows/kind-image:1.34
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::super::{programs, rootfs, store};
use crate::{setup, shell};

/// Name of the image in the store.
const REFERENCE: &str = "bellows/kind-image:1.34";
/// File in the artefact.
const ARCHIVE: &str = "node.tar";
const SCRIPT: &str = include_str!("image.sh");
/// Parts of the image.
const CONTENT: [&str; 5] = ["plane", "kubelet", "kubeadm", "coredns", "node"];
/// Runtime of a node, of the Docker that runs nodes, and of our own cluster's nodes.
pub(super) const RUNC: (&str, &str) = (
    "runc.sh",
    include_str!("../../../../tests/src/cluster/runc.sh"),
);
/// Our files on a node.
const FILES: [(&str, &str); 12] = [
    RUNC,
    (
        "containerd.service",
        include_str!("node/containerd.service"),
    ),
    ("containerd.toml", include_str!("node/containerd.toml")),
    ("entrypoint.sh", include_str!("node/entrypoint.sh")),
    ("import-images.sh", include_str!("node/import-images.sh")),
    ("kubelet.service", include_str!("node/kubelet.service")),
    ("kubelet.slice", include_str!("node/kubelet.slice")),
    ("network.sh", include_str!("node/network.sh")),
    ("network.yaml", include_str!("node/network.yaml")),
    (
        "node-images.service",
        include_str!("node/node-images.service"),
    ),
    ("node.target", include_str!("node/node.target")),
    ("storage.yaml", include_str!("node/storage.yaml")),
];

/// Folders of the store, with their names in our scripts.
pub(super) struct Parts(Vec<(&'static str, PathBuf)>);

impl Parts {
    /// Builds missing sets of programs and their build tools. The sets come in their listed order.
    pub(super) fn ensure() -> Result<Self> {
        setup::ensure(setup::Need::Everything)?;
        let plane = ["plane", "kubelet", "helm"];
        let mut all: Vec<_> = plane.into_iter().zip(programs::ensure()?).collect();
        all.extend(
            ["kind", "kubeadm", "coredns"]
                .into_iter()
                .zip(programs::ensure_kind()?),
        );
        all.push(("docker", rootfs::ensure_docker()?.join("rootfs")));
        all.push(("node", rootfs::ensure_kind_node()?.join("rootfs")));
        Ok(Self(all))
    }

    /// Assignments for a shell, of these.
    pub(super) fn as_script(&self, names: &[&str]) -> String {
        let parts = self.0.iter().filter(|(name, _)| names.contains(name));
        let lines = parts.map(|(name, folder)| assignment(name, folder));
        lines.collect()
    }
}

pub(super) fn assignment(name: &str, value: &Path) -> String {
    let value = value.display().to_string().replace('\'', r"'\''");
    format!("{name}='{value}'\n")
}

/// The archive. It is built if it is missing.
pub(super) fn ensure(parts: &Parts) -> Result<PathBuf> {
    // The folders' names are digests of their content.
    let parts = parts.as_script(&CONTENT);
    let mut inputs = format!("{SCRIPT}{parts}");
    inputs.extend(FILES.map(|(_, text)| text));
    let inputs = store::digest_of(inputs.as_bytes())?;
    let work = ("kind-build", "the image of kind's nodes");
    let folder = store::ensure((REFERENCE, &inputs), work, &[ARCHIVE], |work, _| {
        fs::create_dir_all(work.join("files"))?;
        for (name, text) in FILES {
            fs::write(work.join("files").join(name), text)?;
        }
        fs::write(work.join("parts"), parts)?;
        let mut make = Command::new("bash");
        make.args(["-c", SCRIPT, "image.sh"]).arg(work);
        shell::run("make the image of kind's nodes", &mut make)
    })?;
    Ok(folder.join(ARCHIVE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_what_is_assigned() {
        let written = assignment("it", Path::new("/a b/it's $x"));
        let mut sh = Command::new("sh");
        sh.args(["-c", &format!("{written}printf %s \"$it\"")]);
        assert_eq!(shell::output(&mut sh).expect("sh"), "/a b/it's $x");
    }
}
