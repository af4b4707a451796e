//! The tables and keys of a store's file.

use redb::TableDefinition;

/// `kind \0 namespace \0 name` → JSON text.
pub(super) const OBJECTS: TableDefinition<'_, &str, &str> = TableDefinition::new("objects");
/// Numbers about the store itself.
pub(super) const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// Last revision given out, also for removals.
pub(super) const REVISION: &str = "revision";
/// Number of objects: a cheap check that nothing got lost.
pub(super) const COUNT: &str = "count";
/// Version of this layout.
pub(super) const FORMAT: &str = "format";
pub(super) const FORMAT_VERSION: u64 = 1;
/// Identity of the store. Files of before it was introduced get one when they are opened.
pub(super) const ID: &str = "id";
/// Page cache. The objects live in memory anyway.
pub(super) const CACHE_BYTES: usize = 16 << 20;
