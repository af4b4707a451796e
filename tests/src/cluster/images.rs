//! The images of `deploy/images`, packed by `bellows image pack` from what lies in the target directory and the image store.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::programs::{NodeKit, Programs};

/// What pods without an image of their own are made of, and the pause of every pod.
const BUSYBOX: &str = "busybox";
/// Everything of ours that runs in a cluster.
const OURS: [&str; 5] = [
    "autoscale-scheduler",
    "autoscaler-agent",
    "neonvm-controller",
    "neonvm-runner",
    "vm-postgres",
];
/// The one of ours that brings a node's own programs along.
const OVERLAY: &str = "neonvm-vxlan-controller";
/// The programs of ours in them.
const PROGRAMS: [&str; 5] = [
    "autoscale-scheduler",
    "autoscaler-agent",
    "neonvm-controller",
    "neonvm-runner",
    OVERLAY,
];

/// Packs [`BUSYBOX`] into `dir`; returns the archive.
///
/// # Errors
/// When something that goes into it is missing.
pub fn pack_busybox(dir: &Path) -> Result<PathBuf> {
    pack(BUSYBOX, &BTreeMap::new(), dir)
}

/// Packs everything that runs in a cluster made of `programs` into `dir`: what [`pack_ours`] packs, Kubernetes' own scheduler, and
/// what pods without an image of their own are made of. Returns the archives.
///
/// # Errors
/// When something that goes into them is missing.
pub fn pack_all(programs: &Programs, dir: &Path) -> Result<Vec<PathBuf>> {
    let places = BTreeMap::from([("control-plane", programs.path(""))]);
    let mut archives = vec![pack_busybox(dir)?, pack("kube-scheduler", &places, dir)?];
    archives.extend(pack_ours(dir)?);
    Ok(archives)
}

/// Packs our parts, the runner and a guest into `dir`, for any cluster. Returns the archives. The overlay's is among them where there is
/// what nodes are made of, whose iptables it brings along.
///
/// # Errors
/// When something that goes into them is missing.
pub fn pack_ours(dir: &Path) -> Result<Vec<PathBuf>> {
    let qemu = image_folder("bellows/qemu")?;
    let guest = image_folder("bellows/postgres:15")?;
    let stripped = dir.join("programs");
    std::fs::create_dir_all(&stripped)?;
    for program in PROGRAMS {
        let mut strip = Command::new("strip");
        strip.arg("-o").arg(stripped.join(program));
        run(strip.arg(crate::program(program)))?;
    }
    let disk = dir.join("disk.qcow2");
    let mut convert = Command::new(qemu.join("bin/qemu-img"));
    convert.args(["convert", "-f", "raw", "-O", "qcow2"]);
    run(convert.arg(guest.join("root.ext4")).arg(&disk))?;
    let mut places = BTreeMap::from([
        ("programs", stripped),
        ("qemu", qemu),
        ("guest", guest),
        ("disk", disk),
    ]);
    let mut names = OURS.to_vec();
    if let Some(kit) = NodeKit::find() {
        places.insert("node", kit.rootfs);
        names.push(OVERLAY);
    }
    let packed = names.iter().map(|name| pack(name, &places, dir));
    packed.collect()
}

/// Packs the image of that name, with `${PLACE}` in its specification standing for a path.
fn pack(name: &str, places: &BTreeMap<&str, PathBuf>, dir: &Path) -> Result<PathBuf> {
    let source = crate::checkout().join(format!("deploy/images/{name}.json"));
    let mut text = std::fs::read_to_string(&source)
        .with_context(|| format!("cannot read {}", source.display()))?;
    for (place, path) in places {
        text = text.replace(&format!("${{{place}}}"), &path.display().to_string());
    }
    let specification = dir.join(format!("{name}.json"));
    std::fs::write(&specification, text)?;
    let archive = dir.join(format!("{name}.tar"));
    let mut command = Command::new(crate::bellows_bin());
    command.args(["image", "pack"]);
    run(command.arg(&specification).arg(&archive))?;
    Ok(archive)
}

/// Where an image of the store lies.
fn image_folder(name: &str) -> Result<PathBuf> {
    let output = Command::new(crate::bellows_bin())
        .args(["image", "ls", "--output", "json"])
        .output()?;
    let list: Value = serde_json::from_slice(&output.stdout).context("bellows image ls")?;
    let images = list["items"].as_array().context("bellows image ls")?;
    let image = images.iter().find(|image| image["name"] == name);
    let folder = image.and_then(|image| image["dir"].as_str());
    Ok(folder
        .with_context(|| format!("{name} is not built"))?
        .into())
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
