//! The monitor reads its group and never sets a limit in it: `memory.high` once froze a database.

mod harness;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use harness::{GIB, Guest, MIB};
use protocol::monitor::MonitorBody;

/// Everything that can be written to in a memory group.
const FILES: [&str; 9] = [
    "cgroup.freeze",
    "cgroup.procs",
    "cgroup.subtree_control",
    "memory.high",
    "memory.low",
    "memory.max",
    "memory.min",
    "memory.reclaim",
    "memory.swap.max",
];

fn contents(folder: &Path) -> BTreeMap<String, (Vec<u8>, SystemTime)> {
    let entries = std::fs::read_dir(folder).expect("there");
    let read = entries.map(|entry| {
        let entry = entry.expect("entry");
        let modified = entry
            .metadata()
            .and_then(|data| data.modified())
            .expect("a time");
        let name = entry.file_name().to_string_lossy().into_owned();
        (
            name,
            (std::fs::read(entry.path()).expect("readable"), modified),
        )
    });
    read.collect()
}

#[tokio::test]
async fn growth_and_shrink_leave_every_file_as_it_was() {
    let guest = Guest::start().await;
    for name in FILES {
        std::fs::write(guest.files.cgroup().join(name), "max\n").expect("written");
    }
    let mut agent = guest.agent().await;
    guest.settle(3600 * MIB).await;
    let under_pressure = contents(&guest.files.cgroup());
    assert_eq!(agent.frame().await.body, MonitorBody::UpscaleRequest);
    assert_eq!(
        agent.upscale(8 * GIB).await,
        MonitorBody::UpscaleConfirmation
    );
    assert_eq!(contents(&guest.files.cgroup()), under_pressure);
    guest.settle(100 * MIB).await;
    let at_rest = contents(&guest.files.cgroup());
    guest.shrinks_at_last(&mut agent, GIB).await;
    let files = guest.stop().await;
    assert_eq!(contents(&files.cgroup()), at_rest);
}

#[test]
fn no_source_file_opens_anything_for_writing() {
    let mut folders = vec![PathBuf::from("src")];
    let mut read = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("there") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("text");
            // Tests within the sources may write to folders of their own.
            let code = text
                .split("#[cfg(test)]\nmod tests {")
                .next()
                .expect("a part");
            for word in [
                "fs::write",
                "File::create",
                "OpenOptions",
                ".write(true)",
                ".append(true)",
            ] {
                // A pressure trigger is armed by writing into its file; the estimator of the
                // working set and the soft squeeze, off unless asked for, take memory by another.
                // The schedule of upgrades goes to a file of its own, if an option names one.
                // Nothing else is ever opened for writing.
                let excused = ["pressure.rs", "reclaim.rs", "schedule.rs"];
                let is_excused = excused
                    .iter()
                    .any(|name| path.ends_with(format!("shell/{name}")));
                assert!(
                    is_excused || !code.contains(word),
                    "{}: {word}",
                    path.display()
                );
            }
            // The kernel's limits are not even named in code, so that no file of theirs can be
            // opened.
            for limit in ["memory.high", "memory.max", "memory.low", "memory.min"] {
                let named = code.lines().any(|line| {
                    !line.trim_start().starts_with("//") && line.contains(&format!("\"{limit}"))
                });
                assert!(!named, "{}: {limit}", path.display());
            }
            read += 1;
        }
    }
    assert!(read > 10, "only {read} files looked at");
}
