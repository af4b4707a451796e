//! The last step of a guest image: base layer, scripts, programs, file system and manifest.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use protocol::image::{
    Digest, FileRecord, GuestContent, GuestPortRecord, ImageContent, ImageManifest, MANIFEST_FORMAT,
};

use crate::base::{Base, TREE};
use crate::binary;
use crate::debian::ARCHITECTURE;
use crate::digest;
use crate::error::{BuildError, IoContext};
use crate::ext4;
use crate::inputs::Inputs;
use crate::normalise;
use crate::postgres;
use crate::progress::{Amount, Reporter, Step};
use crate::recipe::{BinaryRecipe, GuestRecipe, Recipe, ServiceRecipe};
use crate::store::{Guard, Image, Layer, Store};

/// Scripts by their path in the guest.
pub(crate) const SCRIPTS: &[(&str, &str)] = &[
    (
        "etc/acpi/PWRF/00000080",
        include_str!("../guest/power-button.sh"),
    ),
    (
        "usr/lib/bellows/console",
        include_str!("../guest/console.sh"),
    ),
    (
        "usr/lib/bellows/log-port",
        include_str!("../guest/log-port.sh"),
    ),
    ("usr/lib/bellows/parts", include_str!("../guest/parts.sh")),
    (
        "usr/lib/bellows/postgres-password",
        include_str!("../guest/postgres-password.sh"),
    ),
    ("usr/lib/bellows/ready", include_str!("../guest/ready.sh")),
    ("usr/lib/bellows/say", include_str!("../guest/say.sh")),
    (
        "usr/lib/bellows/service",
        include_str!("../guest/service.sh"),
    ),
    (
        "usr/lib/bellows/shutdown",
        include_str!("../guest/shutdown.sh"),
    ),
    ("usr/lib/bellows/spec", include_str!("../guest/spec.sh")),
    ("usr/lib/bellows/sshd", include_str!("../guest/sshd.sh")),
    ("usr/lib/bellows/swap", include_str!("../guest/swap.sh")),
    (
        "usr/lib/bellows/sysinit",
        include_str!("../guest/sysinit.sh"),
    ),
    ("usr/lib/bellows/trial", include_str!("../guest/trial.sh")),
    (
        "usr/local/bin/resize-swap",
        include_str!("../guest/resize-swap.sh"),
    ),
];

/// Cgroup of everything that is not scaled.
pub(crate) const SYSTEM_GROUP: &str = "system";

/// Files in the artefact.
pub(crate) const ROOT_DISK: &str = "root.ext4";
pub(crate) const KERNEL: &str = "vmlinuz";
pub(crate) const INITRD: &str = "initrd.cpio";

/// Sources and texts of the last step. A change of them makes another image.
const BUILDER: &[&str] = &[
    include_str!("guest.rs"),
    include_str!("ext4.rs"),
    include_str!("normalise.rs"),
    include_str!("../guest/sshd_config"),
];

/// Content of our programs, by file name.
pub(crate) type Programs = BTreeMap<String, Vec<u8>>;

/// Reads the programs that the recipe wants from the given directory. Returns none without a
/// directory.
pub(crate) fn programs(guest: &GuestRecipe, inputs: &Inputs) -> Result<Programs, BuildError> {
    let Some(dir) = &inputs.guest_binaries else {
        return Ok(Programs::new());
    };
    let read = |wanted: &BinaryRecipe| {
        Ok((
            wanted.name.clone(),
            binary::read_static(&dir.join(&wanted.name))?,
        ))
    };
    guest.binaries.iter().map(read).collect()
}

/// Builds the image, unless the newest one has the same inputs.
pub(crate) fn build(
    store: &Store,
    guard: &Guard,
    (recipe, guest): (&Recipe, &GuestRecipe),
    base: &Layer<Base>,
    programs: &Programs,
    reporter: &mut Reporter<'_>,
) -> Result<Image, BuildError> {
    let inputs: BTreeMap<_, _> = programs
        .iter()
        .map(|(name, bytes)| (name.clone(), digest::of_bytes(bytes)))
        .collect();
    let key = key(recipe, guest, &base.digest, &inputs);
    if let Some(image) = store.current(&recipe.name, &key) {
        return Ok(image);
    }
    let work = store.work_dir(guard)?;
    let (root, out) = (work.path().join("root"), work.path().join("out"));
    for dir in [&root, &out] {
        fs::create_dir(dir).at("create", dir)?;
    }
    reporter.begin(Step::Assemble, "");
    normalise::unpack(&base.dir.join(TREE), &root, reporter)?;
    for (name, text) in files(guest) {
        let mode = if SCRIPTS.iter().any(|(script, _)| *script == name) {
            0o755
        } else {
            0o644
        };
        put(&root, &name, text.as_bytes(), mode)?;
    }
    for wanted in &guest.binaries {
        if let Some(content) = programs.get(&wanted.name) {
            put(&root, wanted.path.trim_start_matches('/'), content, 0o755)?;
        }
    }
    let files = finish(work.path(), guest.disk_mib, &base.dir, reporter)?;
    let manifest = manifest(recipe, guest, base, files, inputs);
    reporter.begin(Step::Publish, &recipe.name);
    Ok(store.publish(guard, &key, &out, &manifest)?)
}

/// Makes a disk of `disk_mib` MiB from the finished tree `root` of a working directory. Puts it
/// into `out` beside the boot files from `boots`, and returns their records.
pub(crate) fn finish(
    work: &Path,
    disk_mib: u32,
    boots: &Path,
    reporter: &mut Reporter<'_>,
) -> Result<BTreeMap<String, FileRecord>, BuildError> {
    let (root, out) = (work.join("root"), work.join("out"));
    normalise::settle_tree(&root)?;
    ext4::make(&root, &out.join(ROOT_DISK), disk_mib, work, reporter)?;
    for name in [KERNEL, INITRD] {
        let source = boots.join(name);
        fs::copy(&source, out.join(name)).at("copy", &source)?;
    }
    records(&out, reporter)
}

fn key(
    recipe: &Recipe,
    guest: &GuestRecipe,
    base: &Digest,
    inputs: &BTreeMap<String, Digest>,
) -> Digest {
    let what = serde_json::json!({
        "builder": digest::of_texts(BUILDER),
        "recipe": recipe.sha256,
        "base": base,
        "files": files(guest),
        "inputs": inputs,
    });
    digest::of_bytes(what.to_string().as_bytes())
}

/// Text files by their path in the guest.
pub(crate) fn files(guest: &GuestRecipe) -> BTreeMap<String, String> {
    let mut files: BTreeMap<String, String> = SCRIPTS
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
        .collect();
    let mut put = |name: &str, text: String| files.insert(name.to_owned(), text);
    let services = services(guest);
    put("etc/inittab", inittab(guest, &services));
    put("etc/hostname", format!("{}\n", guest.hostname));
    put(
        "etc/hosts",
        format!("127.0.0.1 localhost {}\n", guest.hostname),
    );
    // Name server of QEMU's user network.
    put("etc/resolv.conf", "nameserver 10.0.2.3\n".to_owned());
    put(
        "etc/ssh/sshd_config",
        include_str!("../guest/sshd_config").to_owned(),
    );
    put(
        "etc/profile",
        include_str!("../guest/profile.sh").to_owned(),
    );
    put(
        "etc/sysctl.conf",
        guest
            .sysctl
            .iter()
            .map(|(k, v)| format!("{k} = {v}\n"))
            .collect(),
    );
    if let Some(database) = &guest.postgres {
        put(
            "etc/bellows/render.d/postgres.toml",
            postgres::size_unit(database),
        );
    }
    let groups: BTreeSet<_> = services
        .iter()
        .map(|s| s.cgroup.as_str())
        .chain([SYSTEM_GROUP])
        .collect();
    put(
        "etc/bellows/cgroups",
        groups.iter().flat_map(|g| [g, "\n"]).collect(),
    );
    for service in &services {
        put(
            &format!("etc/bellows/services/{}", service.name),
            service_file(service),
        );
    }
    files
}

/// Services of the recipe, after the database's server and its password.
fn services(guest: &GuestRecipe) -> Vec<ServiceRecipe> {
    let service = |name: &str, command: Vec<String>, user: &str, cgroup: &str| ServiceRecipe {
        name: name.to_owned(),
        command,
        user: user.to_owned(),
        cgroup: cgroup.to_owned(),
        directory: None,
        owns: Vec::new(),
        after_ready: false,
    };
    let mut services = Vec::new();
    if let Some(database) = &guest.postgres {
        let server = vec![
            format!("{}/postgres", postgres::programs(database.version)),
            "-D".to_owned(),
            format!("/{}", postgres::DATA),
        ];
        services.push(service(
            postgres::USER,
            server,
            postgres::USER,
            &database.cgroup,
        ));
        let keeper = vec!["/usr/lib/bellows/postgres-password".to_owned()];
        services.push(service("postgres-password", keeper, "root", SYSTEM_GROUP));
    }
    services.extend(guest.services.iter().cloned());
    services
}

/// The table of busybox's init. A command is cut at 256 bytes, so services are kept in files.
fn inittab(guest: &GuestRecipe, services: &[ServiceRecipe]) -> String {
    let mut text = String::from("::sysinit:/usr/lib/bellows/sysinit\n");
    for service in services {
        text += &format!("::respawn:/usr/lib/bellows/service {}\n", service.name);
    }
    text += &format!("::once:/usr/lib/bellows/ready {}\n", guest.ready_line);
    text += "::respawn:/usr/lib/bellows/log-port\n\
             ::respawn:/sbin/acpid -f -l /dev/null\n\
             ttyS0::respawn:/sbin/getty -n -L -l /usr/lib/bellows/console 115200 ttyS0 vt100\n\
             ::ctrlaltdel:/sbin/poweroff\n\
             ::shutdown:/usr/lib/bellows/shutdown\n";
    text
}

pub(crate) fn service_file(service: &ServiceRecipe) -> String {
    let mut text = format!(
        "user={}\ngroup={}\n",
        quote(&service.user),
        quote(&service.cgroup)
    );
    if let Some(directory) = &service.directory {
        text += &format!("directory={}\n", quote(directory));
    }
    if !service.owns.is_empty() {
        text += &format!("owns={}\n", quote(&service.owns.join(" ")));
    }
    if service.after_ready {
        text += "after_ready=1\n";
    }
    if service.name == postgres::USER {
        // The server has a low OOM score like every service. The kernel kills its connections
        // first.
        text += "export PG_OOM_ADJUST_FILE=/proc/self/oom_score_adj PG_OOM_ADJUST_VALUE=0\n";
    }
    let words: Vec<_> = service.command.iter().map(|word| quote(word)).collect();
    text + &format!("set -- {}\n", words.join(" "))
}

/// Quotes a word for a shell.
pub(crate) fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn put(root: &Path, name: &str, content: &[u8], mode: u32) -> Result<(), BuildError> {
    let path = root.join(name);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).at("create", parent)?;
    }
    // A link in the tree could lead out of it, so it is removed first.
    if path.symlink_metadata().is_ok() {
        crate::paths::remove(&path)?;
    }
    fs::write(&path, content).at("write", &path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).at("change the mode of", &path)
}

fn records(
    out: &Path,
    reporter: &mut Reporter<'_>,
) -> Result<BTreeMap<String, FileRecord>, BuildError> {
    reporter.begin(Step::Hash, "");
    let mut records = BTreeMap::new();
    for name in [KERNEL, INITRD, ROOT_DISK] {
        let path = out.join(name);
        let record = digest::of_file(&path, &mut |done| reporter.amount(Amount::Bytes(done)));
        records.insert(name.to_owned(), record.at("read", &path)?);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444))
            .at("change the mode of", &path)?;
    }
    Ok(records)
}

fn manifest(
    recipe: &Recipe,
    guest: &GuestRecipe,
    base: &Layer<Base>,
    files: BTreeMap<String, FileRecord>,
    inputs: BTreeMap<String, Digest>,
) -> ImageManifest {
    let facts = &base.manifest.facts;
    let port = |p: &crate::recipe::PortRecipe| GuestPortRecord {
        name: p.name.clone(),
        port: p.port,
    };
    ImageManifest {
        format: MANIFEST_FORMAT,
        name: recipe.name.clone(),
        architecture: ARCHITECTURE.to_owned(),
        suite: facts.suite.clone(),
        recipe_sha256: recipe.sha256.clone(),
        packages: facts.packages.clone(),
        inputs,
        reproducible: facts.unreproducible.is_empty(),
        unreproducible: facts.unreproducible.clone(),
        content: ImageContent::Guest(GuestContent {
            kernel: KERNEL.to_owned(),
            kernel_version: facts.kernel_version.clone(),
            initrd: INITRD.to_owned(),
            root_disk: ROOT_DISK.to_owned(),
            root_disk_format: "raw".to_owned(),
            root_disk_bytes: files.get(ROOT_DISK).map_or(0, |record| record.bytes),
            cmdline: guest.kernel.cmdline.clone(),
            cmdline_tcg: guest.kernel.cmdline_tcg.clone(),
            ports: guest.ports.iter().map(port).collect(),
            ready_line: guest.ready_line.clone(),
            cgroup: guest
                .postgres
                .as_ref()
                .map(|database| database.cgroup.clone()),
        }),
        files,
    }
}

#[cfg(test)]
mod tests;
