//! Which room may use which: design's arrows, read from `cargo metadata`; and what a core may not
//! name.

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{crates, shell};

/// For each crate of the workspace, the crates of the workspace it may depend on. A crate that is
/// not listed is a finding.
const ARROWS: [(&str, &[&str]); 44] = [
    ("protocol", &["test-seeds"]),
    ("daemon-kit", &["protocol", "test-network"]),
    ("transport", &["test-records"]),
    (
        "vm-monitor",
        &[
            "transport",
            "protocol",
            "test-authority",
            "test-network",
            "test-records",
            "test-seeds",
        ],
    ),
    ("neonvm-files", &["protocol", "test-seeds"]),
    ("neonvm-links", &[]),
    ("neonvm-parts", &["protocol", "test-seeds"]),
    ("neonvm-quota", &["protocol", "test-records"]),
    (
        "neonvm-vxlan",
        &["api-client", "neonvm-links", "daemon-kit", "protocol"],
    ),
    (
        "neonvm-guestd",
        &[
            "neonvm-files",
            "neonvm-parts",
            "protocol",
            "test-network",
            "test-records",
            "test-seeds",
        ],
    ),
    (
        "agent",
        &[
            "agent-events",
            "api-client",
            "transport",
            "policy-contract",
            "protocol",
            "daemon-kit",
            "test-api",
            "test-authority",
            "test-network",
            "test-records",
        ],
    ),
    ("agent-events", &["protocol", "daemon-kit"]),
    ("api-client", &[]),
    ("leader-election", &["api-client", "protocol", "daemon-kit"]),
    (
        "scheduler",
        &[
            "api-client",
            "leader-election",
            "policy-contract",
            "protocol",
            "daemon-kit",
            "test-api",
            "test-authority",
        ],
    ),
    ("apiserver", &["protocol", "daemon-kit", "test-seeds"]),
    (
        "neonvm-controller",
        &[
            "api-client",
            "leader-election",
            "protocol",
            "daemon-kit",
            "test-api",
            "test-network",
        ],
    ),
    (
        "neonvm-runner",
        &[
            "api-client",
            "transport",
            "neonvm-files",
            "neonvm-links",
            "neonvm-quota",
            "protocol",
            "daemon-kit",
            "test-api",
            "test-authority",
            "test-network",
            "test-records",
            "test-seeds",
        ],
    ),
    ("vm-images", &["protocol", "test-records"]),
    // A leaf like `protocol`: what policies and their callers agree on.
    ("policy-contract", &["protocol", "test-seeds"]),
    // The one crate that links Lua.
    ("policy-engine", &["policy-contract", "test-seeds"]),
    // Runs the agent's core again by its public entries, as `sim` does.
    ("policy-whatif", &["agent", "policy-contract", "protocol"]),
    (
        "policy-controller",
        &[
            "api-client",
            "leader-election",
            "policy-contract",
            "protocol",
            "daemon-kit",
            "test-api",
        ],
    ),
    (
        "policy-cli",
        &[
            "policy-contract",
            "policy-engine",
            "policy-whatif",
            "protocol",
            "daemon-kit",
        ],
    ),
    // A core of its own: the fleet's shell, the simulator and updaters use it.
    ("fleet-core", &["protocol", "test-records"]),
    (
        "fleet-store",
        &["api-client", "fleet-core", "protocol", "test-api"],
    ),
    // The one crate that links the library of release signatures.
    (
        "fleet-release",
        &["fleet-store", "protocol", "test-authority", "test-records"],
    ),
    // The one crate that links the library of image signatures.
    (
        "fleet-signatures",
        &["protocol", "test-authority", "test-seeds"],
    ),
    // For machines with a package manager: no library of signatures, which apt verifies.
    (
        "bellows-updater",
        &["fleet-core", "protocol", "test-authority"],
    ),
    // A core like it, which the simulator runs with partitions.
    ("peers-core", &["protocol"]),
    (
        "peers-mesh",
        &["peers-core", "protocol", "daemon-kit", "test-seeds"],
    ),
    (
        "fleet",
        &[
            "api-client",
            "daemon-kit",
            "fleet-core",
            "fleet-release",
            "fleet-signatures",
            "fleet-store",
            "protocol",
            "test-api",
            "test-authority",
        ],
    ),
    // The program of a cluster.
    (
        "fleet-controller",
        &[
            "api-client",
            "daemon-kit",
            "fleet",
            "fleet-signatures",
            "leader-election",
            "protocol",
            "test-api",
            "test-authority",
        ],
    ),
    // The one place where the rooms are put together in one process, by their public entries.
    (
        "bellows",
        &[
            "agent",
            "api-client",
            "apiserver",
            "fleet",
            "fleet-core",
            "fleet-release",
            "fleet-signatures",
            "fleet-store",
            "neonvm-controller",
            "neonvm-parts",
            "neonvm-runner",
            "policy-contract",
            "peers-core",
            "peers-mesh",
            "policy-controller",
            "protocol",
            "scheduler",
            "daemon-kit",
            "test-api",
            "test-authority",
            "vm-images",
        ],
    ),
    // The cores of all rooms on a virtual clock; it uses no shell.
    (
        "sim",
        &[
            "agent",
            "neonvm-controller",
            "neonvm-runner",
            "peers-core",
            "policy-contract",
            "policy-whatif",
            "protocol",
            "scheduler",
            "vm-monitor",
        ],
    ),
    (
        "bellows-tests",
        &[
            "fleet-store",
            "protocol",
            "daemon-kit",
            "test-authority",
            "test-network",
            "test-records",
        ],
    ),
    ("bad-monitors", &["transport", "vm-monitor"]),
    ("guest-load", &["transport", "neonvm-quota", "protocol"]),
    ("test-api", &["apiserver"]),
    ("test-authority", &[]),
    ("test-network", &[]),
    ("test-records", &[]),
    ("test-seeds", &[]),
    ("xtask", &["test-records"]),
];

/// What a core may not name, and why.
const CORE_BANS: [(&str, &str); 13] = [
    ("tokio::", "a core has no task and no timer"),
    ("std::time::Instant", "time is passed in as a Timestamp"),
    ("std::time::SystemTime", "time is passed in as a WallTime"),
    // Addresses are plain data; sockets are not.
    ("TcpStream", "a core has no socket"),
    ("TcpListener", "a core has no socket"),
    ("std::fs", "a core has no file"),
    ("std::env", "a core has no environment"),
    ("std::thread", "a core has no thread"),
    ("std::sync::Mutex", "a core has no lock"),
    ("HashMap", "replay needs one order: use BTreeMap"),
    ("HashSet", "replay needs one order: use BTreeSet"),
    ("rand::rng", "randomness is passed in"),
    ("println!", "a core does not print"),
];

/// Everything wrong with the arrows.
pub(super) fn findings() -> Result<Vec<String>> {
    let metadata = crates::workspace()?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata has no packages")?;
    let names: Vec<&str> = packages
        .iter()
        .filter_map(|package| package["name"].as_str())
        .collect();
    let architecture =
        std::fs::read_to_string(shell::root().join("ARCHITECTURE.md")).unwrap_or_default();
    let mut findings = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        if !architecture.contains(&format!("`{name}`")) {
            findings.push(format!("ARCHITECTURE.md: crate `{name}` has no line there"));
        }
        findings.extend(package_findings(name, package, &names));
    }
    findings.extend(core_findings()?);
    Ok(findings)
}

fn package_findings(name: &str, package: &Value, names: &[&str]) -> Vec<String> {
    let Some((_, allowed)) = ARROWS.iter().find(|(room, _)| *room == name) else {
        return vec![format!("crate {name} is not in the arrows of xtask tidy")];
    };
    let dependencies = package["dependencies"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    dependencies
        .iter()
        .filter_map(|dependency| dependency["name"].as_str())
        .filter(|dependency| names.contains(dependency) && !allowed.contains(dependency))
        .map(|dependency| format!("crate {name} may not use {dependency}"))
        .collect()
}

fn core_findings() -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for file in super::text::tracked_files(".rs")? {
        let pure = file.contains("/src/core/")
            || file.ends_with("/src/core.rs")
            || file.starts_with("protocol/src/")
            || file.starts_with("fleet/core/src/")
            || file.starts_with("peers/core/src/");
        if !pure {
            continue;
        }
        let text = std::fs::read_to_string(shell::root().join(&file))?;
        let code = super::source::code_of(&text);
        for (number, line) in code.lines().enumerate() {
            let line = line.split("//").next().unwrap_or_default();
            for (ban, why) in CORE_BANS {
                if line.contains(ban) {
                    findings.push(format!("{file}:{}: a core names {ban}: {why}", number + 1));
                }
            }
        }
    }
    Ok(findings)
}
