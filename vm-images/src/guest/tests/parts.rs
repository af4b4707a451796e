//! Runs the scripts `service` and `trial` of a guest in a folder, with real processes. No guest
//! daemon is there.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::SCRIPTS;

/// Longest wait for a state of the processes.
const PATIENCE: Duration = Duration::from_secs(60);

#[expect(clippy::disallowed_methods, reason = "poll interval of a bounded wait")]
fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

/// A guest of files. `sleep` plays the monitor of the image.
struct Guest {
    root: tempfile::TempDir,
    service: Option<Child>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.end();
    }
}

impl Guest {
    fn new() -> Self {
        let guest = Self {
            root: tempfile::tempdir().unwrap(),
            service: None,
        };
        let folders = [
            "lib",
            "etc/services",
            "cgroup/system",
            "run",
            "bin",
            "image",
        ];
        for folder in folders
            .into_iter()
            .chain(["parts/monitor/a", "parts/monitor/b"])
        {
            std::fs::create_dir_all(guest.at(folder)).unwrap();
        }
        for name in ["service", "trial", "parts"] {
            let path = format!("usr/lib/bellows/{name}");
            let (_, text) = SCRIPTS.iter().find(|(script, _)| **script == path).unwrap();
            guest.script(&format!("lib/{name}"), &guest.moved(text));
        }
        let console = guest.at("console").display().to_string();
        guest.script(
            "lib/say",
            &format!("say() {{ echo \"$*\" >> {console}; }}\n"),
        );
        guest.script("bin/logger", "#!/bin/sh\nexec cat > /dev/null\n");
        guest.script(
            "bin/logread",
            "#!/bin/sh\necho \"x vm-monitor: out of luck\"\n",
        );
        guest.clock(100);
        std::fs::write(
            guest.at("etc/services/vm-monitor"),
            format!(
                "user=root\ngroup=system\nset -- {}/vm-monitor 1000\n",
                guest.at("image").display()
            ),
        )
        .unwrap();
        std::fs::copy("/bin/sleep", guest.at("image/vm-monitor")).unwrap();
        guest
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn script(&self, path: &str, text: &str) {
        std::fs::write(self.at(path), text).unwrap();
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.at(path), mode).unwrap();
    }

    fn moved(&self, text: &str) -> String {
        let root = self.root.path().display();
        let moves = [
            ("/usr/lib/bellows/", "lib/"),
            ("/var/lib/bellows/parts", "parts"),
            ("/run/bellows/parts", "run"),
            ("/etc/bellows/", "etc/"),
            ("/sys/fs/cgroup/", "cgroup/"),
            ("/proc/self/oom_score_adj", "oom"),
            ("/proc/uptime", "uptime"),
            ("/run/$name", "run/$name"),
            ("PATH=/usr/local/sbin", "PATH=BIN:/usr/local/sbin"),
        ];
        let text = moves.iter().fold(text.to_owned(), |text, (from, to)| {
            let to = format!("{root}/{to}");
            let to = if from.starts_with("PATH") {
                format!("PATH={root}/bin:/usr/local/sbin")
            } else {
                to
            };
            text.replace(from, &to)
        });
        assert!(!text.contains("/run/bellows"), "{text}");
        text
    }

    fn clock(&self, uptime_s: u64) {
        let draft = self.at("uptime.new");
        std::fs::write(&draft, format!("{uptime_s}.25 0.00\n")).unwrap();
        std::fs::rename(draft, self.at("uptime")).unwrap();
    }

    /// Puts a copy of `program` into slot `a` on trial until uptime 130, as the guest daemon does
    /// for a process that cannot execute another program.
    fn try_program(&self, program: &str) {
        let slot = self.at("parts/monitor/a/program");
        std::fs::copy(program, slot).unwrap();
        std::fs::write(self.at("parts/monitor/trial"), "t1 130 image\n").unwrap();
        symlink("a", self.at("parts/monitor/current")).unwrap();
        std::fs::write(self.at("run/monitor.fresh"), "").unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.arg(self.at("lib/service")).args(arguments);
        command.stdin(Stdio::null());
        command
    }

    /// init starts the service.
    fn start(&mut self) {
        self.end();
        self.service = Some(self.command(&["vm-monitor"]).spawn().unwrap());
    }

    /// Waits until the service has ended.
    fn ends(&mut self) {
        let began = Instant::now();
        let service = self.service.as_mut().unwrap();
        while service.try_wait().unwrap().is_none() {
            assert!(began.elapsed() < PATIENCE, "the service goes on");
            pause();
        }
        self.service = None;
    }

    fn end(&mut self) {
        if let Some(mut service) = self.service.take() {
            if let Some(pid) = self.pid() {
                let _ = Command::new("kill").args(["-9", &pid]).output();
            }
            let _ = service.kill();
            service.wait().unwrap();
        }
    }

    fn pid(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.at("run/monitor.pid")).ok()?;
        Some(text.trim().to_owned())
    }

    /// Waits until the monitor's process runs the program at `path`.
    fn runs(&self, path: &str) {
        let (began, program) = (Instant::now(), self.at(path).canonicalize().unwrap());
        loop {
            let link = self.pid().map(|pid| format!("/proc/{pid}/exe"));
            let found = link.and_then(|link| std::fs::read_link(Path::new(&link)).ok());
            if found.as_ref() == Some(&program) {
                return;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "{found:?} runs, not {program:?}"
            );
            pause();
        }
    }

    fn file(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.at(&format!("parts/monitor/{name}"))).ok()
    }

    fn has_gone_back(&self) {
        self.runs("image/vm-monitor");
        for gone in ["trial", "returning", "current"] {
            let path = self.at(&format!("parts/monitor/{gone}"));
            assert!(path.symlink_metadata().is_err(), "{gone}");
        }
    }
}

/// Requirement: R09
#[test]
fn program_that_ends_on_trial_is_replaced_by_the_former_one() {
    let mut guest = Guest::new();
    guest.try_program("/bin/false");
    guest.start();
    guest.ends();
    assert!(guest.file("trial").is_some(), "the next start decides");
    guest.start();
    guest.has_gone_back();
    let note = guest.file("note").unwrap();
    assert!(
        note.starts_with("t1 it ended with status 1 after 0 s"),
        "{note}"
    );
    assert!(note.contains("out of luck"), "{note}");
    let starts = std::fs::read_to_string(guest.at("run/monitor.starts")).unwrap();
    assert_eq!(starts, "2\n");
}

/// A process that executes the program on trial is as old as the former program.
///
/// Requirement: R09
#[test]
fn program_that_ends_on_trial_is_as_old_as_its_trial() {
    for (tried, seconds) in [("t1 160\n", 4), ("t0 160\n", 64)] {
        let mut guest = Guest::new();
        guest.start();
        guest.runs("image/vm-monitor");
        guest.clock(160);
        std::fs::write(guest.at("run/monitor.tried"), tried).unwrap();
        std::fs::write(guest.at("parts/monitor/trial"), "t1 190 image\n").unwrap();
        guest.clock(164);
        let pid = guest.pid().unwrap();
        Command::new("kill").args(["-9", &pid]).output().unwrap();
        guest.ends();
        guest.start();
        guest.has_gone_back();
        let note = guest.file("note").unwrap();
        let expected = format!("t1 it ended with status 137 after {seconds} s");
        assert!(note.starts_with(&expected), "{tried}: {note}");
    }
}

/// Requirement: R09
#[test]
fn program_that_nobody_keeps_is_killed_at_the_end_of_its_trial() {
    let mut guest = Guest::new();
    guest.try_program("/bin/sleep");
    guest.start();
    guest.runs("parts/monitor/a/program");
    guest.clock(129);
    guest.runs("parts/monitor/a/program");
    guest.clock(130);
    guest.ends();
    guest.start();
    guest.has_gone_back();
    let note = guest.file("note").unwrap();
    assert_eq!(note, "t1 the host did not keep it in time\n");
}

/// Requirement: R09
#[test]
fn program_that_is_kept_outlives_its_trial_and_starts_again() {
    let mut guest = Guest::new();
    guest.try_program("/bin/sleep");
    guest.start();
    guest.runs("parts/monitor/a/program");
    std::fs::remove_file(guest.at("parts/monitor/trial")).unwrap();
    guest.clock(800);
    guest.start();
    guest.runs("parts/monitor/a/program");
    assert_eq!(guest.file("note"), None);
}

/// Requirement: R09
#[test]
fn trial_of_an_earlier_boot_is_over() {
    let mut guest = Guest::new();
    guest.try_program("/bin/sleep");
    // The folder of processes is empty after a boot, and the clock begins again.
    std::fs::remove_file(guest.at("run/monitor.fresh")).unwrap();
    guest.clock(3);
    guest.start();
    guest.has_gone_back();
}

#[test]
fn program_is_tested_as_its_service_runs_it() {
    let guest = Guest::new();
    guest.script("new", "#!/bin/sh\necho \"$@\"\n");
    let new = guest.at("new").display().to_string();
    let output = guest.command(&["vm-monitor", "--self-test", &new]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "1000 --self-test\n"
    );
    assert_eq!(guest.pid(), None, "no start of the service");
    guest.script("new", "#!/bin/sh\necho no cgroup; exit 3\n");
    let output = guest.command(&["vm-monitor", "--self-test", &new]).output();
    assert_eq!(output.unwrap().status.code(), Some(3));
}
