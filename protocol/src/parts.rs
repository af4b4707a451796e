//! Parts of a guest that are replaced while it runs: `vm-monitor` and `neonvmd`.
//!
//! The guest's daemon serves [`ROUTE`] to its host alone. A new program runs on trial until the
//! host keeps it. If the host does not, the guest goes back by itself.

pub mod control;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Prefix of the daemon's routes: `PUT ROUTE/NAME` brings a program, `POST ROUTE/NAME/try`, `/keep`
/// and `/back` move it on.
pub const ROUTE: &str = "/v1/parts";
/// Largest program, bytes.
pub const PROGRAM_BYTES: u64 = 32 << 20;
/// Answers that the daemon remembers for each part. A repeated token gets the same one.
pub const REMEMBERED_TOKENS: usize = 8;
/// Longest token, bytes.
pub const TOKEN_BYTES: usize = 64;
/// Reason of a guest that ended a trial because its host did not keep the program.
pub const NOT_KEPT: &str = "the host did not keep it in time";
/// Reason of a guest whose host ended the trial.
pub const TAKEN_BACK: &str = "the host took it back";

/// Metric of a monitor's page with release and digest of its program.
pub const BUILD_INFO: &str = "vm_monitor_build_info";
/// Label of [`BUILD_INFO`] where a package manager of the guest brings the program. Otherwise there
/// is none.
pub const FROM_PACKAGE: &str = "from=\"package\"";

/// Whether a package manager brings the monitor of this page. `None` if the page does not say what
/// runs.
#[must_use]
pub fn is_from_package(page: &str) -> Option<bool> {
    let labels = page
        .lines()
        .find_map(|line| line.strip_prefix(BUILD_INFO)?.strip_prefix('{'))?;
    let labels = labels.split('}').next().unwrap_or_default();
    Some(labels.split(',').any(|label| label == FROM_PACKAGE))
}

/// A part whose version the fleet changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartName {
    /// `vm-monitor`, which talks to the agent.
    Monitor,
    /// `neonvmd`, which talks to the runner.
    Guestd,
    /// `autoscaler-agent` of a node. It is no part of a guest.
    Agent,
    /// `autoscale-scheduler` of a cluster.
    Scheduler,
    /// `neonvm-controller` of a cluster.
    Controller,
    /// `bellows-fleet` of a cluster, which changes itself last.
    Fleet,
}

impl PartName {
    /// Those of a guest, in the order in which pages list them.
    pub const ALL: [Self; 2] = [Self::Monitor, Self::Guestd];

    /// Those that container images hold.
    pub const OF_IMAGES: [Self; 4] = [Self::Agent, Self::Scheduler, Self::Controller, Self::Fleet];

    /// Parts of the control plane, in the order in which they change.
    pub const CONTROL_PLANE: [Self; 3] = [Self::Controller, Self::Scheduler, Self::Fleet];

    /// The name in routes, paths and objects.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Monitor => "monitor",
            Self::Guestd => "guestd",
            Self::Agent => "agent",
            Self::Scheduler => "scheduler",
            Self::Controller => "controller",
            Self::Fleet => "fleet",
        }
    }

    /// Whether its container image is replaced, in place of a program.
    #[must_use]
    pub fn is_image(self) -> bool {
        Self::OF_IMAGES.contains(&self)
    }

    /// Whether a `Deployment` of the cluster runs it.
    #[must_use]
    pub fn is_service(self) -> bool {
        Self::CONTROL_PLANE.contains(&self)
    }

    /// The part of a guest of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|part| part.as_str() == name)
    }
}

/// Where the program of a part comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PartSource {
    /// The guest's image.
    Image,
    /// The first place for programs that were brought.
    A,
    /// The second place.
    B,
    /// A package manager of the guest.
    Package,
}

/// How far the change of a part is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PartPhase {
    /// The program is kept.
    Settled,
    /// Another program was brought and does not run.
    Staged,
    /// The program runs on trial.
    Trial,
    /// The last program on trial was taken back.
    Back,
}

/// State of a part, a member of the guest's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartState {
    /// Version that the running program names. Empty if it names none.
    pub version: String,
    /// SHA-256 of the running program, lower-case hex. Between two starts that of the kept program
    /// that starts next. Empty if unknown.
    pub sha256: String,
    /// Origin of that program.
    pub from: PartSource,
    /// Progress of the change.
    pub phase: PartPhase,
    /// Rest of the trial, whole seconds. Zero outside of a trial.
    #[serde(default)]
    pub left_s: u64,
    /// Token of the last order.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub token: String,
    /// Why the last program on trial was taken back. The guest wrote it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Starts of the part's process since the guest's boot.
    #[serde(default)]
    pub starts: u64,
    /// Resident memory of its process, bytes. Zero if it does not run.
    #[serde(default)]
    pub resident_bytes: u64,
}

/// States of all parts of a guest.
pub type PartStates = BTreeMap<PartName, PartState>;

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: R19
    #[test]
    fn page_says_whether_a_package_manager_brings_the_monitor() {
        let page = |labels: &str| format!("other 1\n{BUILD_INFO}{{{labels}}} 1\n");
        let known = r#"version="1.0.0",sha256="ab""#;
        let by_package = format!("{known},{FROM_PACKAGE}");
        assert_eq!(is_from_package(&page(&by_package)), Some(true));
        assert_eq!(is_from_package(&page(known)), Some(false));
        assert_eq!(is_from_package(&page(r#"from="packages""#)), Some(false));
        assert_eq!(is_from_package("other{from=\"package\"} 1\n"), None);
        assert_eq!(is_from_package(BUILD_INFO), None);
    }
}
