//! Building: our binaries, the static guest binaries, the images.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::progress::{self, Cargo, Depends, Work};
use crate::shell;

const GUEST_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Names of the images every guest test and demo needs, in build order.
const IMAGES: [&str; 2] = ["bellows/qemu", "bellows/postgres:15"];

/// Builds `vm-monitor`, `neonvmd`, and the load and bad parts of the guest tests statically, as
/// they go into images: the monitor without TLS, which would make up a quarter of it. Returns the
/// directory that holds them.
pub(crate) fn guest_bins() -> Result<PathBuf> {
    let selection = [
        "-p",
        "vm-monitor",
        "-p",
        "neonvm-guestd",
        "-p",
        "guest-load",
        "-p",
        "bad-monitors",
        "--no-default-features",
        "--features",
        "vm-monitor/postgres",
    ];
    static_build("build static guest binaries", &selection)?;
    // Alone, because its features would become those of the monitor too.
    updater()?;
    guest_dir()
}

/// Builds `bellows-updater` statically; returns its path.
pub(crate) fn updater() -> Result<PathBuf> {
    static_build("build the static updater", &["-p", "bellows-updater"])?;
    Ok(guest_dir()?.join("bellows-updater"))
}

/// Builds `vm-monitor` statically with everything it can do; returns its path, until guest binaries
/// are built again.
pub(crate) fn whole_monitor() -> Result<PathBuf> {
    static_build("build the static monitor with TLS", &["-p", "vm-monitor"])?;
    Ok(guest_dir()?.join("vm-monitor"))
}

fn static_build(what: &str, packages: &[&str]) -> Result<()> {
    let mut command = shell::cargo()?;
    command.env(
        "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS",
        "-C target-feature=+crt-static",
    );
    let build = Cargo {
        command,
        subcommand: &["build", "--profile", "guest"],
        selection: &[&["--target", GUEST_TARGET], packages].concat(),
        depends: Depends::Normal,
        trailing: &[],
    };
    build.run(what)
}

fn guest_dir() -> Result<PathBuf> {
    Ok(shell::target_dir()?.join(GUEST_TARGET).join("guest"))
}

/// What is compiled beside the binaries. One selection of packages and targets means one set of
/// features, so that nothing is compiled twice within a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Binaries,
    /// Binaries and every test, as `cargo test --workspace` needs them.
    Tests,
    /// Binaries as they are shipped, for measuring.
    Release,
}

/// Builds the host binaries; returns the path of `bellows`, beside which the others lie.
pub(crate) fn host_bins(scope: Scope) -> Result<PathBuf> {
    let (subcommand, depends): (&[&str], _) = match scope {
        Scope::Binaries => (&["build", "--bins"], Depends::Normal),
        Scope::Tests => (&["test", "--no-run"], Depends::Dev),
        Scope::Release => (&["build", "--bins", "--release"], Depends::Normal),
    };
    // `test-api` switches on what no shipped program may have: writes past admission.
    let selection: &[&str] = match scope {
        Scope::Tests => &["--workspace"],
        Scope::Binaries | Scope::Release => &["--workspace", "--exclude", "test-api"],
    };
    let build = Cargo {
        command: shell::cargo()?,
        subcommand,
        selection,
        depends,
        trailing: &[],
    };
    build.run("build host binaries")?;
    let profile = match scope {
        Scope::Binaries | Scope::Tests => "debug",
        Scope::Release => "release",
    };
    Ok(shell::target_dir()?.join(profile).join("bellows"))
}

/// Everything a guest needs: packages, binaries, images. Quick when nothing changed. Returns the
/// path of `bellows`.
pub(crate) fn images(scope: Scope) -> Result<PathBuf> {
    crate::setup::ensure(crate::setup::Need::Everything)?;
    let guest_bins = guest_bins()?;
    let bellows = host_bins(scope)?;
    build_images(&bellows, &guest_bins)?;
    Ok(bellows)
}

/// Builds the images with a given `bellows`.
fn build_images(bellows: &std::path::Path, guest_bins: &std::path::Path) -> Result<()> {
    for image in IMAGES {
        let mut command = Command::new(bellows);
        command
            .args(["image", "build", image])
            .arg("--guest-bin-dir")
            .arg(guest_bins);
        progress::run(&format!("build image {image}"), &mut command, Work::Unknown)
            .with_context(|| format!("image {image} could not be built"))?;
    }
    Ok(())
}
