//! Extracts the kernel and the recipe's modules, with their dependencies, from the kernel package.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{BuildError, IoContext};
use crate::initrd::{self, Entry};
use crate::progress::{Reporter, Step};
use crate::recipe::KernelRecipe;
use crate::tool::{EPOCH, Tool};

/// Directory of the modules in the guest.
pub(crate) const MODULES: &str = "usr/lib/bellows/modules";

/// File with the modules in loading order.
const ORDER: &str = "order";

/// File with the modules that a service loads later.
const LATE: &str = "late";

/// Extracts kernel and modules from `root`, writes `vmlinuz` and `initrd.cpio` to `out`, and
/// returns the version.
///
/// Afterwards `root` holds only the modules that are loaded after boot, below [`MODULES`].
pub(crate) fn extract(
    recipe: &KernelRecipe,
    root: &Path,
    out: &Path,
    reporter: &mut Reporter<'_>,
) -> Result<String, BuildError> {
    let version = version(root)?;
    reporter.begin(Step::Kernel, &version);
    let kernel = root.join(format!("boot/vmlinuz-{version}"));
    let vmlinuz = out.join("vmlinuz");
    fs::copy(&kernel, &vmlinuz).at("copy", &kernel)?;
    let index = Tool::new("depmod", "ordering kernel modules");
    index.arg("-b").arg(root).arg(&version).run(reporter)?;
    let boot = closure(&recipe.boot_modules, root, &version, reporter)?;
    let mut later = closure(&recipe.modules, root, &version, reporter)?;
    later.retain(|path| !boot.contains(path));
    let mut late = closure(&recipe.late_modules, root, &version, reporter)?;
    late.retain(|path| !boot.contains(path) && !later.contains(path));
    let boot = load(&boot, reporter)?;
    let later = load(&later, reporter)?;
    let late = load(&late, reporter)?;
    let all = root.join("usr/lib/modules");
    fs::remove_dir_all(&all).at("remove", &all)?;
    store_modules(&later, &root.join(MODULES), ORDER)?;
    store_modules(&late, &root.join(MODULES), LATE)?;
    let busybox = root.join("usr/bin/busybox");
    let busybox = fs::read(&busybox).map_err(|_| BuildError::NotInPackages {
        path: "/usr/bin/busybox".into(),
        why: "as init and shell of the guest".into(),
    })?;
    let initrd = out.join("initrd.cpio");
    fs::write(&initrd, ram_disk(boot, busybox)).at("write", &initrd)?;
    Ok(version)
}

/// A module's file name without compression, and its content.
type Module = (String, Vec<u8>);

fn version(root: &Path) -> Result<String, BuildError> {
    let modules = root.join("usr/lib/modules");
    let mut versions: Vec<_> = fs::read_dir(&modules)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            entry
                .ok()
                .map(|e| e.file_name().to_string_lossy().into_owned())
        })
        .collect();
    versions.sort();
    versions.pop().ok_or_else(|| BuildError::NotInPackages {
        path: "/lib/modules/<version>".into(),
        why: "as the guest's kernel".into(),
    })
}

/// The modules with their dependencies, dependencies first.
fn closure(
    names: &[String],
    root: &Path,
    version: &str,
    reporter: &mut Reporter<'_>,
) -> Result<Vec<PathBuf>, BuildError> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for name in names {
        let show = Tool::new("modprobe", format!("looking for the kernel module {name}"))
            .arg("-d")
            .arg(root)
            .args(["-S", version, "--show-depends", name]);
        let text = show.output(reporter).map_err(|error| match error {
            BuildError::ToolFailed { .. } => BuildError::NotInPackages {
                path: format!("kernel module {name}"),
                why: "by guest.kernel of the recipe".into(),
            },
            other => other,
        })?;
        for path in parse_depends(&text) {
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
    }
    Ok(paths)
}

/// Lines are `insmod PATH [OPTIONS]` or `builtin NAME`.
fn parse_depends(text: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        line.strip_prefix("insmod ")?
            .split_whitespace()
            .next()
            .map(PathBuf::from)
    };
    text.lines().filter_map(path).collect()
}

fn load(paths: &[PathBuf], reporter: &mut Reporter<'_>) -> Result<Vec<Module>, BuildError> {
    let mut modules = Vec::with_capacity(paths.len());
    for path in paths {
        let file = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let bytes = fs::read(path).at("read", path)?;
        modules.push(if let Some(name) = file.strip_suffix(".xz") {
            (name.to_owned(), unxz(path, reporter)?)
        } else if let Some(name) = file.strip_suffix(".zst") {
            (
                name.to_owned(),
                zstd::decode_all(bytes.as_slice()).at("decompress", path)?,
            )
        } else {
            (file, bytes)
        });
    }
    Ok(modules)
}

fn unxz(path: &Path, reporter: &mut Reporter<'_>) -> Result<Vec<u8>, BuildError> {
    let plain = path.with_extension("");
    Tool::new("xz", "opening a kernel module")
        .args(["-d", "-k", "-f"])
        .arg(path)
        .run(reporter)?;
    fs::read(&plain).at("read", &plain)
}

fn order(modules: &[Module]) -> String {
    modules
        .iter()
        .flat_map(|(name, _)| [name.as_str(), "\n"])
        .collect()
}

fn store_modules(modules: &[Module], dir: &Path, list: &str) -> Result<(), BuildError> {
    fs::create_dir_all(dir).at("create", dir)?;
    for (name, content) in modules {
        let path = dir.join(name);
        fs::write(&path, content).at("write", &path)?;
    }
    let path = dir.join(list);
    fs::write(&path, order(modules)).at("write", &path)
}

fn ram_disk(modules: Vec<Module>, busybox: Vec<u8>) -> Vec<u8> {
    let mut entries = BTreeMap::new();
    for dir in ["bin", "dev", "modules", "new", "proc"] {
        entries.insert(dir.to_owned(), Entry::Dir);
    }
    let order = order(&modules).into_bytes();
    entries.insert(format!("modules/{ORDER}"), Entry::File(0o644, order));
    for (name, content) in modules {
        entries.insert(format!("modules/{name}"), Entry::File(0o644, content));
    }
    entries.insert("bin/busybox".to_owned(), Entry::File(0o755, busybox));
    entries.insert("bin/sh".to_owned(), Entry::Link("busybox".to_owned()));
    // The kernel opens it for init before anything is mounted.
    entries.insert("dev/console".to_owned(), Entry::Device(5, 1));
    let init = include_bytes!("../guest/initrd-init.sh").to_vec();
    entries.insert("init".to_owned(), Entry::File(0o755, init));
    initrd::archive(&entries, u32::try_from(EPOCH).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: N46
    #[test]
    fn module_lists_are_read_in_loading_order() {
        let text =
            "insmod /r/lib/modules/6.1/a.ko \nbuiltin ext4\ninsmod /r/lib/modules/6.1/b.ko x=1\n";
        let expected = ["/r/lib/modules/6.1/a.ko", "/r/lib/modules/6.1/b.ko"].map(PathBuf::from);
        assert_eq!(parse_depends(text), expected);
        let modules = [("a.ko".to_owned(), vec![1]), ("b.ko".to_owned(), vec![2])];
        assert_eq!(order(&modules), "a.ko\nb.ko\n");
    }
}
