//! Builds the disk of a guest from a container image.

mod init;
mod instructions;
mod program;
mod users;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use init::{PROGRAM_GROUP, scripts, texts};
use instructions::Context;
use program::program;
use protocol::image::{
    Digest, GuestContent, GuestPortRecord, ImageContent, ImageManifest, MANIFEST_FORMAT,
};
use users::users;

use super::config::Image;
use super::context::Root;
use super::kit::{self, Kit};
use super::layers;
use super::merge::{self, Instruction, What};
use super::spec::ImageSpec;
use crate::debian::{self, ARCHITECTURE};
use crate::digest;
use crate::error::{BuildError, IoContext, need_disk_space};
use crate::guest::{self, INITRD, KERNEL, Programs, ROOT_DISK};
use crate::normalise;
use crate::paths;
use crate::progress::{Progress, Reporter, Step};
use crate::recipe::{GuestRecipe, Recipe};
use crate::store::{Image as Built, Layer, Store};
use crate::{Inputs, StoreError};

/// Directories that a guest needs and an image may lack, with their modes.
const DIRECTORIES: &[(&str, u32)] = &[
    ("dev", 0o755),
    ("etc", 0o755),
    ("mnt/ssh", 0o700),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("var/log", 0o755),
    ("neonvm/acpi", 0o755),
    ("neonvm/commands", 0o755),
    ("neonvm/etc/image", 0o755),
    ("neonvm/etc/ssh", 0o755),
    ("neonvm/runtime", 0o755),
];
/// Sources of the code that makes the disk. A change of them makes another image.
const BUILDER: &[&str] = &[
    include_str!("build.rs"),
    include_str!("build/init.rs"),
    include_str!("build/instructions.rs"),
    include_str!("build/program.rs"),
    include_str!("build/users.rs"),
    include_str!("context.rs"),
    include_str!("layers.rs"),
    include_str!("merge.rs"),
    include_str!("tree.rs"),
    include_str!("../ext4.rs"),
    include_str!("../guest.rs"),
    include_str!("../normalise.rs"),
    include_str!("../sandbox.rs"),
    include_str!("../sandbox/cell.rs"),
    include_str!("../sandbox/filter.rs"),
    include_str!("../sandbox/owners.rs"),
    include_str!("../../guest/sshd_config"),
];

/// A guest to build, and the container image that it is built from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerBuild {
    /// Name of the guest image.
    pub name: String,
    /// The container image: a directory in OCI layout, or an archive.
    pub source: PathBuf,
    /// Tag of the image in the archive. `None` if the archive holds one image.
    pub tag: Option<String>,
    /// Changes to the image.
    pub spec: ImageSpec,
    /// Size of the root disk in MiB.
    pub disk_mib: u32,
}

/// Builds a guest from a container image, and sets its name. Waits for other builds in the same
/// cache.
///
/// # Errors
/// [`BuildError`]. The cache is then unchanged.
pub fn build(
    store: &Store,
    wanted: &ContainerBuild,
    inputs: &Inputs,
    progress: &mut dyn FnMut(Progress),
) -> Result<Built, BuildError> {
    crate::preconditions()?;
    if !crate::recipe::is_image_name(&wanted.name) {
        return Err(StoreError::Name(wanted.name.clone()).into());
    }
    let merge = merge::parse(&wanted.spec.merge, &wanted.spec.files)?;
    let opened = Image::open(&wanted.source, wanted.tag.as_deref());
    let image = opened.map_err(|source| BuildError::Archive {
        path: wanted.source.clone(),
        source,
    })?;
    let recipe = kit::recipe()?;
    let guest = recipe
        .guest()
        .expect("the kit is a guest, as its test says");
    let programs = guest::programs(guest, inputs)?;
    let reporter = &mut Reporter::new(progress);
    let guard = store.lock(reporter)?;
    let options = debian::Options {
        refresh: inputs.refresh,
        mirror: inputs.mirror.as_deref(),
    };
    let kit = kit::kit(store, &guard, (&recipe, guest), &options, reporter)?;
    let job = Job {
        wanted,
        image,
        merge,
        recipe: &recipe,
        guest,
        kit: &kit,
        programs,
    };
    let key = job.key();
    if let Some(built) = store.current(&wanted.name, &key) {
        return Ok(built);
    }
    let need = u64::from(wanted.disk_mib) * 2;
    need_disk_space(store.root(), need)?;
    let work = store.work_dir(&guard)?;
    let (root, out) = (work.path().join("root"), work.path().join("out"));
    for dir in [&root, &out] {
        fs::create_dir(dir).at("create", dir)?;
    }
    job.fill(&root, reporter)?;
    let files = guest::finish(work.path(), wanted.disk_mib, &kit.dir, reporter)?;
    let manifest = job.manifest(files);
    reporter.begin(Step::Publish, &wanted.name);
    Ok(store.publish(&guard, &key, &out, &manifest)?)
}

struct Job<'a> {
    wanted: &'a ContainerBuild,
    image: Image,
    merge: Vec<Instruction>,
    recipe: &'a Recipe,
    guest: &'a GuestRecipe,
    kit: &'a Layer<Kit>,
    programs: Programs,
}

impl Job<'_> {
    fn inputs(&self) -> BTreeMap<String, Digest> {
        let programs = self
            .programs
            .iter()
            .map(|(name, bytes)| (name.clone(), digest::of_bytes(bytes)));
        let files = self.wanted.spec.files.iter();
        let files = files.map(|(name, bytes)| (format!("file {name}"), digest::of_bytes(bytes)));
        let image = [("container image".to_owned(), self.image.id.clone())];
        programs.chain(files).chain(image).collect()
    }

    fn key(&self) -> Digest {
        let what = serde_json::json!({
            "builder": digest::of_texts(BUILDER),
            "recipe": self.recipe.sha256,
            "kit": self.kit.digest,
            "spec": self.wanted.spec.sha256,
            "disk_mib": self.wanted.disk_mib,
            "scripts": scripts(self.guest),
            "inputs": self.inputs(),
        });
        digest::of_bytes(what.to_string().as_bytes())
    }

    /// Creates the guest's root file system in an empty directory.
    fn fill(&self, dir: &Path, reporter: &mut Reporter<'_>) -> Result<(), BuildError> {
        let holds = layers::survey(&self.image, self.wanted.disk_mib, reporter)?;
        layers::write(&self.image, &holds, dir, reporter)?;
        let root = Root(dir);
        let mut context = Context::new(root, &self.image.process);
        for instruction in &self.merge {
            reporter.begin(Step::Merge, &format!("line {}", instruction.line));
            context.carry_out(instruction, &self.wanted.spec.files, reporter)?;
        }
        reporter.begin(Step::Assemble, "");
        if holds.get("neonvm").is_some() {
            paths::remove(&root.place("neonvm")?)?;
        }
        normalise::unpack(&self.kit.dir.join(kit::TREE), dir, reporter)?;
        for (path, mode) in DIRECTORIES {
            root.directory(path, *mode)?;
        }
        let init = dir.join("neonvm/bin/init");
        debug_assert!(init.symlink_metadata().is_ok(), "busybox is an init");
        self.put_files(root)?;
        users(root, self.guest)
    }

    fn put_files(&self, root: Root<'_>) -> Result<(), BuildError> {
        for (path, text) in scripts(self.guest) {
            root.put(&path, text.as_bytes(), 0o755)?;
        }
        for (path, text) in texts(self.guest, &self.wanted.spec) {
            root.put(&path, text.as_bytes(), 0o644)?;
        }
        for wanted in &self.guest.binaries {
            if let Some(content) = self.programs.get(&wanted.name) {
                root.put(&wanted.path, content, 0o755)?;
            }
        }
        // A container runtime would mount these files.
        root.put("etc/resolv.conf", b"nameserver 10.0.2.3\n", 0o644)?;
        let hosts = format!("127.0.0.1 localhost {}\n", self.guest.hostname);
        root.put("etc/hosts", hosts.as_bytes(), 0o644)?;
        root.put(
            "etc/hostname",
            format!("{}\n", self.guest.hostname).as_bytes(),
            0o644,
        )?;
        for (name, text) in program(root, &self.image.process)? {
            root.put(&format!("neonvm/etc/image/{name}"), text.as_bytes(), 0o644)?;
        }
        Ok(())
    }

    fn manifest(&self, files: BTreeMap<String, protocol::image::FileRecord>) -> ImageManifest {
        let facts = &self.kit.manifest.facts;
        let runs = self
            .merge
            .iter()
            .filter(|one| matches!(one.what, What::Run(_)));
        let unreproducible: Vec<String> = runs
            .map(|one| {
                format!(
                    "what RUN in line {} of the specification's merge writes",
                    one.line
                )
            })
            .collect();
        let port = |port: &crate::recipe::PortRecipe| GuestPortRecord {
            name: port.name.clone(),
            port: port.port,
        };
        ImageManifest {
            format: MANIFEST_FORMAT,
            name: self.wanted.name.clone(),
            architecture: ARCHITECTURE.to_owned(),
            suite: facts.suite.clone(),
            recipe_sha256: self.recipe.sha256.clone(),
            packages: facts.packages.clone(),
            inputs: self.inputs(),
            reproducible: unreproducible.is_empty(),
            unreproducible,
            content: ImageContent::Guest(GuestContent {
                kernel: KERNEL.to_owned(),
                kernel_version: facts.kernel_version.clone(),
                initrd: INITRD.to_owned(),
                root_disk: ROOT_DISK.to_owned(),
                root_disk_format: "raw".to_owned(),
                root_disk_bytes: files.get(ROOT_DISK).map_or(0, |record| record.bytes),
                cmdline: self.guest.kernel.cmdline.clone(),
                cmdline_tcg: self.guest.kernel.cmdline_tcg.clone(),
                ports: self.guest.ports.iter().map(port).collect(),
                ready_line: self.guest.ready_line.clone(),
                cgroup: Some(PROGRAM_GROUP.to_owned()),
            }),
            files,
        }
    }
}

#[cfg(test)]
mod attacks;
#[cfg(test)]
mod tests;
