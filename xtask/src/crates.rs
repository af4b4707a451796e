//! The crates that the project is built from, as `cargo metadata` and Cargo.lock have them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::Value;

use crate::shell;

/// What the binaries are built for; crates of other systems are not downloaded.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// A crate of one version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// SPDX expression, as the crate states it.
    pub(crate) license: Option<String>,
    /// Absent for the workspace's own.
    pub(crate) source: Option<String>,
    id: String,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    /// `None` for what is linked, `build` and `dev` for the rest.
    kind: Option<String>,
}

/// An entry of Cargo.lock, which has the crates of all systems.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Locked {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) source: Option<String>,
    /// SHA-256 of the crate's archive.
    pub(crate) checksum: Option<String>,
    /// Crates that it uses, as `NAME` or `NAME VERSION`.
    #[serde(default)]
    pub(crate) dependencies: Vec<String>,
}

#[derive(Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

/// Crates and what each links.
pub(crate) struct Crates {
    packages: BTreeMap<String, Package>,
    links: BTreeMap<String, BTreeSet<String>>,
}

/// The packages and targets of the workspace, as `cargo metadata` tells them, without their
/// dependencies.
///
/// # Errors
/// Cargo fails, or its answer is no JSON.
pub(crate) fn workspace() -> Result<Value> {
    let mut command = shell::cargo()?;
    command.args(["metadata", "--no-deps", "--format-version", "1"]);
    serde_json::from_str(&shell::output(&mut command)?).context("cargo metadata")
}

impl Crates {
    /// Reads the crates of the workspace and all that they are linked with.
    pub(crate) fn read() -> Result<Self> {
        let mut command = shell::cargo()?;
        command.args(["metadata", "--format-version", "1", "--locked", "--quiet"]);
        command.args(["--filter-platform", PLATFORM]);
        Self::parse(&shell::output(&mut command)?)
    }

    fn parse(text: &str) -> Result<Self> {
        let metadata: Metadata = serde_json::from_str(text).context("cargo metadata")?;
        let linked = |node: Node| {
            let is_linked = |it: &Dependency| it.dep_kinds.iter().any(|kind| kind.kind.is_none());
            let deps = node.deps.into_iter().filter(is_linked);
            (node.id, deps.map(|it| it.pkg).collect())
        };
        let packages = metadata.packages.into_iter();
        Ok(Self {
            packages: packages.map(|it| (it.id.clone(), it)).collect(),
            links: metadata.resolve.nodes.into_iter().map(linked).collect(),
        })
    }

    /// All of them, by name.
    pub(crate) fn all(&self) -> BTreeSet<&Package> {
        self.packages.values().collect()
    }

    /// What is linked into a program of the workspace, itself included, each with what it links.
    pub(crate) fn linked_into(
        &self,
        program: &str,
    ) -> Result<BTreeMap<&Package, BTreeSet<&Package>>> {
        let is_root = |it: &&Package| it.name == program && it.source.is_none();
        let root = self.packages.values().find(is_root);
        let root = root.with_context(|| format!("no crate of the workspace is {program}"))?;
        let (mut found, mut open) = (BTreeMap::new(), vec![root]);
        while let Some(package) = open.pop() {
            if found.contains_key(package) {
                continue;
            }
            let ids = self.links.get(&package.id).into_iter().flatten();
            let linked: BTreeSet<&Package> = ids.filter_map(|id| self.packages.get(id)).collect();
            open.extend(&linked);
            found.insert(package, linked);
        }
        Ok(found)
    }
}

/// The entries of Cargo.lock.
pub(crate) fn locked() -> Result<Vec<Locked>> {
    let path = shell::root().join("Cargo.lock");
    let text = std::fs::read_to_string(&path).context("cannot read Cargo.lock")?;
    let lock: Lock = toml::from_str(&text).context("Cargo.lock is not understood")?;
    Ok(lock.package)
}
