//! Additions that turn a container image into a guest: a kernel, and below `/neonvm` an init and
//! tools that do not use the image.
//!
//! The tools are Debian's, with their libraries and their own loader, so that an image of any
//! distribution works.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use protocol::image::{Digest, PackageRecord};
use serde::{Deserialize, Serialize};

use super::context::Root;
use crate::debian::{self, Packages};
use crate::digest;
use crate::error::{BuildError, IoContext, need_disk_space};
use crate::kernel;
use crate::normalise;
use crate::progress::{Reporter, Step};
use crate::recipe::{GuestRecipe, Recipe, RuntimeRecipe};
use crate::runtime;
use crate::sandbox;
use crate::store::{Guard, Layer, LayerManifest, Store};

const RECIPE: &str = include_str!("../../recipes/container.toml");
const KIND: &str = "kit";
pub(super) const TREE: &str = "kit.tar.zst";
/// Space in MiB that a build of the kit needs.
const WORK_MIB: u64 = 768;
/// Programs from packages, by path. `/neonvm/bin` has them by name.
const PROGRAMS: &[&str] = &[
    "usr/bin/flock",
    "usr/bin/setpriv",
    "usr/bin/ssh-keygen",
    "usr/sbin/blkid",
    "usr/sbin/repquota",
    "usr/sbin/resize2fs",
    "usr/sbin/setquota",
    "usr/sbin/sshd",
    "usr/sbin/tune2fs",
];
/// Real path of the tools' loader. The usual path is a link that is valid only if the tree is the
/// root.
const LOADER: &str = "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2";
/// Sources of the code that makes this layer. A change of them makes another layer.
const BUILDER: &[&str] = &[
    include_str!("kit.rs"),
    include_str!("../debian.rs"),
    include_str!("../initrd.rs"),
    include_str!("../kernel.rs"),
    include_str!("../normalise.rs"),
    include_str!("../runtime.rs"),
    include_str!("../../guest/initrd-init.sh"),
];

/// Facts about a kit that the last step needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kit {
    /// Code name of the Debian release.
    pub(super) suite: String,
    pub(super) kernel_version: String,
    /// SHA-256 of the uncompressed tree.
    pub(super) tree_sha256: Digest,
    /// Every package, sorted by name.
    pub(super) packages: Vec<PackageRecord>,
}

/// The recipe of the kit.
///
/// # Errors
///
/// None. A test parses the recipe.
pub(super) fn recipe() -> Result<Recipe, BuildError> {
    Ok(Recipe::parse("the kit of container images", RECIPE)?)
}

/// The kit from the cache, else built from packages.
pub(super) fn kit(
    store: &Store,
    guard: &Guard,
    (recipe, guest): (&Recipe, &GuestRecipe),
    options: &debian::Options<'_>,
    reporter: &mut Reporter<'_>,
) -> Result<Layer<Kit>, BuildError> {
    let packages = debian::packages(store, guard, recipe, options, reporter)?;
    let what = serde_json::json!({
        "builder": digest::of_texts(BUILDER),
        "packages": packages.digest,
        "kernel": guest.kernel,
    });
    let key = digest::of_bytes(what.to_string().as_bytes());
    if let Some(layer) = store.layer(&recipe.name, KIND, &key) {
        return Ok(layer);
    }
    need_disk_space(store.root(), WORK_MIB)?;
    let work = store.work_dir(guard)?;
    let dir = |name: &str| {
        let dir = work.path().join(name);
        fs::create_dir(&dir).at("create", &dir).map(|()| dir)
    };
    let (full, tree, out) = (dir("full")?, dir("tree")?, dir("out")?);
    let manifest = make((recipe, guest), &packages, &full, &tree, &out, reporter)?;
    Ok(store.publish_layer(guard, (&recipe.name, KIND, &key), &out, &manifest)?)
}

fn make(
    (recipe, guest): (&Recipe, &GuestRecipe),
    packages: &Layer<Packages>,
    full: &Path,
    tree: &Path,
    out: &Path,
    reporter: &mut Reporter<'_>,
) -> Result<LayerManifest<Kit>, BuildError> {
    debian::unpack(packages, full, reporter)?;
    let kernel_version = kernel::extract(&guest.kernel, full, out, reporter)?;
    reporter.begin(Step::Configure, "tools");
    let root = Root(tree);
    root.directory("neonvm/root", 0o755)?;
    let programs = RuntimeRecipe {
        qemu_at_least: 0,
        programs: PROGRAMS.iter().map(|path| (*path).to_owned()).collect(),
        keep: Vec::new(),
        firmware: Vec::new(),
        modules: "none".to_owned(),
    };
    runtime::select(recipe, &programs, full, &tree.join("neonvm/root"), reporter)?;
    let loader = tree.join("neonvm/root").join(LOADER);
    if !loader.symlink_metadata().is_ok_and(|meta| meta.is_file()) {
        return Err(BuildError::NotInPackages {
            path: format!("/{LOADER}"),
            why: "to start the tools of a guest".into(),
        });
    }
    let busybox = full.join("usr/bin/busybox");
    let list = sandbox::reading(full, &busybox, "listing busybox's commands")?;
    let list = list.arg("--list").output(reporter)?;
    let content = fs::read(&busybox).at("read", &busybox)?;
    root.put("neonvm/bin/busybox", &content, 0o755)?;
    for name in list
        .lines()
        .filter(|name| *name != "busybox" && !name.contains('/'))
    {
        let link = tree.join("neonvm/bin").join(name);
        symlink("busybox", &link).at("link", &link)?;
    }
    for program in PROGRAMS {
        let name = program.rsplit('/').next().unwrap_or(program);
        root.put(
            &format!("neonvm/bin/{name}"),
            wrapper(program).as_bytes(),
            0o755,
        )?;
    }
    modules(full, root)?;
    normalise::settle_tree(tree)?;
    let tree_sha256 = normalise::pack(tree, &out.join(TREE), reporter)?;
    let mut files = BTreeMap::new();
    for name in [TREE, crate::guest::KERNEL, crate::guest::INITRD] {
        let path = out.join(name);
        files.insert(
            name.to_owned(),
            digest::of_file(&path, &mut |_| {}).at("read", &path)?,
        );
        reporter.tick();
    }
    let Packages { suite, packages } = packages.manifest.facts.clone();
    let facts = Kit {
        suite,
        kernel_version,
        tree_sha256,
        packages,
    };
    Ok(LayerManifest { files, facts })
}

/// Script that runs a program with the kit's loader. sshd starts itself for each connection by the
/// name it was called by.
fn wrapper(program: &str) -> String {
    let name = program.rsplit('/').next().unwrap_or(program);
    let (root, libraries) = ("/neonvm/root", runtime::LIBRARIES);
    format!(
        "#!/neonvm/bin/sh\nexec {root}/{LOADER} --argv0 /neonvm/bin/{name} --inhibit-cache \\\n    \
         --library-path {root}/{libraries} {root}/{program} \"$@\"\n",
    )
}

/// Copies the kernel modules that are loaded after boot, and their order.
fn modules(full: &Path, root: Root<'_>) -> Result<(), BuildError> {
    let from = full.join(kernel::MODULES);
    for entry in fs::read_dir(&from).at("list", &from)? {
        let path = entry.at("list", &from)?.path();
        let content = fs::read(&path).at("read", &path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        root.put(&format!("neonvm/lib/modules/{name}"), &content, 0o644)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: N46
    #[test]
    fn the_kits_recipe_is_a_guest_with_programs_of_ours_under_neonvm() {
        let recipe = recipe().unwrap();
        let guest = recipe.guest().unwrap();
        assert!(
            guest
                .binaries
                .iter()
                .all(|binary| binary.path.starts_with("/neonvm/bin/"))
        );
        assert!(guest.kernel.modules.iter().any(|module| module == "isofs"));
        assert!(guest.postgres.is_none());
    }

    /// Requirement: N46
    #[test]
    fn tools_use_nothing_of_the_image() {
        let text = wrapper("usr/sbin/sshd");
        assert!(
            text.starts_with(
                "#!/neonvm/bin/sh\nexec /neonvm/root/usr/lib/x86_64-linux-gnu/ld-linux"
            ),
            "{text}"
        );
        assert!(text.contains("--argv0 /neonvm/bin/sshd"), "{text}");
        assert!(
            !text.contains(" /usr/") && !text.contains(" /lib/"),
            "{text}"
        );
    }
}
