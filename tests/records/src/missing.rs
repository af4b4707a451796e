//! Keys of what a test may lack.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What a machine lacks to run a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missing {
    /// The database of advisories, a repository of its own.
    Advisories,
    /// cgroups that may be made.
    Cgroup,
    /// Programs of a real Kubernetes: `cargo xtask cluster build`, which needs Go.
    Cluster,
    /// As many open files as the test needs (`ulimit -Hn`).
    Files,
    /// Programs that the Go toolchain builds.
    Go,
    /// QEMU and images of guests: `cargo xtask images`.
    Guest,
    /// Docker and kind: `cargo xtask cluster build --kind`.
    Kind,
    /// Delays of packets: `sch_netem` of the kernel.
    Netem,
    /// Node.js and its packages.
    Node,
    /// The server programs of PostgreSQL.
    Postgres,
    /// Pressure stall information of the kernel.
    Psi,
    /// Rights of root.
    Root,
    /// A program of a Debian package.
    Tool,
    /// `AF_VSOCK` of the kernel, with its loopback transport.
    Vsock,
}

impl Missing {
    /// Every variant, in the order of the keys.
    pub const ALL: [Self; 14] = [
        Self::Advisories,
        Self::Cgroup,
        Self::Cluster,
        Self::Files,
        Self::Go,
        Self::Guest,
        Self::Kind,
        Self::Netem,
        Self::Node,
        Self::Postgres,
        Self::Psi,
        Self::Root,
        Self::Tool,
        Self::Vsock,
    ];

    /// The key in records and command lines.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Advisories => "advisories",
            Self::Cgroup => "cgroup",
            Self::Cluster => "cluster",
            Self::Files => "files",
            Self::Go => "go",
            Self::Guest => "guest",
            Self::Kind => "kind",
            Self::Netem => "netem",
            Self::Node => "node",
            Self::Postgres => "postgres",
            Self::Psi => "psi",
            Self::Root => "root",
            Self::Tool => "tool",
            Self::Vsock => "vsock",
        }
    }

    /// Joins keys with commas.
    #[must_use]
    pub fn list(keys: &[Self]) -> String {
        keys.iter()
            .map(|key| key.key())
            .collect::<Vec<_>>()
            .join(",")
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key())
    }
}

impl FromStr for Missing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|missing| missing.key() == text);
        found.ok_or_else(|| format!("no such key; there are {}", Self::list(&Self::ALL)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_the_same_in_files_and_command_lines() {
        for missing in Missing::ALL {
            assert_eq!(missing.key().parse(), Ok(missing));
            let text = serde_json::to_string(&missing).unwrap();
            assert_eq!(text, format!("\"{missing}\""));
        }
        assert!("weather".parse::<Missing>().is_err());
    }
}
