//! Names of the group and its kinds.

/// API group of the fleet.
pub const GROUP: &str = "fleet.bellows.dev";
/// Version of the group.
pub const VERSION: &str = "v1alpha1";
/// Label of a VM or namespace. The value `false` keeps its guests out of the fleet.
pub const KEY_ENROLLED: &str = "fleet.bellows.dev/enrolled";
/// Label of a `ControllerRevision`: the environment that it belongs to.
pub const KEY_ENVIRONMENT: &str = "fleet.bellows.dev/environment";
/// Annotation of a VM with the schedule of its package's upgrades, lines for `OnCalendar=` of
/// systemd. Its agent gives them to its monitor. It is also the label, with the value `agent`, of
/// the map in which an agent says whether it may restart.
pub const KEY_SCHEDULE: &str = "fleet.bellows.dev/schedule";
/// Annotation of a `ControllerRevision`: the SHA-256 of what it says.
pub const KEY_DIGEST: &str = "fleet.bellows.dev/digest";

/// Annotation of a VM: why a health check of the operator's calls its guest unhealthy. Without it,
/// or with an empty text, nothing speaks against the guest.
pub const KEY_UNHEALTHY: &str = "fleet.bellows.dev/unhealthy";
/// Begin of the key of an annotation of a deployment with the answer of a hook. The hook's name
/// ends the key.
pub const KEY_HOOK: &str = "hook.fleet.bellows.dev/";

/// Finalizer of an environment: its deletion waits for the end of its deployments.
pub const FINALIZER: &str = "fleet.bellows.dev/deployments";
/// Annotation of a channel. The fleet reads the channel at once after each change of its value.
pub const KEY_REFRESH: &str = "fleet.bellows.dev/refresh";

/// A kind of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FleetKind {
    /// Guests of a part and the version that they should run.
    Environment,
    /// One change of an environment's guests to a revision.
    Deployment,
    /// Turns of one guest.
    Instance,
    /// A name in a repository of releases.
    Channel,
}

impl FleetKind {
    /// Every kind of the group.
    pub const ALL: [Self; 4] = [
        Self::Environment,
        Self::Deployment,
        Self::Instance,
        Self::Channel,
    ];

    /// Name of the kind in objects.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Environment => "FleetEnvironment",
            Self::Deployment => "FleetDeployment",
            Self::Instance => "FleetInstance",
            Self::Channel => "FleetChannel",
        }
    }

    /// Name of the kind in URLs.
    #[must_use]
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Environment => "fleetenvironments",
            Self::Deployment => "fleetdeployments",
            Self::Instance => "fleetinstances",
            Self::Channel => "fleetchannels",
        }
    }

    /// The kind of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}
