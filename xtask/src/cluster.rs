//! `cargo xtask cluster`: a real Kubernetes on this machine or in Docker, for tests and manual use.

mod kind;
pub(crate) mod programs;
pub(crate) mod rootfs;
pub(crate) mod store;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use test_records::MAY_SKIP;

use crate::progress::{Cargo, Depends};
use crate::{build, setup, shell};

/// The test of the page about kind, in `tests/tests/install_kind.rs`.
pub(crate) const KIND_PAGE: &str = "every_command_of_the_page_about_kind_works";

/// The tests that start a cluster of their own.
const TESTS: [&str; 14] = [
    "api_contract",
    "cluster",
    "cluster_agent_state",
    "cluster_policy",
    "cluster_vms",
    "controller_failover",
    "drop_in",
    "fleet_cluster",
    "fleet_quota",
    "install",
    "install_cluster",
    "kube_scheduler",
    "overlay_network",
    "rights",
];

/// Options of `cluster`.
#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
    /// Where the cluster keeps everything [default: a directory of the cache]
    #[arg(long, global = true)]
    dir: Option<PathBuf>,
    /// A cluster of kind's, in Docker, instead of one of this machine's own processes; without
    /// Docker, in one of its own
    #[arg(long, global = true)]
    kind: bool,
}

#[derive(Subcommand)]
enum Action {
    /// Build the programs of a control plane, the kubelet, and the nodes' root file system into the
    /// cache, once
    Build,
    /// Start a control plane and its nodes and print the path of the kubeconfig
    Up {
        /// Nodes with a kubelet, which need root; 0 starts a control plane alone
        #[arg(long, default_value_t = 2, conflicts_with = "api_only")]
        nodes: u8,
        /// etcd and the API server, no more
        #[arg(long)]
        api_only: bool,
        /// Load Bellows' own images onto the nodes: then docs/install-cluster.md can be followed
        #[arg(long)]
        images: bool,
    },
    /// Pack Bellows' own images as OCI archives into a directory, for any cluster: of BELLOWS_BIN
    /// and what lies beside it, or built anew
    Images {
        /// Directory for the archives, made if missing
        to: PathBuf,
    },
    /// Run the tests that start a cluster
    Test {
        /// Run these tests alone
        #[arg(value_parser = clap::builder::PossibleValuesParser::new(TESTS), conflicts_with = "kind")]
        names: Vec<String>,
        /// What is behind `--` is said to each test program
        #[arg(last = true)]
        rest: Vec<String>,
    },
    /// End what `up` started, and nothing else
    Down,
    /// Say what runs
    Status,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let dir = match &options.dir {
        Some(dir) => dir.clone(),
        None => shell::cache_dir()?.join("cluster"),
    };
    if options.kind {
        return kind::run(&options.action, &dir);
    }
    match &options.action {
        Action::Build => {
            for folder in build()? {
                shell::say(&folder.display().to_string());
            }
            Ok(())
        }
        Action::Up {
            nodes,
            api_only,
            images,
        } => {
            build()?;
            let mut command = kit()?;
            command.arg("up").arg(&dir);
            if *api_only {
                command.arg("--api-only");
            } else {
                command.arg(format!("--nodes={nodes}"));
            }
            if *images {
                command
                    .arg("--images")
                    .env("BELLOWS_BIN", build::images(build::Scope::Release)?);
            }
            shell::run("start the cluster", &mut command)
        }
        Action::Images { to } => pack(to),
        Action::Test { names, rest } => test(names, rest),
        Action::Down => shell::run("end the cluster", kit()?.arg("down").arg(&dir)),
        Action::Status => shell::run("look at the cluster", kit()?.arg("status").arg(&dir)),
    }
}

/// The page about kind at the end of all tests: see [`kind::test_last`].
pub(crate) fn test_kind(bellows: &Path, may_build: bool) -> Result<Option<&'static str>> {
    kind::test_last(&shell::cache_dir()?.join("cluster"), bellows, may_build)
}

/// The `bellows` of `BELLOWS_BIN` with its siblings, as tests use it. Else a new release build.
fn built() -> Result<PathBuf> {
    match std::env::var_os("BELLOWS_BIN").filter(|path| !path.is_empty()) {
        Some(path) => Ok(path.into()),
        None => build::images(build::Scope::Release),
    }
}

/// Packs our images.
fn pack(to: &Path) -> Result<()> {
    let bellows = built()?;
    let mut command = kit()?;
    command.arg("images").arg(to).env("BELLOWS_BIN", bellows);
    shell::run("pack the images", &mut command)
}

/// Runs the tests of those names, or all.
fn test(names: &[String], rest: &[String]) -> Result<()> {
    if !build_if_possible()? {
        bail!("a cluster is built of Go modules: install Go 1.21 or newer");
    }
    let bellows = build::images(build::Scope::Tests)?;
    let all = || TESTS.map(str::to_owned).to_vec();
    let names = if names.is_empty() {
        all()
    } else {
        names.to_vec()
    };
    let mut command = shell::cargo()?;
    command
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(names.iter().flat_map(|name| ["--test", name]))
        .arg("--")
        .args(rest)
        .env("BELLOWS_BIN", bellows)
        .env(MAY_SKIP, "");
    shell::run("the tests of clusters", &mut command)
}

/// Builds the programs of a cluster, and their build tools. Without root the nodes are left out.
pub(crate) fn build() -> Result<Vec<PathBuf>> {
    setup::ensure(setup::Need::Everything)?;
    let mut folders = programs::ensure()?;
    if shell::is_root() {
        folders.push(rootfs::ensure()?);
    }
    Ok(folders)
}

/// Builds as [`build`]. Without Go it does nothing, and tests that need a cluster report that.
/// Returns whether the programs exist.
pub(crate) fn build_if_possible() -> Result<bool> {
    setup::ensure(setup::Need::Everything)?;
    let can = programs::ensure_if_possible()?;
    if can && shell::is_root() {
        rootfs::ensure()?;
    }
    Ok(can)
}

/// The program of the black-box kit that starts and ends control planes.
fn kit() -> Result<Command> {
    let build = Cargo {
        command: shell::cargo()?,
        subcommand: &["build", "--bin", "control-plane"],
        // Of the whole workspace, so that no dependency is compiled with other features than
        // elsewhere.
        selection: &["--workspace"],
        depends: Depends::Normal,
        trailing: &[],
    };
    build.run("build the kit")?;
    let mut kit = Command::new(shell::target_dir()?.join("debug/control-plane"));
    // By this it finds the checkout, as a test does.
    kit.env("CARGO_MANIFEST_DIR", shell::root().join("tests"));
    Ok(kit)
}
