//! The same with kind, where Docker and kind are.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use super::{Action, pack};
use crate::shell;

/// The name of our cluster among those of kind.
const NAME: &str = "bellows";
/// Its nodes.
const CONFIG: &str = "deploy/kind.yaml";

/// Does what is asked.
pub(super) fn run(action: &Action, dir: &Path) -> Result<()> {
    for program in ["docker", "kind"] {
        if !shell::on_path(program) {
            bail!(
                "--kind needs {program}, which is not on the PATH: install it, or leave out --kind"
            );
        }
    }
    match action {
        Action::Build => {
            bail!("a cluster of kind's has nothing to build: `cargo xtask cluster up --kind`")
        }
        Action::Up { images, .. } => up(dir, *images),
        Action::Images { to } => pack(to),
        Action::Test { rest, .. } => test(rest),
        Action::Down => shell::run("end the cluster", kind().args(["delete", "cluster"])),
        Action::Status => shell::run("look at the cluster", kind().args(["get", "nodes"])),
    }
}

fn up(dir: &Path, images: bool) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    let kubeconfig = dir.join("kind.kubeconfig");
    let mut create = kind();
    create.args(["create", "cluster", "--wait", "180s", "--config"]);
    create.arg(shell::root().join(CONFIG));
    create.arg("--kubeconfig").arg(&kubeconfig);
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
    shell::say(&kubeconfig.display().to_string());
    Ok(())
}

/// The page about kind, every command of it.
fn test(rest: &[String]) -> Result<()> {
    let mut command = shell::cargo()?;
    command
        .args(["test", "--workspace", "--test", "install_kind", "--"])
        .args(rest)
        .env("BELLOWS_REQUIRE_KIND", "1");
    shell::run("the page about kind", &mut command)
}

/// A command to kind about our cluster.
fn kind() -> Command {
    let mut command = Command::new("kind");
    command.env("KIND_CLUSTER_NAME", NAME);
    command
}
