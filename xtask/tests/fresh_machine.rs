//! What a command does first on a machine that has nothing.

use std::process::Command;

/// Found on a machine that had Go and nothing else: a quarter of an hour of building, then no
/// `mmdebstrap`.
#[test]
fn what_builds_a_cluster_is_installed_before_anything_is_built() {
    let empty = tempfile::tempdir().expect("a directory");
    for arguments in [["cluster", "build"], ["cluster", "test"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .args(arguments)
            // No shell is found there either, so that nothing is installed by this.
            .env("PATH", empty.path())
            .env("XDG_CACHE_HOME", empty.path())
            .env_remove("CARGO_TARGET_DIR")
            .output()
            .expect("xtask");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(
            complaint.contains("mmdebstrap") && complaint.contains("cpio"),
            "{arguments:?}: {complaint}"
        );
    }
}
