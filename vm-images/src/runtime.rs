//! The runtime artefact: programs with their libraries, firmware and dynamic loader.
//!
//! Each program has a wrapper in `bin/`. It starts the program with the loader of the tree, so that
//! neither the host's libraries nor a chroot are needed. The tree is also a root file system for a
//! container.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use protocol::image::{FileRecord, ImageContent, ImageManifest, MANIFEST_FORMAT, RuntimeContent};

use crate::debian::{self, ARCHITECTURE, Packages};
use crate::digest;
use crate::error::{BuildError, IoContext, need_disk_space};
use crate::normalise;
use crate::paths;
use crate::progress::{Amount, Reporter, Step};
use crate::recipe::{Recipe, RuntimeRecipe};
use crate::sandbox;
use crate::store::{Guard, Image, Layer, Store};

/// Path of the dynamic loader in a tree.
const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";

/// Directory of the libraries in a tree. The loader searches no other.
pub(crate) const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// Name of the tree in the artefact.
const ROOT: &str = "root";

/// Space in MiB that a build of a runtime needs.
const WORK_MIB: u64 = 768;

/// Sources of the code that makes a runtime. A change of them makes another artefact.
const BUILDER: &[&str] = &[
    include_str!("runtime.rs"),
    include_str!("debian.rs"),
    include_str!("paths.rs"),
];

/// Builds the runtime, unless the newest one has the same inputs.
pub(crate) fn build(
    store: &Store,
    guard: &Guard,
    (recipe, runtime): (&Recipe, &RuntimeRecipe),
    packages: &Layer<Packages>,
    reporter: &mut Reporter<'_>,
) -> Result<Image, BuildError> {
    let what = serde_json::json!({
        "builder": digest::of_texts(BUILDER),
        "recipe": recipe.sha256,
        "packages": packages.digest,
    });
    let key = digest::of_bytes(what.to_string().as_bytes());
    if let Some(image) = store.current(&recipe.name, &key) {
        return Ok(image);
    }
    need_disk_space(store.root(), WORK_MIB)?;
    let work = store.work_dir(guard)?;
    let out = work.path().join("out");
    let (content, files) = make(recipe, runtime, packages, work.path(), &out, reporter)?;
    let Packages { suite, packages } = packages.manifest.facts.clone();
    let manifest = ImageManifest {
        format: MANIFEST_FORMAT,
        name: recipe.name.clone(),
        architecture: ARCHITECTURE.to_owned(),
        suite,
        recipe_sha256: recipe.sha256.clone(),
        files,
        packages,
        inputs: BTreeMap::new(),
        reproducible: true,
        unreproducible: Vec::new(),
        content: ImageContent::Runtime(content),
    };
    reporter.begin(Step::Publish, &recipe.name);
    Ok(store.publish(guard, &key, &out, &manifest)?)
}

/// Makes the artefact in `out`, without its manifest.
fn make(
    recipe: &Recipe,
    runtime: &RuntimeRecipe,
    packages: &Layer<Packages>,
    work: &Path,
    out: &Path,
    reporter: &mut Reporter<'_>,
) -> Result<(RuntimeContent, BTreeMap<String, FileRecord>), BuildError> {
    let full = work.join("full");
    let (root, bin) = (out.join(ROOT), out.join("bin"));
    for dir in [&full, out, &root, &bin] {
        fs::create_dir(dir).at("create", dir)?;
    }
    debian::unpack(packages, &full, reporter)?;
    reporter.begin(Step::Configure, &recipe.name);
    select(recipe, runtime, &full, &root, reporter)?;
    let mut programs = BTreeMap::new();
    let mut files = BTreeMap::new();
    for program in &runtime.programs {
        let name = program.rsplit('/').next().unwrap_or(program).to_owned();
        let path = format!("bin/{name}");
        files.insert(path.clone(), wrapper(&out.join(&path), program, runtime)?);
        programs.insert(name, path);
    }
    let qemu_version = version(out, &programs, runtime, reporter)?;
    normalise::settle_tree(out)?;
    reporter.begin(Step::Hash, "");
    let progress = &mut |done| reporter.amount(Amount::Bytes(done));
    let (root_sha256, root_bytes) = digest::of_tree(&root, progress).at("read", &root)?;
    let root = ROOT.to_owned();
    Ok((
        RuntimeContent {
            root,
            root_sha256,
            root_bytes,
            qemu_version,
            programs,
        },
        files,
    ))
}

/// Copies programs, modules, firmware and all their libraries from `full` to `root`.
pub(crate) fn select(
    recipe: &Recipe,
    runtime: &RuntimeRecipe,
    full: &Path,
    root: &Path,
    reporter: &mut Reporter<'_>,
) -> Result<(), BuildError> {
    for name in ["bin", "lib", "lib64", "sbin"] {
        let link = root.join(name);
        symlink(format!("usr/{name}"), &link).at("link", &link)?;
    }
    let mut wanted = BTreeSet::from([PathBuf::from(LOADER)]);
    for pattern in &runtime.keep {
        for path in paths::expand(full, pattern) {
            collect(full, &path, &mut wanted)?;
        }
    }
    let mut objects: Vec<PathBuf> = Vec::new();
    for program in &runtime.programs {
        if !full.join(program).exists() {
            let why = format!("as a program of {}", recipe.name);
            return Err(BuildError::NotInPackages {
                path: format!("/{program}"),
                why,
            });
        }
        objects.push(PathBuf::from(program));
    }
    let modules = full.join(&runtime.modules);
    if modules.exists() {
        let mut found = BTreeSet::new();
        collect(full, &modules, &mut found)?;
        objects.extend(
            found
                .into_iter()
                .filter(|p| p.extension().is_some_and(|e| e == "so")),
        );
    }
    for object in &objects {
        wanted.extend(libraries(full, object, reporter)?);
    }
    wanted.extend(objects);
    for path in wanted {
        copy(full, &path, root)?;
    }
    Ok(())
}

/// Adds everything below a path to `wanted`, relative to `full`.
fn collect(full: &Path, path: &Path, wanted: &mut BTreeSet<PathBuf>) -> Result<(), BuildError> {
    if path.symlink_metadata().at("read", path)?.is_dir() {
        for entry in fs::read_dir(path).at("list", path)? {
            collect(full, &entry.at("list", path)?.path(), wanted)?;
        }
    } else if let Ok(relative) = path.strip_prefix(full) {
        wanted.insert(relative.to_owned());
    }
    Ok(())
}

/// Libraries of an object, as the tree's loader finds them.
fn libraries(
    full: &Path,
    object: &Path,
    reporter: &mut Reporter<'_>,
) -> Result<Vec<PathBuf>, BuildError> {
    let loader = full.join(LOADER);
    let list = sandbox::reading(
        full,
        &loader,
        format!("looking for libraries of {}", object.display()),
    )?
    .arg("--library-path")
    .arg(full.join(LIBRARIES))
    .arg("--list")
    .arg(full.join(object))
    .output(reporter)?;
    let mut found = Vec::new();
    for line in list.lines() {
        let Some(path) = parse_library(line) else {
            continue;
        };
        match path.strip_prefix(full) {
            Ok(inside) => found.push(inside.to_owned()),
            // A library outside the tree or nowhere: a package is missing.
            Err(_) if line.contains("not found") || !path.starts_with("/lib64") => {
                return Err(BuildError::NotInPackages {
                    path: path.display().to_string(),
                    why: format!("by {}", object.display()),
                });
            }
            Err(_) => {}
        }
    }
    Ok(found)
}

/// Parses `name => path (address)`, `name => not found` and `path (address)`. The kernel's own
/// object has no path.
fn parse_library(line: &str) -> Option<PathBuf> {
    let line = line.trim();
    if let Some((name, target)) = line.split_once(" => ") {
        let target = if target.starts_with("not found") {
            name
        } else {
            target
        };
        return Some(PathBuf::from(target.split(" (").next()?));
    }
    line.starts_with('/')
        .then(|| line.split(" (").next().map(PathBuf::from))?
}

/// Copies a path, and its target if it is a link. Links stay links.
fn copy(full: &Path, relative: &Path, root: &Path) -> Result<(), BuildError> {
    // Most links in a chain, as in the kernel.
    const MOST_LINKS: usize = 40;
    let mut relative = settle_prefix(relative);
    for _ in 0..MOST_LINKS {
        let (source, target) = (full.join(&relative), root.join(&relative));
        if target.symlink_metadata().is_ok() {
            return Ok(());
        }
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).at("create", parent)?;
        }
        let meta = source.symlink_metadata().at("read", &source)?;
        if !meta.is_symlink() {
            fs::copy(&source, &target).at("copy", &source)?;
            return Ok(());
        }
        let points_to = fs::read_link(&source).at("read", &source)?;
        symlink(&points_to, &target).at("link", &target)?;
        let next = match points_to.strip_prefix("/") {
            Ok(inside) => inside.to_owned(),
            Err(_) => relative.parent().unwrap_or(Path::new("")).join(&points_to),
        };
        relative = settle_prefix(&next);
        if !full.join(&relative).exists() {
            return Ok(());
        }
    }
    Ok(())
}

/// Resolves `..`, and writes `lib/...` as `usr/lib/...`, which is the same place.
fn settle_prefix(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(clean.pop()),
            Component::Normal(name) => clean.push(name),
            _ => {}
        }
    }
    match clean.components().next() {
        Some(Component::Normal(first))
            if ["bin", "lib", "lib64", "sbin"].iter().any(|n| first == *n) =>
        {
            Path::new("usr").join(clean)
        }
        _ => clean,
    }
}

/// Script that runs a program with the tree's loader.
fn wrapper(path: &Path, program: &str, runtime: &RuntimeRecipe) -> Result<FileRecord, BuildError> {
    let text = wrapper_text(program, runtime);
    fs::write(path, &text).at("write", path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).at("change the mode of", path)?;
    Ok(FileRecord {
        bytes: text.len() as u64,
        sha256: digest::of_bytes(text.as_bytes()),
    })
}

fn wrapper_text(program: &str, runtime: &RuntimeRecipe) -> String {
    let name = program.rsplit('/').next().unwrap_or(program);
    // Only the emulator has a firmware path.
    let firmware: String = if name.starts_with("qemu-system-") {
        runtime
            .firmware
            .iter()
            .map(|dir| format!(" -L \"$root/{dir}\""))
            .collect()
    } else {
        String::new()
    };
    format!(
        "#!/bin/sh\n\
         # Runs {name} with the libraries beside it, whatever the host has.\n\
         self=$(readlink -f \"$0\")\n\
         root=${{self%/bin/*}}/{ROOT}\n\
         QEMU_MODULE_DIR=$root/{modules}\n\
         export QEMU_MODULE_DIR\n\
         unset LD_LIBRARY_PATH LD_PRELOAD\n\
         exec \"$root/{LOADER}\" --inhibit-cache --library-path \"$root/{LIBRARIES}\" --argv0 {name} \\\n    \
         \"$root/{program}\"{firmware} \"$@\"\n",
        modules = runtime.modules,
    )
}

/// Runs the wrappers as a test, and returns QEMU's version.
fn version(
    out: &Path,
    programs: &BTreeMap<String, String>,
    runtime: &RuntimeRecipe,
    reporter: &mut Reporter<'_>,
) -> Result<String, BuildError> {
    let mut found = String::new();
    for (name, path) in programs {
        let path = out.join(path);
        let run = sandbox::reading(out, &path, format!("trying {name}"))?;
        let text = run.arg("--version").output(reporter)?;
        if !name.starts_with("qemu-") {
            continue;
        }
        found = parse_version(&text).ok_or_else(|| BuildError::Format {
            path,
            expected: "QEMU program",
            problem: format!(
                "its version is {:?}",
                text.lines().next().unwrap_or_default()
            ),
        })?;
    }
    let major = found
        .split('.')
        .next()
        .and_then(|n| n.parse::<u32>().ok())
        .unwrap_or(0);
    if major < runtime.qemu_at_least {
        return Err(BuildError::QemuTooOld {
            found,
            needed: runtime.qemu_at_least,
        });
    }
    Ok(found)
}

/// Parses `QEMU emulator version 10.0.2 (...)` and `qemu-img version 10.0.2 (...)`.
fn parse_version(text: &str) -> Option<String> {
    let (_, rest) = text.lines().next()?.split_once(" version ")?;
    let number: String = rest
        .chars()
        .take_while(|c| c.is_ascii_digit() || *c == '.')
        .collect();
    (!number.is_empty()).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: N46
    #[test]
    fn the_loaders_list_is_read() {
        let path = |line| parse_library(line).map(|p| p.display().to_string());
        assert_eq!(path("\tlinux-vdso.so.1 (0x00007ffd)"), None);
        assert_eq!(
            path("\tlibz.so.1 => /t/usr/lib/libz.so.1 (0x1)").unwrap(),
            "/t/usr/lib/libz.so.1"
        );
        assert_eq!(path("\tlibgone.so.1 => not found").unwrap(), "libgone.so.1");
        assert_eq!(
            path("\t/lib64/ld-linux-x86-64.so.2 (0x2)").unwrap(),
            "/lib64/ld-linux-x86-64.so.2"
        );
        assert_eq!(path("\tstatically linked"), None);
    }

    /// Requirement: N46
    #[test]
    fn versions_are_read() {
        let text = "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)\nCopyright";
        assert_eq!(parse_version(text).unwrap(), "10.0.2");
        assert_eq!(parse_version("qemu-img version 7.2.1\n").unwrap(), "7.2.1");
        assert_eq!(parse_version("hello"), None);
    }

    /// Requirement: N46
    #[test]
    fn links_are_copied_with_what_they_point_to() {
        let dir = tempfile::tempdir().unwrap();
        let (full, root) = (dir.path().join("full"), dir.path().join("root"));
        fs::create_dir_all(full.join("usr/lib/x")).unwrap();
        fs::create_dir(&root).unwrap();
        fs::write(full.join("usr/lib/x/liba.so.1.2"), "a").unwrap();
        symlink("liba.so.1.2", full.join("usr/lib/x/liba.so.1")).unwrap();
        symlink("/lib/x/liba.so.1", full.join("usr/lib/liba.so")).unwrap();
        symlink("../../etc/gone", full.join("usr/lib/dangling")).unwrap();
        copy(&full, Path::new("lib/liba.so"), &root).unwrap();
        copy(&full, Path::new("usr/lib/dangling"), &root).unwrap();
        assert_eq!(fs::read(root.join("usr/lib/x/liba.so.1")).unwrap(), b"a");
        assert_eq!(
            fs::read_link(root.join("usr/lib/liba.so")).unwrap(),
            Path::new("/lib/x/liba.so.1")
        );
    }

    /// Requirement: N46
    #[test]
    fn the_wrapper_uses_nothing_of_the_host() {
        let recipe = Recipe::load("bellows/qemu").unwrap();
        let crate::RecipeContent::Runtime(runtime) = recipe.content else {
            panic!("not a runtime")
        };
        let text = wrapper_text(&runtime.programs[0], &runtime);
        assert!(text.contains("--argv0 qemu-system-x86_64"), "{text}");
        assert!(
            text.contains("-L \"$root/usr/share/qemu\" -L \"$root/usr/share/seabios\" \"$@\""),
            "{text}"
        );
        assert!(!wrapper_text("usr/bin/qemu-img", &runtime).contains("-L "));
    }
}
