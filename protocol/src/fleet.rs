//! Objects of the fleet: which version of a part runs in which guests, and how it gets there.
//!
//! A `FleetEnvironment` says which guests a part is for. A `FleetDeployment` brings one revision of
//! the environment to them. A `FleetInstance` holds the turns of one guest.
//! A `FleetChannel` names the version that environments follow.

mod channel;
mod deployment;
mod environment;
mod instance;
mod kind;
mod release;
mod revision;
mod rollout;
mod rules;
mod runner;
mod schedule;
mod selector;
mod texts;
mod window;

pub use channel::{
    CONDITION_ADOPTED, CONDITION_VERIFIED, ChannelCondition, ChannelProblem, ChannelReading,
    ChannelSpec, ChannelStatus, ChannelTrust, NamedVersion, ServedVersion,
};
pub use deployment::{
    BlockedBy, DeploymentKind, DeploymentSpec, DeploymentState, DeploymentStatus, GroupState,
    GroupStatus, HookStatus, Progress, Tick,
};
pub use environment::{
    Counts, Critical, CurrentVersion, EnvironmentSpec, EnvironmentState, EnvironmentStatus,
    EnvironmentType, Health, Lock, Release, Service, Source,
};
pub use instance::{
    InstancePart, InstanceSpec, InstanceStatus, TurnEnd, TurnResult, TurnSpec, TurnVerb, Unmanaged,
    instance_name, node_instance_name, service_instance_name,
};
pub use kind::{
    FINALIZER, FleetKind, GROUP, KEY_DIGEST, KEY_ENROLLED, KEY_ENVIRONMENT, KEY_HOOK, KEY_REFRESH,
    KEY_SCHEDULE, KEY_UNHEALTHY, VERSION,
};
pub use release::{
    BUNDLE_BYTES, LinkRange, MANIFEST_BYTES, ReleaseImage, ReleaseManifest, ReleaseProgram,
    own_links,
};
pub use revision::{Resolved, RevisionData, revision_label, revision_name};
pub use rollout::{Group, Hook, HookMoment, Judge, OnInconclusive, Rollout};
pub use rules::{check_window, parse_windows, validate_create, validate_delete, validate_update};
pub use runner::{KEY_MOVES, MoveResult, RunnerMove, RunnerMoveEnd};
pub use schedule::{AgentSchedule, SCHEDULE_MEMBER, schedule_map_name};
pub use selector::{Expression, Operator, Selector};
pub use texts::{
    CHANNEL_TEXT_BYTES, channel_critical, channel_version, check_channel_name, check_version,
};
pub use window::{Blackout, Cron, CronVerb, Day, KEY_WINDOWS, Window, is_time_zone};
