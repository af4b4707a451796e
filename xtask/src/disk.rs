//! Room on the disk for a build and its tests. A linker without room dies of a signal that says
//! nothing about it.

use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::shell;

const GIB: u64 = 1 << 30;
/// Objects, programs and images of a first run.
const FIRST_RUN_GIB: u64 = 24;
/// What a later run writes beside what it finds.
const LATER_RUN_GIB: u64 = 8;

/// Fails unless the target directory's file system has room for a run.
pub(crate) fn ensure_room() -> Result<()> {
    let target = shell::target_dir()?;
    std::fs::create_dir_all(&target).with_context(|| target.display().to_string())?;
    let stat = nix::sys::statvfs::statvfs(&target).context("free space")?;
    let free = stat.blocks_available().saturating_mul(stat.fragment_size());
    judge(&target, free, target.join("debug/deps").exists())
}

fn judge(target: &Path, free: u64, has_built: bool) -> Result<()> {
    let need = if has_built {
        LATER_RUN_GIB
    } else {
        FIRST_RUN_GIB
    };
    if free >= need * GIB {
        return Ok(());
    }
    bail!(
        "the file system of {} has {} MiB free, and a run may write {need} GiB: make room there, \
         or let CARGO_TARGET_DIR name a directory of a larger one",
        target.display(),
        free >> 20
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_run_needs_more_room_than_a_later_one() {
        let judge = |free, has_built| judge(Path::new("target"), free, has_built);
        judge(FIRST_RUN_GIB * GIB, false).expect("room for a first run");
        judge(LATER_RUN_GIB * GIB, true).expect("room for a later run");
        let error = judge(LATER_RUN_GIB * GIB, false).expect_err("too little for a first run");
        assert!(error.to_string().contains("8192 MiB free"), "{error}");
    }
}
