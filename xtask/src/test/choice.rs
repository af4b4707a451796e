//! The packages of a component, and what their tests need of the machine.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::crates;

/// The package with the tests of the whole system.
pub(super) const SYSTEM: &str = "bellows-tests";

/// What tests need beyond a compiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    /// Programs of Debian packages.
    Programs,
    /// Programs of other makers that tests talk to.
    Foreign,
    /// QEMU, images of guests, and the binaries of the workspace.
    Images,
    /// A real Kubernetes.
    Cluster,
    /// A root file system that boots with systemd.
    Systemd,
}

/// Packages whose tests need something. A unit test compares this with the sources.
const NEEDS: [(&str, &[Need]); 10] = [
    ("agent", &[Need::Programs, Need::Foreign]),
    ("apiserver", &[Need::Programs]),
    ("fleet-core", &[Need::Programs]),
    ("fleet-release", &[Need::Programs, Need::Foreign]),
    (SYSTEM, &[Need::Programs, Need::Images, Need::Cluster]),
    ("neonvm-guestd", &[Need::Programs]),
    ("neonvm-runner", &[Need::Programs, Need::Images]),
    ("vm-images", &[Need::Programs]),
    ("vm-monitor", &[Need::Programs]),
    ("xtask", &[Need::Programs, Need::Images, Need::Systemd]),
];

/// A package of the workspace.
#[derive(Debug)]
struct Member {
    /// Below the root of the checkout.
    folder: String,
    package: String,
}

/// All packages of the workspace.
pub(super) struct Members(Vec<Member>);

impl Members {
    pub(super) fn of_workspace() -> Result<Self> {
        Self::of(&crates::workspace()?)
    }

    fn of(metadata: &Value) -> Result<Self> {
        let root = metadata["workspace_root"].as_str().context("no root")?;
        let packages = metadata["packages"].as_array().into_iter().flatten();
        let members: Option<Vec<Member>> = packages
            .map(|package| {
                let manifest = package["manifest_path"].as_str()?;
                let folder = manifest.strip_prefix(root)?.strip_suffix("/Cargo.toml")?;
                Some(Member {
                    folder: folder.trim_start_matches('/').to_owned(),
                    package: package["name"].as_str()?.to_owned(),
                })
            })
            .collect();
        let mut members = members.context("cargo metadata has a package without a folder")?;
        members.sort_by(|one, other| one.folder.cmp(&other.folder));
        Ok(Self(members))
    }

    /// Packages of a component: the one in that folder or of that name, else those in folders with
    /// that last part, else those below that folder.
    ///
    /// # Errors
    /// There is no such component. The error lists the folders.
    pub(super) fn chosen(&self, component: &str) -> Result<Vec<&str>> {
        let component = component.trim_start_matches("./").trim_end_matches('/');
        let last = format!("/{component}");
        let below = format!("{component}/");
        let rules: [&dyn Fn(&Member) -> bool; 3] = [
            &|it| it.folder == component || it.package == component,
            &|it| it.folder.ends_with(&last),
            &|it| it.folder.starts_with(&below),
        ];
        for rule in rules {
            let fitting = self.0.iter().filter(|member| rule(member));
            let packages: Vec<&str> = fitting.map(|member| member.package.as_str()).collect();
            if !packages.is_empty() {
                return Ok(packages);
            }
        }
        let folders: Vec<&str> = self.0.iter().map(|it| it.folder.as_str()).collect();
        bail!(
            "there is no component {component:?}; name one of {}",
            folders.join(", ")
        )
    }
}

/// What the tests of these packages need.
pub(super) fn needs(packages: &[&str]) -> BTreeSet<Need> {
    let of_these = NEEDS.iter().filter(|(name, _)| packages.contains(name));
    of_these.flat_map(|(_, needs)| *needs).copied().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tidy::{house, source};

    fn members() -> Members {
        let package = |folder: &str, name: &str| json!({"name": name, "manifest_path": format!("/w/{folder}/Cargo.toml")});
        let packages = [
            package("tests", "bellows-tests"),
            package("tests/seeds", "test-seeds"),
            package("neonvm-shim/runner", "neonvm-runner"),
            package("neonvm-shim/links", "neonvm-links"),
            package("scheduler", "scheduler"),
        ];
        let metadata = json!({"workspace_root": "/w", "packages": packages});
        Members::of(&metadata).expect("a workspace")
    }

    #[test]
    fn component_is_a_folder_or_its_last_part_or_a_package() {
        let members = members();
        for (component, package) in [
            ("scheduler", "scheduler"),
            ("./scheduler/", "scheduler"),
            ("neonvm-shim/runner", "neonvm-runner"),
            ("runner", "neonvm-runner"),
            ("neonvm-runner", "neonvm-runner"),
            ("seeds", "test-seeds"),
            // The folder has a package of its own, beside those below it.
            ("tests", "bellows-tests"),
        ] {
            let chosen = members.chosen(component).expect(component);
            assert_eq!(chosen, [package], "{component}");
        }
    }

    #[test]
    fn folder_without_a_package_is_all_packages_below_it() {
        let members = members();
        let chosen = members.chosen("neonvm-shim").expect("a folder");
        assert_eq!(chosen, ["neonvm-links", "neonvm-runner"]);
    }

    #[test]
    fn unknown_component_is_an_error_that_lists_the_known_ones() {
        for unknown in ["run", "docs", ""] {
            let error = members().chosen(unknown).expect_err("unknown");
            assert_eq!(
                error.to_string(),
                format!(
                    "there is no component {unknown:?}; name one of neonvm-shim/links, \
                     neonvm-shim/runner, scheduler, tests, tests/seeds"
                )
            );
        }
    }

    #[test]
    fn needs_of_several_packages_are_put_together() {
        let both = needs(&["neonvm-runner", "agent", "protocol"]);
        let all = [Need::Programs, Need::Foreign, Need::Images];
        assert_eq!(both, BTreeSet::from(all));
        assert!(needs(&["protocol"]).is_empty());
    }

    /// A test that may be skipped for lack of something is given it.
    #[test]
    fn packages_need_what_their_tests_record_as_missing() {
        let members = Members::of_workspace().expect("cargo lists the workspace");
        for (file, text) in house::files().expect("files") {
            // These name every key, and lack none.
            if file.starts_with("xtask/src/test") || file.starts_with("tests/records/") {
                continue;
            }
            for (key, need) in [
                ("Guest", Need::Images),
                ("Cluster", Need::Cluster),
                ("Go", Need::Foreign),
                ("Node", Need::Foreign),
                ("Tool", Need::Programs),
                ("Postgres", Need::Programs),
            ] {
                let key = format!("Missing::{key}");
                let is_named = text.match_indices(&key).any(|(at, _)| {
                    !text[at + key.len()..].starts_with(|c: char| c.is_alphanumeric())
                });
                let packages = members.chosen(source::component(&file));
                let needs = needs(&packages.unwrap_or_default());
                assert!(!is_named || needs.contains(&need), "{file}: {key}");
            }
        }
        for (package, _) in NEEDS {
            assert_eq!(members.chosen(package).expect(package), [package]);
        }
    }
}
