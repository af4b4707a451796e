//! The package layer: the Debian packages of a recipe, chosen and checked by apt, kept as they were
//! downloaded.
//!
//! apt runs with a configuration, state and cache of its own inside the work directory; nothing of
//! the host's package state is read or changed but the mirror's address and the connection
//! settings.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use protocol::image::{Digest, FileRecord, PackageRecord};
use serde::{Deserialize, Serialize};

use crate::digest;
use crate::error::{BuildError, IoContext, need_disk_space};
use crate::mirror::{self, Mirrors};
use crate::progress::{Amount, Reporter, Step};
use crate::recipe::{DebianRecipe, Recipe, SuiteRecipe};
use crate::requirements::KEYRING;
use crate::store::{Guard, Layer, LayerManifest, Store};
use crate::tool::{self, Tool};

/// The layer's kind in the cache.
const KIND: &str = "packages";

/// The only architecture built.
pub(crate) const ARCHITECTURE: &str = "amd64";

/// MiB a download may need: twice the largest builtin package set, index included.
const DOWNLOAD_MIB: u64 = 512;

/// Higher than any real version, so that every "at least" is met.
const ASSUMED_VERSION: &str = "999:0";

/// What the next step must know about a package layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Packages {
    /// Debian's code name.
    pub(crate) suite: String,
    /// Every package, sorted by name.
    pub(crate) packages: Vec<PackageRecord>,
}

/// The recipe's packages from the cache, else from the mirror.
pub(crate) fn packages(
    store: &Store,
    guard: &Guard,
    recipe: &Recipe,
    options: &Options<'_>,
    reporter: &mut Reporter<'_>,
) -> Result<Layer<Packages>, BuildError> {
    let host = mirror::host_suite();
    let suite = recipe
        .debian
        .suite_for(host.as_deref())
        .cloned()
        .ok_or_else(|| BuildError::Packages {
            suite: "no suite".into(),
            detail: "the recipe lists none".into(),
        })?;
    let key = key(&recipe.debian, &suite);
    if !options.refresh
        && let Some(layer) = store.layer(&recipe.name, KIND, &key)
    {
        return Ok(layer);
    }
    need_disk_space(store.root(), DOWNLOAD_MIB)?;
    let work = store.work_dir(guard)?;
    let apt = Apt::prepare(
        work.path().join("apt"),
        &recipe.debian,
        &suite,
        options,
        reporter,
    )?;
    apt.update(reporter)?;
    if let Some(former) = store.former_layer_dir(&recipe.name, KIND) {
        apt.reuse(&former)?;
    }
    apt.download(&recipe.debian, &suite, reporter)?;
    let out = work.path().join("out");
    let manifest = gather(&apt.archives(), &out, &suite.name, reporter)?;
    Ok(store.publish_layer(guard, (&recipe.name, KIND, &key), &out, &manifest)?)
}

/// How to get packages.
pub(crate) struct Options<'a> {
    /// Ask the mirror even if the cache has a package set of this recipe.
    pub(crate) refresh: bool,
    /// A mirror instead of the host's.
    pub(crate) mirror: Option<&'a str>,
}

fn key(debian: &DebianRecipe, suite: &SuiteRecipe) -> Digest {
    let what = serde_json::json!({
        "architecture": ARCHITECTURE,
        "suite": suite,
        "packages": debian.packages,
        "assume_installed": debian.assume_installed,
        "security_updates": debian.security_updates,
    });
    digest::of_bytes(what.to_string().as_bytes())
}

/// apt with everything it reads and writes in one directory.
struct Apt {
    root: PathBuf,
    suite: String,
}

impl Apt {
    fn prepare(
        root: PathBuf,
        debian: &DebianRecipe,
        suite: &SuiteRecipe,
        options: &Options<'_>,
        reporter: &mut Reporter<'_>,
    ) -> Result<Self, BuildError> {
        tool::find(KEYRING).ok_or_else(|| crate::tool::missing(KEYRING, "checking packages"))?;
        for dir in [
            "etc/apt/apt.conf.d",
            "etc/apt/preferences.d",
            "etc/apt/trusted.gpg.d",
            "etc/apt/sources.list.d",
            "var/lib/apt/lists/partial",
            "var/cache/apt/archives/partial",
            "var/lib/dpkg",
        ] {
            let dir = root.join(dir);
            fs::create_dir_all(&dir).at("create", &dir)?;
        }
        let apt = Self {
            root,
            suite: suite.name.clone(),
        };
        let mirrors = mirror::find(options.mirror)?;
        apt.write("etc/apt/sources.list", &sources(&mirrors, debian, suite))?;
        apt.write("var/lib/dpkg/status", &assumed(&debian.assume_installed))?;
        apt.write("apt.conf", &apt.configuration(&host_connection(reporter)?))?;
        Ok(apt)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), BuildError> {
        let path = self.root.join(name);
        fs::write(&path, text).at("write", &path)
    }

    fn configuration(&self, connection: &str) -> String {
        let root = self.root.display();
        format!(
            "Dir \"{root}\";\n\
             Dir::State::status \"{root}/var/lib/dpkg/status\";\n\
             APT::Architecture \"{ARCHITECTURE}\";\n\
             APT::Architectures {{ \"{ARCHITECTURE}\"; }};\n\
             APT::Install-Recommends \"false\";\n\
             APT::Sandbox::User \"root\";\n\
             APT::Update::Error-Mode \"any\";\n\
             Acquire::Languages \"none\";\n\
             Acquire::Retries \"3\";\n\
             {connection}"
        )
    }

    fn archives(&self) -> PathBuf {
        self.root.join("var/cache/apt/archives")
    }

    fn tool(&self, step: &str) -> Tool {
        Tool::new("apt-get", step)
            .env("APT_CONFIG", self.root.join("apt.conf"))
            .env("DEBIAN_FRONTEND", "noninteractive")
            .directory(&self.root)
            .args(["-qq", "-o", "APT::Status-Fd=1"])
    }

    fn update(&self, reporter: &mut Reporter<'_>) -> Result<(), BuildError> {
        reporter.begin(Step::Index, &self.suite);
        let run = self.tool("reading the package index").arg("update");
        run.run_with(Vec::new(), reporter, &mut on_status)
            .map_err(|error| match error {
                BuildError::ToolFailed { tail, .. } => {
                    self.network("reading the package index", &tail)
                }
                other => other,
            })
    }

    /// Links packages of an older layer where apt looks for finished downloads; it checks their
    /// hashes itself.
    fn reuse(&self, former: &Path) -> Result<(), BuildError> {
        for entry in fs::read_dir(former).at("list", former)? {
            let path = entry.at("list", former)?.path();
            if path.extension().is_some_and(|e| e == "deb")
                && let Some(name) = path.file_name()
            {
                let target = self.archives().join(name);
                fs::hard_link(&path, &target).at("link", &target)?;
            }
        }
        Ok(())
    }

    fn download(
        &self,
        debian: &DebianRecipe,
        suite: &SuiteRecipe,
        reporter: &mut Reporter<'_>,
    ) -> Result<(), BuildError> {
        reporter.begin(Step::Download, &self.suite);
        let mut run = self
            .tool("downloading packages")
            .args(["--yes", "--download-only"]);
        if let Some(prefer) = &suite.prefer {
            run = run.args(["--target-release", prefer]);
        }
        let run = run.arg("install").args(&debian.packages);
        run.run_with(Vec::new(), reporter, &mut on_status)
            .map_err(|error| match error {
                BuildError::ToolFailed { tail, .. } if is_resolution_failure(&tail) => {
                    BuildError::Packages {
                        suite: self.suite.clone(),
                        detail: first_complaint(&tail),
                    }
                }
                BuildError::ToolFailed { tail, .. } => self.network("downloading packages", &tail),
                other => other,
            })
    }

    fn network(&self, what: &str, tail: &str) -> BuildError {
        BuildError::Network {
            what: format!("{what} of {}", self.suite),
            detail: first_complaint(tail),
        }
    }
}

fn sources(mirrors: &Mirrors, debian: &DebianRecipe, suite: &SuiteRecipe) -> String {
    let line = |uri: &str, suite: &str| format!("deb [signed-by={KEYRING}] {uri} {suite} main\n");
    let mut text = line(&mirrors.main, &suite.name);
    if let Some(prefer) = &suite.prefer {
        text += &line(&mirrors.main, prefer);
    }
    if let Some(security) = mirrors
        .security
        .as_ref()
        .filter(|_| debian.security_updates)
    {
        text += &line(security, &format!("{}-security", suite.name));
    }
    text
}

/// A package state in which these packages are there.
fn assumed(packages: &[String]) -> String {
    let entry = |name: &String| {
        format!(
            "Package: {name}\nStatus: install ok installed\nArchitecture: {ARCHITECTURE}\n\
             Multi-Arch: foreign\nMaintainer: nobody\nVersion: {ASSUMED_VERSION}\n\
             Description: assumed\n\n"
        )
    };
    packages.iter().map(entry).collect()
}

/// The host's settings of how to reach a mirror (proxy, certificates, tolerated dates).
fn host_connection(reporter: &mut Reporter<'_>) -> Result<String, BuildError> {
    let dump = Tool::new("apt-config", "reading apt's settings")
        .arg("dump")
        .output(reporter)?;
    const TAKEN: [&str; 4] = [
        "Acquire::http::",
        "Acquire::https::",
        "Acquire::Check-Valid-Until ",
        "Acquire::Check-Date ",
    ];
    let taken = |line: &&str| TAKEN.iter().any(|name| line.starts_with(name));
    Ok(dump
        .lines()
        .filter(taken)
        .flat_map(|line| [line, "\n"])
        .collect())
}

/// apt's machine-readable progress: `dlstatus:<n>:<percent>:<words>`.
fn on_status(line: &str, reporter: &mut Reporter<'_>) {
    let mut fields = line.splitn(4, ':');
    if fields.next() != Some("dlstatus") {
        return;
    }
    if let Some(whole) = fields.nth(1).and_then(|percent| percent.split('.').next())
        && let Ok(percent) = whole.parse::<u16>()
    {
        reporter.amount(Amount::Permille(percent.min(100) * 10));
    }
}

fn is_resolution_failure(tail: &str) -> bool {
    const WORDS: [&str; 5] = [
        "Unable to locate package",
        "has no installation candidate",
        "unmet dependencies",
        "held broken packages",
        "default release",
    ];
    WORDS.iter().any(|words| tail.contains(words))
}

fn first_complaint(tail: &str) -> String {
    let parts = tail.split("; ").map(str::trim);
    let complaint = parts
        .clone()
        .find(|p| p.starts_with("E:") || p.starts_with("Err:"));
    complaint
        .or_else(|| parts.clone().next())
        .unwrap_or_default()
        .chars()
        .take(300)
        .collect()
}

/// Moves the packages to `out` and lists them.
fn gather(
    archives: &Path,
    out: &Path,
    suite: &str,
    reporter: &mut Reporter<'_>,
) -> Result<LayerManifest<Packages>, BuildError> {
    fs::create_dir_all(out).at("create", out)?;
    let mut files: BTreeMap<String, FileRecord> = BTreeMap::new();
    let mut packages = Vec::new();
    for entry in fs::read_dir(archives).at("list", archives)? {
        let path = entry.at("list", archives)?.path();
        let file = path
            .file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default();
        let Some((name, version)) = package_of_file(&file) else {
            continue;
        };
        let record = digest::of_file(&path, &mut |_| {}).at("read", &path)?;
        reporter.tick();
        let target = out.join(&file);
        fs::rename(&path, &target).at("move", &path)?;
        packages.push(PackageRecord {
            name,
            version,
            sha256: record.sha256.clone(),
        });
        files.insert(file, record);
    }
    packages.sort();
    Ok(LayerManifest {
        files,
        facts: Packages {
            suite: suite.to_owned(),
            packages,
        },
    })
}

/// Name and version from apt's file name `name_version_arch.deb`, in which a colon is written
/// `%3a`.
fn package_of_file(file: &str) -> Option<(String, String)> {
    let stem = file.strip_suffix(".deb")?;
    let mut parts = stem.split('_');
    let (name, version, _) = (parts.next()?, parts.next()?, parts.next()?);
    Some((name.to_owned(), version.replace("%3a", ":")))
}

/// Unpacks every package of a layer into `root`, which becomes a merged-/usr tree.
///
/// Maintainer scripts do not run. Packages are unpacked in the order of their names, so that a file
/// two packages have is always the same one's.
pub(crate) fn unpack(
    layer: &Layer<Packages>,
    root: &Path,
    reporter: &mut Reporter<'_>,
) -> Result<(), BuildError> {
    reporter.begin(Step::Unpack, &layer.manifest.facts.suite);
    for name in ["bin", "sbin", "lib", "lib64"] {
        let dir = root.join("usr").join(name);
        fs::create_dir_all(&dir).at("create", &dir)?;
        let link = root.join(name);
        std::os::unix::fs::symlink(format!("usr/{name}"), &link).at("link", &link)?;
    }
    let total = layer.manifest.files.len() as u64;
    for (done, file) in layer.manifest.files.keys().enumerate() {
        reporter.amount(Amount::Items {
            done: done as u64,
            total,
        });
        unpack_one(&layer.dir.join(file), root, reporter)?;
    }
    Ok(())
}

fn unpack_one(package: &Path, root: &Path, reporter: &mut Reporter<'_>) -> Result<(), BuildError> {
    let step = format!(
        "unpacking {}",
        package.file_name().unwrap_or_default().to_string_lossy()
    );
    let open = Tool::new("dpkg-deb", step.clone())
        .arg("--fsys-tarfile")
        .arg(package);
    // dpkg's own extraction would replace the links of the merged /usr by directories.
    let extract = Tool::new("tar", step).directory(root).args([
        "-x",
        "-p",
        "--numeric-owner",
        "--keep-directory-symlink",
        "-f",
        "-",
    ]);
    tool::pipe(&open, &extract, reporter)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: N46
    #[test]
    fn package_names_and_versions_come_from_file_names() {
        let read = |file: &str| package_of_file(file).unwrap();
        let (name, version) = read("openssh-server_1%3a9.2p1-2+deb12u10_amd64.deb");
        assert_eq!(
            (name.as_str(), version.as_str()),
            ("openssh-server", "1:9.2p1-2+deb12u10")
        );
        assert_eq!(package_of_file("lock"), None);
        assert_eq!(package_of_file("partial"), None);
    }

    /// Requirement: N46
    #[test]
    fn package_key_changes_with_its_inputs() {
        let debian = Recipe::load("bellows/postgres:15").unwrap().debian;
        let suite = debian.suites[0].clone();
        let base = key(&debian, &suite);
        assert_eq!(base, key(&debian.clone(), &suite));
        let mut more = debian.clone();
        more.packages.push("strace".into());
        assert_ne!(base, key(&more, &suite));
        let mut fewer = debian.clone();
        fewer.assume_installed.pop();
        assert_ne!(base, key(&fewer, &suite));
        let other = SuiteRecipe {
            name: "trixie".into(),
            prefer: None,
        };
        assert_ne!(base, key(&debian, &other));
    }

    /// Requirement: N46
    #[test]
    fn apt_complaints_become_the_right_error() {
        let tail = "E: Unable to locate package postgresql-99";
        assert!(is_resolution_failure(tail));
        assert_eq!(first_complaint(tail), tail);
        let offline = "W: x; E: Failed to fetch http://MIRROR/debian; E: other";
        assert!(!is_resolution_failure(offline));
        assert_eq!(
            first_complaint(offline),
            "E: Failed to fetch http://MIRROR/debian"
        );
    }

    /// Requirement: N46
    #[test]
    fn sources_name_backports_and_security_only_when_asked() {
        let mirrors = Mirrors {
            main: "http://m/".into(),
            security: Some("http://s/".into()),
        };
        let mut debian = Recipe::load("bellows/qemu").unwrap().debian;
        let suite = SuiteRecipe {
            name: "bookworm".into(),
            prefer: Some("bookworm-backports".into()),
        };
        debian.security_updates = false;
        let text = sources(&mirrors, &debian, &suite);
        assert!(
            text.contains("http://m/ bookworm main") && text.contains("bookworm-backports main")
        );
        assert!(!text.contains("security"));
        debian.security_updates = true;
        assert!(sources(&mirrors, &debian, &suite).contains("http://s/ bookworm-security main"));
    }
}
