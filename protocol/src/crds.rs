//! The CustomResourceDefinition documents of groups `vm.neon.tech`, `policy.bellows.dev` and
//! `fleet.bellows.dev`, as installed into any cluster.
//!
//! Source: docs/compatibility/neonvm.md §1. They are valid `apiextensions.k8s.io/v1` documents with
//! structural schemas.

/// YAML document of VirtualMachine (singular `neonvm`).
pub const VIRTUAL_MACHINE: &str =
    include_str!("../../deploy/chart/bellows/parts/crds/virtualmachines.yaml");
/// YAML document of VirtualMachineMigration (singular `neonvmm`).
pub const VIRTUAL_MACHINE_MIGRATION: &str =
    include_str!("../../deploy/chart/bellows/parts/crds/virtualmachinemigrations.yaml");
/// YAML document of IPPool (singular `ippool`).
pub const IP_POOL: &str = include_str!("../../deploy/chart/bellows/parts/crds/ippools.yaml");
/// YAML document of ScalingPolicy (short `spol`).
pub const SCALING_POLICY: &str =
    include_str!("../../deploy/chart/bellows/parts/crds/scalingpolicies.yaml");
/// YAML document of VirtualMachineSet (short `vmset`).
pub const VIRTUAL_MACHINE_SET: &str =
    include_str!("../../deploy/chart/bellows/parts/crds/virtualmachinesets.yaml");
/// YAML document of CapacityWish (short `cwish`).
pub const CAPACITY_WISH: &str =
    include_str!("../../deploy/chart/bellows/parts/crds/capacitywishes.yaml");

/// YAML document of FleetEnvironment (short `fe`).
pub const FLEET_ENVIRONMENT: &str =
    include_str!("../../deploy/chart/bellows/parts/crds/fleetenvironments.yaml");
/// YAML document of FleetDeployment (short `fd`).
pub const FLEET_DEPLOYMENT: &str =
    include_str!("../../deploy/chart/bellows/parts/crds/fleetdeployments.yaml");
/// YAML document of FleetInstance (short `fi`).
pub const FLEET_INSTANCE: &str =
    include_str!("../../deploy/chart/bellows/parts/crds/fleetinstances.yaml");
/// YAML document of FleetChannel (short `fc`).
pub const FLEET_CHANNEL: &str =
    include_str!("../../deploy/chart/bellows/parts/crds/fleetchannels.yaml");

/// The YAML documents of the groups, in the order in which to install them.
pub const ALL: [&str; 10] = [
    VIRTUAL_MACHINE,
    VIRTUAL_MACHINE_MIGRATION,
    IP_POOL,
    SCALING_POLICY,
    VIRTUAL_MACHINE_SET,
    CAPACITY_WISH,
    FLEET_ENVIRONMENT,
    FLEET_DEPLOYMENT,
    FLEET_INSTANCE,
    FLEET_CHANNEL,
];
