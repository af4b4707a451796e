//! A cluster of kind's, in the Docker of this machine or in one of our own.

mod image;
mod machine;

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};
use test_records::MAY_SKIP;

use self::image::Parts;
use self::machine::Machine;
use super::{Action, built, pack, programs};
use crate::shell;

/// Name of our cluster in kind.
const NAME: &str = "bellows";
const CONFIG: &str = "deploy/kind.yaml";

pub(super) fn run(action: &Action, dir: &Path) -> Result<()> {
    let machine = Machine::beside(dir, "-kind")?;
    if machine.is_there() || !has_docker() {
        return run_here(action, dir, &machine);
    }
    if !shell::on_path("kind") {
        bail!("--kind needs kind, which is not on the PATH: install it, or leave out --kind");
    }
    match action {
        Action::Build => {
            bail!("Docker is here, so there is nothing to build: `cargo xtask cluster up --kind`")
        }
        Action::Up { images, .. } => {
            std::fs::create_dir_all(dir)?;
            let kubeconfig = dir.join("kind.kubeconfig");
            up(kind, dir, &kubeconfig, *images)?;
            shell::say(&kubeconfig.display().to_string());
            Ok(())
        }
        Action::Images { to } => pack(to),
        Action::Test { rest, .. } => test(rest, &mut shell::cargo()?),
        Action::Down => shell::run("end the cluster", kind().args(["delete", "cluster"])),
        Action::Status => shell::run("look at the cluster", kind().args(["get", "nodes"])),
    }
}

/// Runs the action in a Docker of our own.
fn run_here(action: &Action, dir: &Path, machine: &Machine) -> Result<()> {
    let needs_root = !matches!(action, Action::Images { .. });
    if needs_root && !shell::is_root() {
        bail!(
            "--kind needs Docker, which does not answer, or root, to start one of the cluster's own"
        );
    }
    match action {
        Action::Build => {
            let image = image::ensure(&Parts::ensure()?)?;
            shell::say(&image.display().to_string());
            Ok(())
        }
        Action::Up { images, .. } => up_here(machine, *images),
        Action::Images { to } => pack(to),
        Action::Test { rest, .. } => test_here(dir, rest, &built()?),
        // A test that was interrupted has left its own.
        Action::Down => machine.end().and(of_test(dir)?.end()),
        Action::Status if machine.is_there() => {
            let mut nodes = machine.command("kubectl");
            shell::run("look at the cluster", nodes.args(["get", "nodes"]))
        }
        Action::Status => {
            shell::say("down");
            Ok(())
        }
    }
}

/// Starts a cluster by such a kind.
fn up(kind: impl Fn() -> Command, dir: &Path, kubeconfig: &Path, images: bool) -> Result<()> {
    let mut create = kind();
    create.args(["create", "cluster", "--wait", "180s", "--config"]);
    create.arg(shell::root().join(CONFIG));
    create.arg("--kubeconfig").arg(kubeconfig);
    shell::run("start the cluster", &mut create)?;
    if images {
        let packed = dir.join("images");
        pack(&packed)?;
        for entry in std::fs::read_dir(&packed)? {
            let mut load = kind();
            load.args(["load", "image-archive"]).arg(entry?.path());
            shell::run("load an image", &mut load)?;
        }
    }
    Ok(())
}

fn up_here(machine: &Machine, images: bool) -> Result<()> {
    machine.start()?;
    let ours = || about_ours(machine.command("kind"));
    up(ours, machine.dir(), &machine.kubeconfig(), images)?;
    // kind does not report whether the nodes beside the control plane started.
    let mut wait = machine.command("kubectl");
    wait.args(["wait", "--for=condition=Ready", "nodes", "--all"]);
    shell::run("see every node ready", wait.arg("--timeout=180s"))?;
    let bin = machine.bin();
    shell::say(&format!("its programs: PATH={}:$PATH", bin.display()));
    shell::say(&machine.kubeconfig().display().to_string());
    Ok(())
}

/// The page about kind, every command of it.
fn test(rest: &[String], cargo: &mut Command) -> Result<()> {
    cargo
        .args(["test", "--workspace", "--test", "install_kind", "--"])
        .args(rest)
        .env(MAY_SKIP, "");
    shell::run("the page about kind", cargo)
}

/// Tests the page after all other tests, with their `bellows`. Without kind it is built only if
/// `may_build`, because that takes 20 minutes. Else the reason is returned.
pub(super) fn test_last(
    dir: &Path,
    bellows: &Path,
    may_build: bool,
) -> Result<Option<&'static str>> {
    if has_docker() && shell::on_path("kind") {
        test(&[], shell::cargo()?.env("BELLOWS_BIN", bellows))?;
    } else if may_build || programs::has_kind()? {
        test_here(dir, &[], bellows)?;
    } else {
        return Ok(Some(
            "kind is not built yet: `cargo xtask cluster build --kind`",
        ));
    }
    Ok(None)
}

/// Tests in a Docker of its own, which holds no other cluster.
fn test_here(dir: &Path, rest: &[String], bellows: &Path) -> Result<()> {
    let machine = of_test(dir)?;
    let started = machine.end().and_then(|()| machine.start());
    let tested = started.and_then(|()| {
        let mut cargo = shell::cargo()?;
        cargo.env("PATH", machine.path()?);
        test(rest, cargo.env("BELLOWS_BIN", bellows))
    });
    // Whatever came of it.
    let ended = machine.end();
    tested.and(ended)
}

/// The machine on which the page is tested.
fn of_test(dir: &Path) -> Result<Machine> {
    Machine::beside(dir, "-kind-test")
}

/// Whether a Docker of this machine answers.
fn has_docker() -> bool {
    shell::succeeds(Command::new("docker").arg("info"))
}

/// A kind command for our cluster.
fn kind() -> Command {
    about_ours(Command::new("kind"))
}

fn about_ours(mut kind: Command) -> Command {
    kind.env("KIND_CLUSTER_NAME", NAME);
    kind
}
