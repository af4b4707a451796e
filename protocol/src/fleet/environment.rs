//! The object `FleetEnvironment`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::deployment::DeploymentKind;
use super::rollout::Rollout;
use super::selector::Selector;
use super::window::{Blackout, Cron, Window};
use crate::parts::PartName;
use crate::vm::Condition;

/// `spec` of a `FleetEnvironment`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvironmentSpec {
    /// How many copies of the part each match has.
    #[serde(default)]
    pub r#type: EnvironmentType,
    /// Part that the environment is about.
    pub part: PartName,
    /// VMs of the environment's namespace whose guests belong to it.
    #[serde(default)]
    pub selector: Selector,
    /// Origin of the version.
    pub source: Source,
    /// Limits of each deployment.
    #[serde(default)]
    pub rollout: Rollout,
    /// Times at which guests change. Without any every time is right.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<Window>,
    /// Times at which no guest changes, also within windows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blackouts: Vec<Blackout>,
    /// Budget for a release that a channel calls critical.
    #[serde(default)]
    pub critical: Critical,
    /// Limits for a part of the control plane. Only for the type `Service`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// Times at which the guests are verified. Only for the type `Cron`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<Cron>,
}

/// Limits for a part of the control plane, whose pods Kubernetes replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Service {
    /// Most pods at the same time, percent of the replicas.
    pub max_active_percent: u32,
    /// Time in which all pods run the new image, seconds. The image goes back after it.
    pub progress_seconds: u64,
}

impl Default for Service {
    fn default() -> Self {
        Self {
            max_active_percent: 100,
            progress_seconds: 600,
        }
    }
}

/// Budget for a release that a channel calls critical. Such a release waits for no window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Critical {
    /// Share of the guests that stays settled and healthy, percent.
    pub min_healthy_percent: u32,
}

impl Default for Critical {
    fn default() -> Self {
        Self {
            min_healthy_percent: 50,
        }
    }
}

/// How many copies of the part each match has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum EnvironmentType {
    /// One on every match.
    #[default]
    Daemon,
    /// Those of a `Deployment`, which Kubernetes replaces.
    Service,
    /// The environment changes nothing. At its times it verifies what runs.
    Cron,
}

impl EnvironmentType {
    /// The type of environments of a part.
    #[must_use]
    pub fn of(part: PartName) -> Self {
        if part.is_service() {
            Self::Service
        } else {
            Self::Daemon
        }
    }

    /// Name in objects.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Daemon => "Daemon",
            Self::Service => "Service",
            Self::Cron => "Cron",
        }
    }
}

/// Origin of the version. One of the two is set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Source {
    /// A release that is named here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<Release>,
    /// A `FleetChannel` of the namespace that names the release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
}

impl Source {
    /// A release by its version.
    #[must_use]
    pub fn of_release(version: impl Into<String>) -> Self {
        let version = version.into();
        Self {
            release: Some(Release { version }),
            channel: None,
        }
    }

    /// A channel by its name.
    #[must_use]
    pub fn of_channel(name: impl Into<String>) -> Self {
        Self {
            release: None,
            channel: Some(name.into()),
        }
    }

    /// The version that is named here. A channel has none.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.release
            .as_ref()
            .map(|release| release.version.as_str())
    }
}

/// A release that was brought to the store of releases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// Semantic version, without a leading v.
    pub version: String,
}

impl EnvironmentSpec {
    /// Whether it verifies what runs, and changes nothing.
    #[must_use]
    pub fn is_cron(&self) -> bool {
        self.r#type == EnvironmentType::Cron
    }

    /// The spec of an object.
    ///
    /// # Errors
    /// A text for people, if the object has no such spec.
    pub fn of_object(object: &Value) -> Result<Self, String> {
        Self::deserialize(&object["spec"]).map_err(|error| error.to_string())
    }

    /// Every guest of the namespace gets a release, with the default limits and at any time.
    #[must_use]
    pub fn of_release(part: PartName, version: &str) -> Self {
        Self {
            r#type: EnvironmentType::of(part),
            part,
            selector: Selector::default(),
            source: Source::of_release(version),
            rollout: Rollout::default(),
            windows: Vec::new(),
            blackouts: Vec::new(),
            critical: Critical::default(),
            service: None,
            cron: None,
        }
    }
}

/// `status` of a `FleetEnvironment`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EnvironmentStatus {
    /// Whether deployments follow from changes of the guests.
    pub state: EnvironmentState,
    /// Health of the guests together.
    pub health: Health,
    /// Version of the newest started revision.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub desired: String,
    /// Versions that run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub current: Vec<CurrentVersion>,
    /// Guests by standing.
    pub counts: Counts,
    /// The one deployment that may change guests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<Lock>,
    /// What a person should know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Whether deployments follow from changes of the guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum EnvironmentState {
    /// Nothing was started since creation or the last stop.
    #[default]
    Inactive,
    /// Guests that join are brought to the environment's version.
    Active,
    /// Its deletion waits for the end of what runs.
    ToBeDeleted,
}

/// Health of the guests together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Health {
    /// No guest can be seen.
    #[default]
    Unknown,
    /// All that can be seen are healthy.
    Healthy,
    /// One is unhealthy, or the newest deployment failed.
    Unhealthy,
}

/// A version and the guests that run it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurrentVersion {
    /// Version that the program names.
    pub version: String,
    /// SHA-256 of the program.
    pub sha256: String,
    /// Number of the guests.
    pub count: u32,
}

/// Guests by standing. `matching` is the sum of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Counts {
    /// All guests of the environment.
    pub matching: u32,
    /// Settled and healthy.
    pub active: u32,
    /// In a turn.
    pub launching: u32,
    /// Settled and unhealthy.
    pub unhealthy: u32,
    /// Settled without figures of their health.
    pub unknown: u32,
    /// Kept out by a label.
    pub opted_out: u32,
    /// In no group of the environment. They are never changed.
    pub unassigned: u32,
    /// Not reachable by the fleet.
    pub unmanaged: u32,
}

/// The one deployment that may change guests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lock {
    /// Name of the deployment.
    pub deployment: String,
    /// Cause of the deployment.
    pub kind: DeploymentKind,
    /// Number of the engine's run that took it.
    pub epoch: u64,
}
