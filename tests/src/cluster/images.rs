//! Packs the images of `deploy/images` with `bellows image pack`, from the target directory and the
//! image store.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use protocol::image::{ImageContent, ImageManifest, MANIFEST_FILE};
use serde_json::Value;

use super::programs::{NodeKit, Programs};
use crate::image::image;

/// Image of pods without one of their own, and of every pod's pause container.
const BUSYBOX: &str = "busybox";
/// The guest whose kernel is in the runner's image.
const GUEST: &str = "bellows/postgres:15";
/// Images of our components in a cluster.
const OURS: [&str; 7] = [
    "autoscale-scheduler",
    "autoscaler-agent",
    "bellows-fleet",
    "neonvm-controller",
    "neonvm-runner",
    "policy-controller",
    "vm-postgres",
];
/// The component whose image contains QEMU and a guest's kernel.
const RUNNER: &str = "neonvm-runner";
/// The component whose image contains a node's programs.
const OVERLAY: &str = "neonvm-vxlan-controller";
/// Our programs in the images.
const PROGRAMS: [&str; 8] = [
    "autoscale-scheduler",
    "autoscaler-agent",
    "bellows-fleet",
    // The agent starts it for policies.
    "bellows-policy",
    "neonvm-controller",
    "neonvm-runner",
    OVERLAY,
    "policy-controller",
];

/// Packs [`BUSYBOX`] into `dir` and returns the archive.
///
/// # Errors
///
/// If an input is missing.
pub fn pack_busybox(dir: &Path) -> Result<PathBuf> {
    pack(BUSYBOX, &BTreeMap::new(), dir)
}

/// Packs the images of a cluster into `dir`: those of [`pack_ours`], kube-scheduler, and
/// [`BUSYBOX`]. Returns the archives.
///
/// # Errors
///
/// If an input is missing.
pub fn pack_all(programs: &Programs, dir: &Path) -> Result<Vec<PathBuf>> {
    let places = BTreeMap::from([("control-plane", programs.path(""))]);
    let mut archives = vec![pack_busybox(dir)?, pack("kube-scheduler", &places, dir)?];
    archives.extend(pack_ours(dir)?);
    Ok(archives)
}

/// Packs our components, the runner and a guest into `dir`, for any cluster. Returns the archives.
/// The overlay is included if the node kit is built, because its image contains iptables.
///
/// # Errors
///
/// If an input is missing.
pub fn pack_ours(dir: &Path) -> Result<Vec<PathBuf>> {
    let qemu = image_folder("bellows/qemu")?;
    let guest = image_folder(GUEST)?;
    let stripped = dir.join("programs");
    std::fs::create_dir_all(&stripped)?;
    for program in PROGRAMS {
        let mut strip = Command::new("strip");
        strip.arg("-o").arg(stripped.join(program));
        run(strip.arg(crate::program(program)))?;
    }
    let disk = dir.join("disk.qcow2");
    disk_of(&guest, &qemu, &disk)?;
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

/// Packs another image of a component as `docker.io/bellows/NAME:1`, into `dir`. Its specification
/// is that of `part` after `change`. Returns the archive and the digest of the image.
///
/// # Errors
///
/// If an input is missing.
pub fn pack_changed(
    part: &str,
    name: &str,
    change: impl FnOnce(&mut Value),
    dir: &Path,
) -> Result<(PathBuf, String)> {
    let beside: &[&str] = match part {
        "autoscaler-agent" => &["bellows-policy"],
        _ => &[],
    };
    let stripped = dir.join("programs");
    std::fs::create_dir_all(&stripped)?;
    for program in beside.iter().chain([&part]) {
        let mut strip = Command::new("strip");
        strip.arg("-o").arg(stripped.join(program));
        run(strip.arg(crate::program(program)))?;
    }
    let text = std::fs::read_to_string(specification(part))?;
    let mut packed: Value = serde_json::from_str(&text)?;
    packed["reference"] = format!("docker.io/bellows/{name}:1").into();
    change(&mut packed);
    let mut places = BTreeMap::from([("programs", stripped)]);
    if part == RUNNER {
        places.insert("qemu", image_folder("bellows/qemu")?);
        places.insert("guest", image_folder(GUEST)?);
    }
    let archive = pack_as(name, packed.to_string(), &places, dir)?;
    let mut tar = Command::new("tar");
    let index = tar.arg("-xOf").arg(&archive).arg("index.json").output()?;
    let index: Value = serde_json::from_slice(&index.stdout).context("index.json")?;
    let digest = index["manifests"][0]["digest"].as_str();
    let digest = digest.with_context(|| index.to_string())?.to_owned();
    Ok((archive, digest))
}

/// Builds a guest from a container image, which `bellows image pack` specifies. Packs its disk into
/// `dir` as the image `docker.io/bellows/NAME:1` of a VM, with the kernel of the runner's image.
/// Returns the archive.
///
/// # Errors
///
/// If an input is missing, or its modules belong to another kernel.
pub fn pack_guest(name: &str, container: &Value, dir: &Path) -> Result<PathBuf> {
    let disk = dir.join(format!("{name}.qcow2"));
    let built = format!("bellows-tests/{name}:1");
    let made = build_guest(&built, container, dir).and_then(|guest| {
        let (modules, kernel) = (kernel_of(&guest)?, kernel_of(&image_folder(GUEST)?)?);
        ensure!(
            modules == kernel,
            "{built} has modules of {modules} and the runner's image the kernel {kernel}: \
             `bellows image build --refresh` makes them one"
        );
        disk_of(&guest, &image_folder("bellows/qemu")?, &disk)
    });
    // Whatever came of it, the store is left as it was.
    let removed = image(&["rm", &built]);
    made.and(removed)?;
    let like = std::fs::read_to_string(specification("vm-postgres"))?;
    let mut packed: Value = serde_json::from_str(&like)?;
    packed["reference"] = format!("docker.io/bellows/{name}:1").into();
    let places = BTreeMap::from([("disk", disk)]);
    pack_as(name, packed.to_string(), &places, dir)
}

/// Builds a guest of a container image with this name, and returns its directory.
fn build_guest(name: &str, container: &Value, dir: &Path) -> Result<PathBuf> {
    let (file, archive) = (dir.join("container.json"), dir.join("container.tar"));
    std::fs::write(&file, container.to_string())?;
    let (file, archive) = (utf8(&file)?, utf8(&archive)?);
    image(&["pack", file, archive])?;
    let build = ["build", "--from", archive, "--disk-size", "128Mi"];
    image(&[&build[..], &["--name", name]].concat())?;
    image_folder(name)
}

/// The kernel that a guest image was made with.
fn kernel_of(guest: &Path) -> Result<String> {
    let manifest = std::fs::read(guest.join(MANIFEST_FILE))?;
    let manifest: ImageManifest = serde_json::from_slice(&manifest)?;
    match manifest.content {
        ImageContent::Guest(guest) => Ok(guest.kernel_version),
        ImageContent::Runtime(_) => bail!("{} is no guest", manifest.name),
    }
}

/// Makes the disk that a VM's image carries of a guest's.
fn disk_of(guest: &Path, qemu: &Path, disk: &Path) -> Result<()> {
    let mut convert = Command::new(qemu.join("bin/qemu-img"));
    convert.args(["convert", "-f", "raw", "-O", "qcow2"]);
    run(convert.arg(guest.join("root.ext4")).arg(disk))
}

/// Path of the specification of an image.
fn specification(name: &str) -> PathBuf {
    crate::checkout().join(format!("deploy/images/{name}.json"))
}

/// Packs the image of that name, with `${PLACE}` in its specification standing for a path.
fn pack(name: &str, places: &BTreeMap<&str, PathBuf>, dir: &Path) -> Result<PathBuf> {
    let source = specification(name);
    let text = std::fs::read_to_string(&source)
        .with_context(|| format!("cannot read {}", source.display()))?;
    pack_as(name, text, places, dir)
}

/// Packs an image so specified under that name.
fn pack_as(
    name: &str,
    mut text: String,
    places: &BTreeMap<&str, PathBuf>,
    dir: &Path,
) -> Result<PathBuf> {
    for (place, path) in places {
        text = text.replace(&format!("${{{place}}}"), &path.display().to_string());
    }
    let file = dir.join(format!("{name}.json"));
    std::fs::write(&file, text)?;
    let archive = dir.join(format!("{name}.tar"));
    image(&["pack", utf8(&file)?, utf8(&archive)?])?;
    Ok(archive)
}

/// A path as an argument of a command.
fn utf8(path: &Path) -> Result<&str> {
    path.to_str().context("a path of UTF-8")
}

/// Directory of an image in the store.
fn image_folder(name: &str) -> Result<PathBuf> {
    let list = image(&["ls", "--output", "json"])?;
    let list: Value = serde_json::from_str(&list).context("bellows image ls")?;
    let images = list["items"].as_array().context("bellows image ls")?;
    let found = images.iter().find(|image| image["name"] == name);
    let folder = found.and_then(|image| image["dir"].as_str());
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
