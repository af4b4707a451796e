use std::path::Path;

use super::*;

/// Parts of a guest whose folders are below `root`.
pub(in crate::shell) fn parts(root: &Path) -> Parts {
    let settings = Settings {
        parts: root.join("parts"),
        run: root.join("run"),
        scripts: root.join("scripts"),
        monitor_control: root.join("control.sock"),
        procfs: "/proc".into(),
    };
    Parts::new(
        settings,
        watch::channel(PartStates::new()).0,
        mpsc::channel(1).0,
    )
}
