//! The commands, one file each.

pub(crate) mod adopt;
pub(crate) mod backup;
pub(crate) mod completion;
pub(crate) mod console;
pub(crate) mod down;
pub(crate) mod fleet;
pub(crate) mod history;
pub(crate) mod image;
pub(crate) mod journal;
pub(crate) mod kubectl;
pub(crate) mod migrate;
pub(crate) mod people;
pub(crate) mod policy;
pub(crate) mod power;
pub(crate) mod psql;
pub(crate) mod resizes;
pub(crate) mod restore;
pub(crate) mod runner;
pub(crate) mod ssh;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod vm;
pub(crate) mod vm_create;
pub(crate) mod vm_delete;
pub(crate) mod vm_disk;
pub(crate) mod why;
