//! The real daemon is killed with SIGKILL again and again while it replaces a file and a folder.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::time::sleep;

/// Deaths of the daemon.
const DEATHS: u32 = 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// Folders of a daemon and of the program that it serves.
struct World {
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in [
            "units",
            "program",
            "sys/devices/system/cpu",
            "proc/sys/kernel/random",
        ] {
            fs::create_dir_all(at(name)).unwrap();
        }
        for (file, text) in [
            ("sys/devices/system/cpu/online", "0\n"),
            ("sys/devices/system/cpu/present", "0\n"),
            ("sys/devices/system/cpu/possible", "0\n"),
            (
                "proc/meminfo",
                "MemTotal: 1048576 kB\nMemAvailable: 500 kB\n",
            ),
            ("proc/uptime", "5.0 5.0\n"),
            ("proc/sys/kernel/random/boot_id", "b-1\n"),
            ("proc/sys/kernel/osrelease", "6.1.0\n"),
        ] {
            fs::write(at(file), text).unwrap();
        }
        let world = Self { dir };
        world.count(0);
        let owner = fs::metadata(world.at("program")).unwrap();
        let owner = std::os::unix::fs::MetadataExt::uid(&owner);
        for (name, templates) in [
            (
                "file",
                "template = '''{{ files.count }}\n{{ memory_mib }}\n{{ files.count }}\n'''",
            ),
            (
                "folder",
                "template = { a = '{{ files.count }}', b = '{{ files.count }}' }",
            ),
        ] {
            let place = world.at("program").join(name);
            let unit = format!(
                "destination = '{}'\nowner = '{owner}'\n{templates}\n\
                 check = ['/bin/sh', '-c', 'sleep 0.02', '{{file}}']\n\
                 signal = {{ command = ['/bin/sh', '-c', 'cat {}* > {}'] }}\n\
                 [files]\ncount = {{ path = '{}' }}\n",
                place.display(),
                if name == "file" {
                    place.clone()
                } else {
                    place.join("a")
                }
                .display(),
                world.at(&format!("signalled-{name}")).display(),
                world.at("count").display(),
            );
            fs::write(world.at("units").join(format!("{name}.toml")), unit).unwrap();
        }
        world
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn count(&self, count: u32) {
        // As the kubelet's layout does, a watched file is replaced as a whole.
        fs::write(self.at("count.new"), format!("{count}\n")).unwrap();
        fs::rename(self.at("count.new"), self.at("count")).unwrap();
    }

    fn daemon(&self) -> Child {
        let mut daemon = Command::new(env!("CARGO_BIN_EXE_neonvmd"));
        daemon.args(["--addr", "127.0.0.1:0"]);
        for (flag, folder) in [
            ("--sysfs", "sys"),
            ("--procfs", "proc"),
            ("--runtime", "runtime"),
            ("--render-units", "units"),
            ("--render-notes", "notes"),
        ] {
            daemon.arg(flag).arg(self.at(folder));
        }
        daemon.stderr(Stdio::null()).spawn().unwrap()
    }

    /// The count that file and folder hold, each whole.
    fn held(&self) -> (Option<String>, Option<String>) {
        let read = |path: &Path| fs::read_to_string(path).ok();
        let file = read(&self.at("program/file")).map(|text| {
            let lines: Vec<_> = text.lines().collect();
            assert_eq!(lines.len(), 3, "{text}");
            assert_eq!((lines[0], lines[1]), (lines[2], "1024"), "{text}");
            assert!(text.ends_with('\n'), "{text}");
            lines[0].to_owned()
        });
        let folder = read(&self.at("program/folder/a")).inspect(|a| {
            assert_eq!(read(&self.at("program/folder/b")).as_ref(), Some(a));
        });
        (file, folder)
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.at(folder)).into_iter().flatten();
        let mut names: Vec<_> = entries
            .map(|one| one.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[tokio::test]
async fn v29_killed_daemon_leaves_old_or_new_and_the_next_one_finishes() {
    let world = World::new();
    for death in 1..=DEATHS {
        world.count(death);
        let mut daemon = world.daemon();
        // The steps of both units take about 100 ms from the daemon's start.
        sleep(Duration::from_millis(u64::from(death) * 10)).await;
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        world.held();
    }
    let mut daemon = world.daemon();
    let newest = DEATHS.to_string();
    let both = (Some(newest.clone()), Some(newest.clone()));
    let began = Instant::now();
    let signalled = |name: &str| fs::read_to_string(world.at(name)).unwrap_or_default();
    let is_told = || {
        let (file, folder) = (signalled("signalled-file"), signalled("signalled-folder"));
        file.starts_with(&format!("{newest}\n")) && folder == newest
    };
    while !is_told() || !world.names("notes").is_empty() {
        assert!(began.elapsed() < PATIENCE, "{:?}", world.names("notes"));
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(world.held(), both);
    assert_eq!(
        world.names("program"),
        ["file", "folder"],
        "nothing is left beside them"
    );
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}
