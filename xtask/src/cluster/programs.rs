//! The programs of a cluster, built once from their Go modules into the content-addressed store:
//! those of a control plane, the kubelet of a node, Helm, which installs into it, cert-manager's
//! controllers, and multus, a network plugin.
//!
//! ```text
//! modules/*/go.{mod,sum}  what is built, pinned: the same versions on every machine, and no resolution at build time
//! cache/cluster-build/    Go's own caches while it builds, 4 GB; gone when it is done, kept when it is interrupted
//! store/blobs/<sha256>/   the programs, 0.36 GB, 0.08 GB, 0.06 GB, 0.06 GB and 0.05 GB, and a manifest of them whose digest this is
//! store/refs/bellows/control-plane:1.34, kubelet:1.34, helm:3.19, cert-manager:1.21, multus:4.2; kind:0.30, kubeadm:1.34,
//!                    coredns:1.12 when `--kind` asks for them
//! ```
//!
//! Kubernetes' own `go.mod` names its staging modules at v0.0.0 and replaces them by folders that a
//! published module does not have, hence the replacements in ours.

mod sets;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use self::sets::{KIND, Module, SETS, Set};
use super::store;
use crate::progress::{self, Work};
use crate::shell;
use anyhow::{Context as _, Result, bail};

/// Raised when later code builds something else from the same modules.
const RECIPE: &str = "1";
/// Oldest Go that downloads the toolchain of a module.
const OLDEST_GO: (u32, u32) = (1, 21);

/// Name of the file with definitions of kinds.
const KINDS: &str = "kinds.yaml";

/// Builds missing programs. Returns the folders of the sets, the control plane's first.
pub(crate) fn ensure() -> Result<Vec<PathBuf>> {
    ensure_all(&SETS)
}

/// Builds the additional programs of a kind cluster.
pub(super) fn ensure_kind() -> Result<Vec<PathBuf>> {
    ensure_all(&KIND)
}

/// Whether those are there, the control plane's among them.
pub(super) fn has_kind() -> Result<bool> {
    Ok(all(&SETS)?.is_some() && all(&KIND)?.is_some())
}

/// Whether the control plane's are there.
pub(crate) fn is_built() -> Result<bool> {
    Ok(all(&SETS)?.is_some())
}

fn ensure_all(sets: &[Set]) -> Result<Vec<PathBuf>> {
    if let Some(folders) = all(sets)? {
        return Ok(folders);
    }
    if !has_go() {
        bail!(shell::Missing(
            "Go 1.21 or newer is not installed: no Kubernetes can be built without it".to_owned()
        ));
    }
    let work = shell::cache_dir()?.join("cluster-build");
    fs::create_dir_all(work.join("bin"))?;
    let lock = File::create(work.join("lock"))?;
    if lock.try_lock().is_err() {
        shell::say("==> waiting for another build of the cluster's programs");
        lock.lock()?;
    }
    for set in sets {
        // Another process may have built it while it held the lock.
        if store::current(set.reference, &inputs(set)?)?.is_none() {
            build_set(set, &work)?;
        }
    }
    drop(lock);
    fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
    all(sets)?.context("they were built just now")
}

/// The folders of these sets, if they are there.
fn all(sets: &[Set]) -> Result<Option<Vec<PathBuf>>> {
    let mut folders = Vec::new();
    for set in sets {
        match store::current(set.reference, &inputs(set)?)? {
            Some(folder) => folders.push(folder),
            None => return Ok(None),
        }
    }
    Ok(Some(folders))
}

fn build_set(set: &Set, work: &Path) -> Result<()> {
    let bin = work.join("bin");
    for module in set.modules {
        build(module, work)?;
    }
    let programs = set.modules.iter().flat_map(|module| module.packages);
    let mut names: Vec<&str> = programs.map(|(program, _)| *program).collect();
    let has_kinds = set.modules.iter().any(|module| module.kinds.is_some());
    names.extend(has_kinds.then_some(KINDS));
    store::publish(set.reference, &inputs(set)?, &bin, &names)?;
    fs::create_dir_all(bin)?;
    Ok(())
}

/// Builds as [`ensure`]. Without Go it does nothing, and tests that need a cluster report that.
/// Returns whether the programs exist.
pub(crate) fn ensure_if_possible() -> Result<bool> {
    if all(&SETS)?.is_none() && !has_go() {
        shell::say(
            "note: no Go 1.21 or newer, so tests against a real Kubernetes are left out; go.dev/dl has one",
        );
        return Ok(false);
    }
    ensure().map(|_| true)
}

/// Whether the Go on the PATH can build them.
pub(crate) fn has_go() -> bool {
    let output = Command::new("go").args(["env", "GOVERSION"]).output();
    output.is_ok_and(|output| is_enough(&String::from_utf8_lossy(&output.stdout)))
}

/// Whether a version, as Go spells it, is new enough.
pub(crate) fn is_enough(version: &str) -> bool {
    parse_version(version).is_some_and(|version| version >= OLDEST_GO)
}

/// Major and minor number of a version.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim().strip_prefix("go")?.split('.');
    let mut number = || {
        let text = numbers.next()?;
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let end = digits.find(|c: char| !c.is_ascii_digit());
        digits.get(..end.unwrap_or(digits.len()))?.parse().ok()
    };
    Some((number()?, number()?))
}

fn inputs(set: &Set) -> Result<String> {
    let mut text = format!("{RECIPE}\n");
    for module in set.modules {
        text += &format!("{:?}\n{}{}", module.packages, module.go_mod, module.go_sum);
        if let Some(source) = module.source {
            text += &format!("{source}{:?}\n", module.kinds);
        }
    }
    store::digest_of(text.as_bytes())
}

fn build(module: &Module, work: &Path) -> Result<()> {
    let source = work.join("source").join(module.name);
    fs::create_dir_all(&source)?;
    fs::write(source.join("go.mod"), module.go_mod)?;
    fs::write(source.join("go.sum"), module.go_sum)?;
    if let Some(text) = module.source {
        fs::write(source.join("main.go"), text)?;
    }
    let flags = link_flags(&source, work, module)?;
    for (program, package) in module.packages {
        let target = work.join("bin").join(program);
        let mut list = go(&source, work);
        let packages = shell::output(list.args(["list", "-deps", package]))?;
        let mut command = go(&source, work);
        command.args(["build", "-v", "-trimpath", "-ldflags", &flags, "-o"]);
        command.arg(&target).arg(package);
        let total = Some(packages.lines().count());
        let what = format!("build {program}");
        progress::run(&what, &mut command, Work::Packages { total })?;
    }
    match module.kinds {
        Some((of, files)) => put_kinds(&source, work, of, files),
        None => Ok(()),
    }
}

/// Puts files of a module together into one.
fn put_kinds(source: &Path, work: &Path, module: &str, files: &[&str]) -> Result<()> {
    let mut list = go(source, work);
    let dir = shell::output(list.args(["list", "-m", "-f", "{{.Dir}}", module]))?;
    let mut kinds = String::new();
    for file in files {
        let file = Path::new(dir.trim()).join(file);
        let text = fs::read_to_string(&file);
        let text = text.with_context(|| format!("cannot read {}", file.display()))?;
        kinds += &format!("---\n{}\n", text.trim_start_matches("---\n"));
    }
    Ok(fs::write(work.join("bin").join(KINDS), kinds)?)
}

/// Go in that folder, with caches of its own that can be deleted.
fn go(source: &Path, work: &Path) -> Command {
    let mut command = Command::new("go");
    command
        .current_dir(source)
        .env("CGO_ENABLED", "0")
        // The compiler needs less time if it seldom collects its memory.
        .env("GOGC", "400")
        .env("GOCACHE", work.join("objects"))
        .env("GOMODCACHE", work.join("modules"))
        .env("GOFLAGS", "-modcacherw -buildvcs=false -mod=readonly");
    command
}

/// Clients look at the version of a server: without one, some refuse to go on.
fn link_flags(source: &Path, work: &Path, module: &Module) -> Result<String> {
    let mut flags = "-s -w".to_owned();
    let version_of = |dependency: &str| {
        let mut list = go(source, work);
        shell::output(list.args(["list", "-m", "-f", "{{.Version}}", dependency]))
    };
    match module.name {
        "helm" => {
            // Without a cluster, Helm renders with its client's version.
            let version = version_of("helm.sh/helm/v3")?;
            let client = version_of("k8s.io/client-go")?;
            let minor = client.split('.').nth(1).context("a minor number")?;
            flags += &format!(
                " -X helm.sh/helm/v3/internal/version.version={}",
                version.trim()
            );
            for package in ["chartutil", "lint/rules"] {
                let package = format!("helm.sh/helm/v3/pkg/{package}.k8sVersion");
                flags += &format!(" -X {package}Major=1 -X {package}Minor={minor}");
            }
            return Ok(flags);
        }
        "kubernetes" => {}
        _ => return Ok(flags),
    }
    let version = version_of("k8s.io/kubernetes")?;
    let version = version.trim();
    let minor = version
        .split('.')
        .nth(1)
        .context("a version has a minor number")?;
    for package in [
        "k8s.io/component-base/version",
        "k8s.io/client-go/pkg/version",
    ] {
        for (name, value) in [
            ("gitVersion", version),
            ("gitMajor", "1"),
            ("gitMinor", minor),
            ("gitTreeState", "clean"),
            // A fixed date, so that the same inputs give the same programs.
            ("buildDate", "1970-01-01T00:00:00Z"),
        ] {
            flags += &format!(" -X {package}.{name}={value}");
        }
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_go_are_read() {
        for (text, expected) in [
            ("go1.26.8\n", Some((1, 26))),
            ("go1.21", Some((1, 21))),
            ("go1.25rc1", Some((1, 25))),
            ("go1.24~2", Some((1, 24))),
            ("devel", None),
            ("", None),
        ] {
            assert_eq!(parse_version(text), expected, "{text:?}");
        }
        assert!(is_enough("go1.21") && !is_enough("go1.19~1") && !is_enough("go"));
    }

    #[test]
    fn every_program_is_pinned() {
        for module in SETS.iter().chain(&KIND).flat_map(|set| set.modules) {
            for (program, package) in module.packages {
                let pinned = module.go_mod.lines().any(|line| line.trim() == *package);
                let alone = module.go_mod.contains(&format!("tool {package}\n"));
                let ours = *package == "." && module.source.is_some();
                assert!(
                    pinned || alone || ours,
                    "{program} is no tool of {}",
                    module.name
                );
            }
        }
    }
}
