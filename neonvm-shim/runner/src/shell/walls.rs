//! Chooses the isolation of QEMU that the machine allows, and records it.

use std::path::{Path, PathBuf};

use tokio::process::Command;
use tracing::warn;

use super::confined;
use super::record::{Record, RecordError, read_json};
use super::sandbox::{Sandbox, directories};
use crate::config::RunnerConfig;
use crate::core::connection::Connection;
use crate::core::disks::Drive;
use crate::core::paths::Paths;
use crate::core::program::{Program, unwrapped};
use crate::core::walls::{Wall, WallState};

/// Command that enters a user namespace, by which an ordinary user gets empty namespaces. QEMU
/// replaces it and keeps the process id.
const UNSHARE: [&str; 6] = [
    "unshare",
    "--user",
    "--map-current-user",
    "--net",
    "--ipc",
    "--uts",
];

#[derive(Debug)]
pub(super) enum Enclosure {
    /// A sandbox, which only root can make.
    Sandbox(Box<Sandbox>, Program),
    /// Namespaces without the machine's network, by [`UNSHARE`].
    Unshared,
    /// The user and namespaces of the runner.
    None,
}

impl Enclosure {
    /// Command that executes a program of QEMU's image with these arguments.
    pub(super) fn command(&self, program: &Path, args: Vec<String>) -> Program {
        let (file, first, env) = match self {
            Self::Sandbox(_, program) => (
                program.file.clone(),
                program.args.clone(),
                program.env.clone(),
            ),
            Self::Unshared => {
                let [file, words @ ..] = UNSHARE.map(str::to_owned);
                let program = program.display().to_string();
                (
                    file.into(),
                    [words.to_vec(), vec![program]].concat(),
                    Vec::new(),
                )
            }
            Self::None => (program.to_owned(), Vec::new(), Vec::new()),
        };
        Program {
            file,
            args: [first, args].concat(),
            env,
        }
    }

    pub(super) fn sandbox(&self) -> Option<&Sandbox> {
        match self {
            Self::Sandbox(sandbox, _) => Some(sandbox),
            Self::Unshared | Self::None => None,
        }
    }
}

/// QEMU's user, if it has one of its own.
pub(super) fn user(config: &RunnerConfig, made: &[WallState]) -> Option<u32> {
    let has = made
        .iter()
        .any(|state| state.wall == Wall::User && state.missing.is_none());
    config.walls.as_ref().filter(|_| has)?.user
}

/// User of the QEMU in a runner's directory, if it has one of its own.
///
/// # Errors
/// A file of the directory cannot be read.
pub fn qemu_user(rundir: &Path) -> Result<Option<u32>, RecordError> {
    let paths = Paths::new(rundir);
    let (config, record) = (
        read_json::<RunnerConfig>(&paths.config())?,
        read_json::<Record>(&paths.record())?,
    );
    Ok(config
        .zip(record)
        .and_then(|(config, record)| user(&config, &record.walls)))
}

/// Tries a sandbox in an empty directory. Returns why QEMU cannot have one here, or `None` if it
/// can.
#[must_use]
pub fn sandbox_refused() -> Option<String> {
    let dir = std::env::temp_dir().join(format!("bellows-sandbox-{}", std::process::id()));
    let sandbox = Sandbox {
        user: u32::MAX - 1,
        root: dir.join("root"),
        readable: Vec::new(),
        writable: Vec::new(),
        sockets: dir.join("sockets"),
        dir: dir.clone(),
    };
    // Fails if another process has made it already.
    if let Err(error) = std::fs::create_dir(&dir) {
        return Some(error.to_string());
    }
    let tried = directories(&sandbox).and_then(|()| confined::try_sandbox(&sandbox));
    // The directory is empty and among temporary files.
    let _ = std::fs::remove_dir_all(&dir);
    tried.err().map(|error| error.to_string())
}

/// Chooses the strongest enclosure that works here, and its walls.
pub(super) async fn choose(
    config: &RunnerConfig,
    connection: Connection<'_>,
    paths: &Paths,
    drives: &[Drive],
) -> (Enclosure, Vec<WallState>) {
    let Connection::Passt(walls) = connection else {
        // QEMU serves the guest's ports itself, or its pod isolates it.
        let why = "the guest is not connected by passt";
        let all = Wall::ALL.into_iter().filter(|wall| *wall != Wall::Memory);
        return (
            Enclosure::None,
            all.map(|wall| WallState::missing(wall, why)).collect(),
        );
    };
    let passt = WallState::stands(Wall::Passt);
    let Some(user) = walls.user else {
        let (enclosure, rest) = as_ordinary_user().await;
        return (enclosure, [vec![passt], rest].concat());
    };
    match sandbox(config, user, paths, drives) {
        Ok((sandbox, program)) => {
            let rest = [Wall::User, Wall::Namespaces, Wall::Files].map(WallState::stands);
            let enclosure = Enclosure::Sandbox(Box::new(sandbox), program);
            (enclosure, [vec![passt], rest.to_vec()].concat())
        }
        Err(why) => {
            warn!(
                why,
                "QEMU has no sandbox: it runs as root in the machine's namespaces"
            );
            let rest = [Wall::User, Wall::Namespaces, Wall::Files]
                .map(|wall| WallState::missing(wall, why.clone()));
            (Enclosure::None, [vec![passt], rest.to_vec()].concat())
        }
    }
}

async fn as_ordinary_user() -> (Enclosure, Vec<WallState>) {
    let not_root = "bellows up does not run as root";
    let mut walls = vec![
        WallState::missing(Wall::User, not_root),
        WallState::missing(Wall::Files, not_root),
    ];
    let [program, words @ ..] = UNSHARE;
    let tried = Command::new(program)
        .args(words)
        .arg("true")
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output()
        .await;
    let why = match tried {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("{program}: {error}")),
    };
    let enclosure = match why {
        None => {
            walls.push(WallState::stands(Wall::Namespaces));
            Enclosure::Unshared
        }
        Some(why) => {
            walls.push(WallState::missing(Wall::Namespaces, why));
            Enclosure::None
        }
    };
    (enclosure, walls)
}

/// Prepares a sandbox, and tries whether the kernel allows it. `Err` is the reason if not.
fn sandbox(
    config: &RunnerConfig,
    user: u32,
    paths: &Paths,
    drives: &[Drive],
) -> Result<(Sandbox, Program), String> {
    let (program, tree) = program_of(&config.programs.qemu_system)?;
    let image = &config.image;
    let mut readable = vec![tree, image.kernel.clone(), image.root_disk.clone()];
    readable.extend(image.initrd.clone());
    let mut writable = vec![
        paths.root_disk(config),
        paths.console_log(),
        paths.guest_log(),
    ];
    writable.extend(drives.iter().map(|drive| paths.drive(drive)));
    let sandbox = Sandbox {
        user,
        root: paths.dir.join("sandbox"),
        readable,
        writable,
        sockets: paths.sockets(),
        dir: paths.dir.clone(),
    };
    let made = directories(&sandbox).and_then(|()| confined::try_sandbox(&sandbox));
    made.and_then(|()| sandbox.hand_over())
        .map_err(|error| error.to_string())?;
    Ok((sandbox, program))
}

/// Program that a script of image `bellows/qemu` executes, and the directory of its files.
fn program_of(script: &Path) -> Result<(Program, PathBuf), String> {
    let broken = |error: std::io::Error| format!("{}: {error}", script.display());
    let file = std::fs::canonicalize(script).map_err(broken)?;
    let bytes = std::fs::read(&file).map_err(broken)?;
    let tree = file
        .parent()
        .and_then(Path::parent)
        .map(|dir| dir.join("root"));
    tree.and_then(|tree| Some((unwrapped(&String::from_utf8_lossy(&bytes), &tree)?, tree)))
        .ok_or_else(|| format!("{} is not of image bellows/qemu", script.display()))
}
