//! The CustomResourceDefinition documents of group `vm.neon.tech`, as installed into any cluster.
//!
//! Source: docs/compatibility/neonvm.md §1. They are valid `apiextensions.k8s.io/v1` documents with
//! structural schemas.

/// VirtualMachine (singular `neonvm`).
pub const VIRTUAL_MACHINE: &str =
    include_str!("../../deploy/chart/bellows/parts/crds/virtualmachines.yaml");
/// VirtualMachineMigration (singular `neonvmm`).
pub const VIRTUAL_MACHINE_MIGRATION: &str =
    include_str!("../../deploy/chart/bellows/parts/crds/virtualmachinemigrations.yaml");
/// IPPool (singular `ippool`).
pub const IP_POOL: &str = include_str!("../../deploy/chart/bellows/parts/crds/ippools.yaml");

/// All of them.
pub const ALL: [&str; 3] = [VIRTUAL_MACHINE, VIRTUAL_MACHINE_MIGRATION, IP_POOL];
