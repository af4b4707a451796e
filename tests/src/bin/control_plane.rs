//! A real Kubernetes for developers: what `cargo xtask cluster up|down|status` runs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use bellows_tests::cluster::{
    Cluster, ControlPlane, Lifetime, NodeKit, Programs, Tier, end, pack_all, pack_busybox,
    pack_ours, relay, running,
};
use clap::{Parser, Subcommand};

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start one and print the path of its kubeconfig
    Up {
        /// Where it keeps everything
        dir: PathBuf,
        /// Leave out the controllers and the scheduler
        #[arg(long)]
        api_only: bool,
        /// Nodes with a kubelet
        #[arg(long, default_value_t = 0)]
        nodes: u8,
        /// Load our images onto the nodes
        #[arg(long)]
        images: bool,
    },
    /// Pack our images, for any cluster, and print their paths
    Images {
        /// Directory for the packed images
        dir: PathBuf,
    },
    /// End what `up` started and remove what it wrote
    Down {
        /// Directory that `up` was given
        dir: PathBuf,
    },
    /// Say what runs
    Status {
        /// Directory that `up` was given
        dir: PathBuf,
    },
    /// Carry connections into the network of nodes; `up` starts it
    #[command(hide = true)]
    Relay {
        /// File of the network namespace that connections are carried into
        network: PathBuf,
        /// Address to connect to in that namespace
        to: SocketAddr,
        /// File to write the listener's address into
        note: PathBuf,
    },
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Up {
            dir,
            api_only,
            nodes,
            images,
        } => {
            let size = match (nodes, api_only) {
                (0, true) => Size::Plane(Tier::Api),
                (0, false) => Size::Plane(Tier::Full),
                (count, _) => Size::Nodes { count, images },
            };
            tokio::runtime::Runtime::new()?.block_on(up(&dir, size))
        }
        Command::Images { dir } => images(&dir),
        Command::Down { dir } => down(&dir),
        Command::Status { dir } => status(&dir),
        Command::Relay { network, to, note } => relay(&network, to, &note),
    }
}

/// What is started.
#[derive(Clone, Copy)]
enum Size {
    Plane(Tier),
    Nodes {
        count: u8,
        /// With our images on them.
        images: bool,
    },
}

async fn up(dir: &Path, size: Size) -> Result<()> {
    if let Some((part, pid, _)) = running(dir)?.first() {
        let part = part.program();
        bail!("{part} ({pid}) of this cluster runs: `cargo xtask cluster down` ends it");
    }
    clear(dir)?;
    let programs = Programs::find()
        .context("the programs are missing: `cargo xtask cluster build` builds them")?;
    match start(programs, dir, size).await {
        Ok(kubeconfig) => {
            say(&kubeconfig.display().to_string());
            Ok(())
        }
        Err(error) => {
            end(dir)?;
            Err(error)
        }
    }
}

async fn start(programs: Programs, dir: &Path, size: Size) -> Result<PathBuf> {
    let life = Lifetime::OnTheirOwn;
    match size {
        Size::Plane(tier) => {
            let plane = ControlPlane::start(programs, dir, tier, life).await?;
            Ok(plane.kubeconfig())
        }
        Size::Nodes { count, images } => {
            let kit = NodeKit::find().context(
                "nodes are made of what is missing: `cargo xtask cluster build` makes it, as root",
            )?;
            let packed = tempfile::tempdir()?;
            let archives = if images {
                pack_all(&programs, packed.path())?
            } else {
                vec![pack_busybox(packed.path())?]
            };
            let cluster = Cluster::start(programs, &kit, dir, count, &archives, life).await?;
            Ok(cluster.plane().kubeconfig())
        }
    }
}

/// Archives and nothing else are left in `dir`.
fn images(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let work = tempfile::tempdir_in(dir)?;
    for archive in pack_ours(work.path())? {
        let name = archive.file_name().context("an archive has a name")?;
        let place = dir.join(name);
        std::fs::rename(&archive, &place)?;
        say(&place.display().to_string());
    }
    Ok(())
}

fn down(dir: &Path) -> Result<()> {
    for part in end(dir)? {
        say(&format!("ended {}", part.program()));
    }
    clear(dir)
}

fn status(dir: &Path) -> Result<()> {
    let running = running(dir)?;
    if running.is_empty() {
        say("down");
        return Ok(());
    }
    for (part, pid, mib) in running {
        say(&format!("{:<24} pid {pid:<8} {mib:>5} MiB", part.program()));
    }
    let kubeconfig = dir.join("admin.kubeconfig");
    say(&format!("KUBECONFIG={}", kubeconfig.display()));
    Ok(())
}

/// Removes a directory that a cluster wrote, and nothing else.
fn clear(dir: &Path) -> Result<()> {
    let is_empty = match std::fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", dir.display())),
    };
    if is_empty {
        return Ok(());
    }
    if !dir.join("processes.json").is_file() {
        bail!("{} holds something else than a cluster", dir.display());
    }
    std::fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))
}

#[expect(clippy::print_stdout, reason = "what the command was asked for")]
fn say(line: &str) {
    println!("{line}");
}
