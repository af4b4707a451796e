//! Programs of a cluster in the image store.

use std::path::{Path, PathBuf};

use test_records::Missing;

/// The reference in the store that `cargo xtask cluster build` writes.
const REFERENCE: &str = "bellows/control-plane:1.34";
/// Image with the kubelet and the other programs of nodes.
const KUBELET: &str = "bellows/kubelet:1.34";
/// Image with Helm.
const HELM: &str = "bellows/helm:3.19";
/// Image with cert-manager.
const CERT_MANAGER: &str = "bellows/cert-manager:1.21";
/// Image with multus.
const MULTUS: &str = "bellows/multus:4.2";
const NODE: &str = "bellows/node:bookworm";
/// A folder to use instead of the store's.
const FOLDER: &str = "BELLOWS_CLUSTER_PROGRAMS";

/// A folder with `etcd`, `kube-apiserver`, `kube-controller-manager`, `kube-scheduler` and
/// `kubectl`.
#[derive(Debug, Clone)]
pub struct Programs(PathBuf);

impl Programs {
    /// Programs in the folder of `BELLOWS_CLUSTER_PROGRAMS`, else in the image store. `None` if
    /// there are none.
    #[must_use]
    pub fn find() -> Option<Self> {
        let folder = match std::env::var_os(FOLDER) {
            Some(folder) => PathBuf::from(folder),
            None => in_store(REFERENCE)?,
        };
        let found = Self(folder);
        found.path("kube-apiserver").is_file().then_some(found)
    }

    /// Path of a program.
    #[must_use]
    pub fn path(&self, program: &str) -> PathBuf {
        self.0.join(program)
    }
}

fn in_store(reference: &str) -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = match variable("XDG_CACHE_HOME") {
        Some(dir) => PathBuf::from(dir),
        None => Path::new(&variable("HOME")?).join(".cache"),
    };
    let store = cache.join("bellows/store");
    let digest = std::fs::read_to_string(store.join("refs").join(reference)).ok()?;
    Some(store.join("blobs").join(digest.trim()))
}

/// Programs and root file system of a node.
#[derive(Debug, Clone)]
pub struct NodeKit {
    /// Path of the kubelet's program in the image store.
    pub kubelet: PathBuf,
    /// A root file system with a container runtime.
    pub rootfs: PathBuf,
}

impl NodeKit {
    /// The node kit in the image store. `None` if it is not built.
    #[must_use]
    pub fn find() -> Option<Self> {
        let found = Self {
            kubelet: in_store(KUBELET)?.join("kubelet"),
            rootfs: in_store(NODE)?.join("rootfs"),
        };
        (found.kubelet.is_file() && found.rootfs.is_dir()).then_some(found)
    }
}

/// The programs; where they are missing, the test is [recorded](test_records::skip) as one that
/// does not run.
///
/// # Panics
/// When the test may not be left out.
#[must_use]
pub fn cluster_or_skip(test: &str) -> Option<Programs> {
    let found = Programs::find();
    if found.is_none() {
        skip(test, REFERENCE);
    }
    found
}

/// `kubectl` of the [`Programs`], else the one on the PATH; as [`cluster_or_skip`].
///
/// # Panics
/// When the test may not be left out.
#[must_use]
pub fn kubectl_or_skip(test: &str) -> Option<PathBuf> {
    let built = Programs::find().map(|programs| programs.path("kubectl"));
    let found = built.or_else(|| on_path("kubectl"));
    if found.is_none() {
        let reason = "kubectl is not on the PATH (package kubernetes-client)";
        test_records::skip(test, Missing::Tool, reason);
    }
    found
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut found = std::env::split_paths(&path).map(|folder| folder.join(program));
    found.find(|program| program.is_file())
}

/// As [`cluster_or_skip`], with the node kit. Requires root.
///
/// # Panics
///
/// If the test may not be skipped.
#[must_use]
pub fn nodes_or_skip(test: &str) -> Option<(Programs, NodeKit)> {
    if !nix::unistd::geteuid().is_root() {
        test_records::skip(test, Missing::Root, "nodes are namespaces");
        return None;
    }
    let programs = cluster_or_skip(test)?;
    let kit = NodeKit::find();
    if kit.is_none() {
        skip(test, NODE);
    }
    Some((programs, kit?))
}

/// Helm. Skips as [`cluster_or_skip`] if it is not built.
///
/// # Panics
///
/// If the test may not be skipped.
#[must_use]
pub fn helm_or_skip(test: &str) -> Option<PathBuf> {
    program_or_skip(test, HELM, "helm")
}

/// The network plugin multus. Skips as [`cluster_or_skip`] if it is not built.
///
/// # Panics
///
/// If the test may not be skipped.
#[must_use]
pub fn multus_or_skip(test: &str) -> Option<PathBuf> {
    program_or_skip(test, MULTUS, "multus")
}

fn program_or_skip(test: &str, reference: &str, program: &str) -> Option<PathBuf> {
    let found = in_store(reference).map(|folder| folder.join(program));
    let found = found.filter(|found| found.is_file());
    if found.is_none() {
        skip(test, reference);
    }
    found
}

/// cert-manager, as far as it makes a self-signed authority and signs by it.
#[derive(Debug, Clone)]
pub struct CertManager {
    /// The program that runs its controllers: `--kubeconfig FILE`.
    pub program: PathBuf,
    /// Definitions of its kinds, YAML.
    pub kinds: PathBuf,
}

/// cert-manager. Skips as [`cluster_or_skip`] if it is not built.
///
/// # Panics
///
/// If the test may not be skipped.
#[must_use]
pub fn cert_manager_or_skip(test: &str) -> Option<CertManager> {
    let found = in_store(CERT_MANAGER).map(|folder| CertManager {
        program: folder.join("cert-manager"),
        kinds: folder.join("kinds.yaml"),
    });
    let found = found.filter(|found| found.program.is_file() && found.kinds.is_file());
    if found.is_none() {
        skip(test, CERT_MANAGER);
    }
    found
}

fn skip(test: &str, what: &str) {
    let reason = format!("{what}: run `cargo xtask cluster build`");
    test_records::skip(test, Missing::Cluster, &reason);
}
