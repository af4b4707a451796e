//! Names of the two controllers in metrics and dumps.

/// Name of the VM controller.
pub(super) const CONTROLLER: &str = "virtualmachine";
/// Name of the migration controller.
pub(super) const CONTROLLER_OF_MIGRATIONS: &str = "virtualmachinemigration";
