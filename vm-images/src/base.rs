//! The base layer of a guest: unpacked packages without kernel and unneeded files, users, and a
//! filled database.
//!
//! It holds no program of this project, so a new monitor or service does not rebuild it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use protocol::image::{Digest, PackageRecord};
use serde::{Deserialize, Serialize};

use crate::debian::{self, Packages};
use crate::digest;
use crate::error::{BuildError, IoContext, need_disk_space};
use crate::kernel;
use crate::normalise;
use crate::paths;
use crate::postgres;
use crate::progress::{Reporter, Step};
use crate::recipe::{GuestRecipe, Recipe, UserRecipe};
use crate::sandbox::{Identity, Sandbox};
use crate::store::{Guard, Layer, LayerManifest, Store};

const KIND: &str = "base";

pub(crate) const TREE: &str = "base.tar.zst";

/// Space in MiB that a build of the layer needs: unpacked packages, database and packed result.
const WORK_MIB: u64 = 1536;

/// Sources of the code that makes this layer. A change of them makes another layer.
const BUILDER: &[&str] = &[
    include_str!("base.rs"),
    include_str!("debian.rs"),
    include_str!("initrd.rs"),
    include_str!("kernel.rs"),
    include_str!("normalise.rs"),
    include_str!("paths.rs"),
    include_str!("postgres.rs"),
    include_str!("postgres/control.rs"),
    include_str!("sandbox.rs"),
    include_str!("sandbox/cell.rs"),
    include_str!("sandbox/filter.rs"),
    include_str!("sandbox/owners.rs"),
    include_str!("../guest/initrd-init.sh"),
    include_str!("../guest/pg_hba.conf"),
];

/// Facts about a base layer that the last step needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Base {
    /// Code name of the Debian release.
    pub(crate) suite: String,
    pub(crate) kernel_version: String,
    /// SHA-256 of the uncompressed tree.
    pub(crate) tree_sha256: Digest,
    /// Every package, sorted by name.
    pub(crate) packages: Vec<PackageRecord>,
    /// Files that differ from build to build.
    pub(crate) unreproducible: Vec<String>,
}

/// The base layer from the cache, else built from `packages`.
pub(crate) fn base(
    store: &Store,
    guard: &Guard,
    recipe: &Recipe,
    guest: &GuestRecipe,
    packages: &Layer<Packages>,
    reporter: &mut Reporter<'_>,
) -> Result<Layer<Base>, BuildError> {
    let key = key(recipe, guest, &packages.digest);
    if let Some(layer) = store.layer(&recipe.name, KIND, &key) {
        return Ok(layer);
    }
    need_disk_space(store.root(), WORK_MIB)?;
    let work = store.work_dir(guard)?;
    let (root, out) = (work.path().join("root"), work.path().join("out"));
    for dir in [&root, &out] {
        fs::create_dir(dir).at("create", dir)?;
    }
    let manifest = make(recipe, guest, packages, &root, &out, reporter)?;
    Ok(store.publish_layer(guard, (&recipe.name, KIND, &key), &out, &manifest)?)
}

fn key(recipe: &Recipe, guest: &GuestRecipe, packages: &Digest) -> Digest {
    let what = serde_json::json!({
        "builder": digest::of_texts(BUILDER),
        "packages": packages,
        "prune": recipe.prune,
        "boot_modules": guest.kernel.boot_modules,
        "modules": guest.kernel.modules,
        "late_modules": guest.kernel.late_modules,
        "users": guest.users,
        "postgres": guest.postgres,
    });
    digest::of_bytes(what.to_string().as_bytes())
}

/// Builds the layer in `out`, with `root` as the tree.
pub(crate) fn make(
    recipe: &Recipe,
    guest: &GuestRecipe,
    packages: &Layer<Packages>,
    root: &Path,
    out: &Path,
    reporter: &mut Reporter<'_>,
) -> Result<LayerManifest<Base>, BuildError> {
    debian::unpack(packages, root, reporter)?;
    let kernel_version = kernel::extract(&guest.kernel, root, out, reporter)?;
    reporter.begin(Step::Configure, "");
    for pattern in &recipe.prune {
        for path in paths::expand(root, pattern) {
            paths::remove(&path)?;
        }
    }
    directories(root)?;
    users(root, &guest.users)?;
    commands(root, reporter)?;
    let mut unreproducible = Vec::new();
    if let Some(database) = &guest.postgres {
        unreproducible = postgres::create(database, &guest.users, root, reporter)?;
    }
    let tree_sha256 = normalise::pack(root, &out.join(TREE), reporter)?;
    reporter.begin(Step::Hash, KIND);
    let mut files = BTreeMap::new();
    for name in [TREE, "vmlinuz", "initrd.cpio"] {
        let path = out.join(name);
        let record = digest::of_file(&path, &mut |_| {}).at("read", &path)?;
        reporter.tick();
        files.insert(name.to_owned(), record);
    }
    let Packages { suite, packages } = packages.manifest.facts.clone();
    let facts = Base {
        suite,
        kernel_version,
        tree_sha256,
        packages,
        unreproducible,
    };
    Ok(LayerManifest { files, facts })
}

/// Creates the directories that maintainer scripts or removed packages would have created.
fn directories(root: &Path) -> Result<(), BuildError> {
    const MODES: &[(&str, u32)] = &[
        ("dev", 0o755),
        ("etc/bellows/services", 0o755),
        ("mnt/ssh", 0o700),
        ("proc", 0o555),
        ("root", 0o700),
        ("run", 0o755),
        ("srv", 0o755),
        ("sys", 0o555),
        ("tmp", 0o1777),
        ("usr/lib/bellows", 0o755),
        ("usr/local/bin", 0o755),
        ("var/cache", 0o755),
        ("var/log", 0o755),
        ("var/tmp", 0o1777),
    ];
    for (name, mode) in MODES {
        let dir = root.join(name);
        fs::create_dir_all(&dir).at("create", &dir)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(*mode))
            .at("change the mode of", &dir)?;
    }
    let run = root.join("var/run");
    if run.symlink_metadata().is_err() {
        symlink("/run", &run).at("link", &run)?;
    }
    Ok(())
}

/// Creates Debian's users and the recipe's. None has a password. root's shell is one that exists.
fn users(root: &Path, users: &[UserRecipe]) -> Result<(), BuildError> {
    let master = |name: &str| {
        let path = root.join(format!("usr/share/base-passwd/{name}.master"));
        fs::read_to_string(path).map_err(|_| BuildError::NotInPackages {
            path: format!("/usr/share/base-passwd/{name}.master"),
            why: "as the list of system users (package base-passwd)".into(),
        })
    };
    let (mut passwd, mut group) = (master("passwd")?, master("group")?);
    passwd = passwd.replace("/bin/bash", "/bin/sh");
    for UserRecipe { name, id, home } in users {
        passwd += &format!("{name}:*:{id}:{id}:{name}:{home}:/usr/sbin/nologin\n");
        group += &format!("{name}:*:{id}:\n");
    }
    for (name, text) in [("passwd", passwd), ("group", group)] {
        let path = root.join("etc").join(name);
        fs::write(&path, text).at("write", &path)?;
    }
    Ok(())
}

/// Links busybox to every command that no package has.
fn commands(root: &Path, reporter: &mut Reporter<'_>) -> Result<(), BuildError> {
    let sandbox = Sandbox::open(root)?;
    let list = sandbox
        .tool(
            &Identity::default(),
            "/usr/bin/busybox",
            "listing busybox's commands",
        )?
        .arg("--list")
        .output(reporter)?;
    sandbox.close()?;
    for name in list.lines() {
        let taken = ["usr/bin", "usr/sbin"]
            .iter()
            .any(|dir| root.join(dir).join(name).symlink_metadata().is_ok());
        if !taken {
            let link = root.join("usr/bin").join(name);
            symlink("busybox", &link).at("link", &link)?;
        }
    }
    // The kernel and init look for these programs at their traditional paths.
    for name in [
        "init", "getty", "poweroff", "reboot", "halt", "acpid", "syslogd",
    ] {
        let link = root.join("usr/sbin").join(name);
        if link.symlink_metadata().is_err() {
            symlink("../bin/busybox", &link).at("link", &link)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: N46
    #[test]
    fn users_get_no_password_and_a_shell_that_exists() {
        let dir = tempfile::tempdir().unwrap();
        let master = dir.path().join("usr/share/base-passwd");
        fs::create_dir_all(&master).unwrap();
        fs::create_dir_all(dir.path().join("etc")).unwrap();
        assert!(matches!(
            users(dir.path(), &[]),
            Err(BuildError::NotInPackages { .. })
        ));
        fs::write(
            master.join("passwd.master"),
            "root:*:0:0:root:/root:/bin/bash\n",
        )
        .unwrap();
        fs::write(master.join("group.master"), "root:*:0:\n").unwrap();
        let user = UserRecipe {
            name: "sshd".into(),
            id: 111,
            home: "/run/sshd".into(),
        };
        users(dir.path(), &[user]).unwrap();
        let passwd = fs::read_to_string(dir.path().join("etc/passwd")).unwrap();
        assert_eq!(
            passwd,
            "root:*:0:0:root:/root:/bin/sh\nsshd:*:111:111:sshd:/run/sshd:/usr/sbin/nologin\n"
        );
        let group = fs::read_to_string(dir.path().join("etc/group")).unwrap();
        assert_eq!(group, "root:*:0:\nsshd:*:111:\n");
    }

    /// Requirement: N46
    #[test]
    fn the_base_key_ignores_services_but_not_the_database() {
        let recipe = Recipe::load("bellows/postgres:15").unwrap();
        let guest = recipe.guest().unwrap().clone();
        let packages = digest::of_bytes(b"packages");
        let base = key(&recipe, &guest, &packages);
        let mut other = guest.clone();
        other.services.clear();
        other.sysctl.clear();
        other.disk_mib += 1;
        assert_eq!(key(&recipe, &other, &packages), base);
        other.postgres.as_mut().unwrap().bench_scale += 1;
        assert_ne!(key(&recipe, &other, &packages), base);
        assert_ne!(key(&recipe, &guest, &digest::of_bytes(b"newer")), base);
    }
}
