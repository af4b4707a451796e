use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use protocol::units::Bytes;

use super::*;

/// Owner of the tests' files, by number.
fn owner() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A guest's folders: units, notes, and that of a program.
struct Guest {
    dir: tempfile::TempDir,
}

impl Guest {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        for folder in ["units", "program"] {
            fs::create_dir(dir.path().join(folder)).expect("made");
        }
        fs::write(dir.path().join("limit"), "100\n").expect("written");
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        let root = self.dir.path().canonicalize().expect("a path");
        root.join(name)
    }

    /// Text of a unit. Its check refuses texts with `bad`; its signal adds a line to `signals`.
    fn unit(&self, destination: &str, templates: &str) -> String {
        let (program, signals) = (self.path("program"), self.path("signals"));
        format!(
            "destination = '{}'\nowner = '{}'\n{templates}\n\
             check = ['/bin/sh', '-c', 'if grep -r bad \"$0\"; then exit 1; fi', '{{file}}']\n\
             signal = {{ command = ['/bin/sh', '-c', 'echo $(cat {}/size.conf {}/size.conf/a 2> /dev/null) >> {}'] }}\n\
             [files]\nlimit = {{ path = '{}' }}\n",
            program.join(destination).display(),
            owner(),
            program.display(),
            program.display(),
            signals.display(),
            self.path("limit").display(),
        )
    }

    fn worker(&self) -> Worker {
        let folders = Folders {
            units: self.path("units"),
            notes: self.path("notes"),
        };
        Worker::new(&folders, "program", Arc::new(watch::channel(Vec::new()).0))
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path(name)).ok()
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).into_iter().flatten();
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<_> = names
            .map(|name| name.into_string().expect("text"))
            .collect();
        names.sort();
        names
    }
}

const FILE_TEMPLATE: &str = "template = 'cpus {{ cpus }} limit {{ files.limit }}'";
const FOLDER_TEMPLATE: &str =
    "template = { a = 'cpus {{ cpus }} limit {{ files.limit }}', b = 'fixed' }";

fn state(cpus: u32) -> GuestState {
    GuestState {
        generation: u64::from(cpus),
        cpus_online: cpus,
        cpus_present: cpus,
        cpus_possible: cpus,
        mem_total: Bytes(1 << 30),
        mem_available: Bytes(0),
        boot_id: String::new(),
        kernel: String::new(),
        uptime_s: 0,
        programs: Vec::new(),
        parts: protocol::parts::PartStates::new(),
    }
}

/// A daemon that performs `count` actions for a guest of `cpus` and dies.
async fn steps(guest: &Guest, unit: &str, cpus: u32, count: usize) -> Machine {
    let (worker, unit) = (guest.worker(), unit::parse(unit).expect(unit));
    let mut machine = Machine::new(&unit, worker.note.is_there());
    let values = values(&state(cpus), Files::default().look(&unit.files));
    machine.handle(worker.now(), Event::Values(values));
    for _ in 0..count {
        let Some(action) = machine.poll_action(worker.now()) else {
            break;
        };
        let event = worker.perform(&unit, action).await;
        machine.handle(worker.now(), event);
    }
    machine
}

#[tokio::test]
async fn v29_file_is_old_or_new_after_death_at_each_step() {
    for count in 0..=7 {
        let guest = Guest::new();
        let unit = guest.unit("size.conf", FILE_TEMPLATE);
        steps(&guest, &unit, 1, 100).await;
        steps(&guest, &unit, 2, count).await;
        let cpus = if count >= 5 { 2 } else { 1 };
        let text = format!("cpus {cpus} limit 100");
        assert_eq!(guest.read("program/size.conf"), Some(text), "after {count}");

        let machine = steps(&guest, &unit, 2, 100).await;
        assert_eq!(
            (machine.outcome(), machine.owed()),
            (&Outcome::Current, None)
        );
        assert_eq!(
            guest.read("program/size.conf").as_deref(),
            Some("cpus 2 limit 100")
        );
        assert_eq!(
            guest.names("program"),
            ["size.conf"],
            "nothing is left beside it"
        );
        assert!(guest.names("notes").is_empty());
        let signals = guest.read("signals").unwrap_or_default();
        assert_eq!(
            signals.lines().last(),
            Some("cpus 2 limit 100"),
            "after {count}"
        );
    }
}

#[tokio::test]
async fn v29_folder_is_old_or_new_after_death_at_each_step() {
    for count in 0..=7 {
        let guest = Guest::new();
        let unit = guest.unit("size.conf", FOLDER_TEMPLATE);
        steps(&guest, &unit, 1, 100).await;
        // A file that the unit does not write goes with the old folder.
        let more = guest.unit("size.conf", &FOLDER_TEMPLATE.replace(", b = 'fixed'", ""));
        steps(&guest, &more, 2, count).await;
        let (cpus, names): (u32, &[&str]) = if count >= 5 {
            (2, &["a"])
        } else {
            (1, &["a", "b"])
        };
        assert_eq!(guest.names("program/size.conf"), names, "after {count}");
        let text = format!("cpus {cpus} limit 100");
        assert_eq!(
            guest.read("program/size.conf/a"),
            Some(text),
            "after {count}"
        );

        steps(&guest, &more, 2, 100).await;
        assert_eq!(guest.names("program/size.conf"), ["a"]);
        assert_eq!(guest.names("program"), ["size.conf"]);
        let signals = guest.read("signals").unwrap_or_default();
        assert_eq!(
            signals.lines().last(),
            Some("cpus 2 limit 100"),
            "after {count}"
        );
    }
}

#[tokio::test]
async fn v28_refused_file_is_never_at_its_place() {
    for template in [FILE_TEMPLATE, FOLDER_TEMPLATE] {
        let guest = Guest::new();
        let unit = guest.unit("size.conf", template);
        steps(&guest, &unit, 1, 100).await;
        fs::write(guest.path("limit"), "bad").expect("written");
        let machine = steps(&guest, &unit, 2, 100).await;
        let Outcome::Check(line) = machine.outcome() else {
            panic!("{:?}", machine.outcome());
        };
        assert!(line.contains("cpus 2 limit bad"), "{line}");
        let file = guest
            .read("program/size.conf")
            .or(guest.read("program/size.conf/a"));
        assert_eq!(file.as_deref(), Some("cpus 1 limit 100"));
        assert_eq!(
            guest.names("program"),
            ["size.conf"],
            "the new file is removed"
        );
    }
}

#[tokio::test]
async fn v29_mode_and_owner_are_the_units() {
    let guest = Guest::new();
    let unit = guest.unit("size.conf", FILE_TEMPLATE);
    let unit = unit.replace("\ncheck", "\nmode = '0640'\ncheck");
    steps(&guest, &unit, 1, 100).await;
    let mode = |path: &str| {
        let found = fs::metadata(guest.path(path)).expect("it is there");
        found.permissions().mode() & 0o7777
    };
    assert_eq!(mode("program/size.conf"), 0o640);
    fs::set_permissions(
        guest.path("program/size.conf"),
        fs::Permissions::from_mode(0o666),
    )
    .expect("set");
    steps(&guest, &unit, 1, 100).await;
    assert_eq!(
        mode("program/size.conf"),
        0o640,
        "equal text with another mode is replaced"
    );
    let folder = guest
        .unit("d", FOLDER_TEMPLATE)
        .replace("\ncheck", "\nmode = '0640'\ncheck");
    steps(&guest, &folder, 1, 100).await;
    assert_eq!((mode("program/d"), mode("program/d/a")), (0o750, 0o640));
}

#[tokio::test]
async fn v29_link_out_of_the_folder_is_refused() {
    let guest = Guest::new();
    let unit = guest.unit("size.conf", FILE_TEMPLATE);
    let place = guest.path("program/size.conf");
    fs::write(guest.path("other"), "untouched").expect("written");
    for target in ["../other", "/etc/passwd", ".."] {
        symlink(target, &place).expect("linked");
        let machine = steps(&guest, &unit, 1, 100).await;
        let Outcome::Refused(error) = machine.outcome() else {
            panic!("{target}: {:?}", machine.outcome());
        };
        assert!(error.ends_with("is a link out of its folder"), "{error}");
        assert_eq!(guest.read("other").as_deref(), Some("untouched"));
        fs::remove_file(&place).expect("removed");
    }
    symlink("real.conf", &place).expect("linked");
    steps(&guest, &unit, 1, 100).await;
    assert_eq!(
        fs::read_link(&place).ok().as_deref(),
        Some(Path::new("real.conf"))
    );
    assert_eq!(
        guest.read("program/real.conf").as_deref(),
        Some("cpus 1 limit 100")
    );
    symlink(guest.path("program"), guest.path("way")).expect("linked");
    let unit = unit.replace("program/size.conf", "way/size.conf");
    let machine = steps(&guest, &unit, 1, 100).await;
    let shown = machine.outcome().to_string();
    assert!(shown.contains("has a link in its path"), "{shown}");
}

#[tokio::test]
async fn v28_unit_that_others_can_write_is_refused() {
    let guest = Guest::new();
    let path = guest.path("units/program.toml");
    fs::write(&path, guest.unit("size.conf", FILE_TEMPLATE)).expect("written");
    let set = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set")
    };
    assert!(inputs::unit(&guest.path("units"), "program").is_ok());
    for (name, mode, back) in [
        ("units/program.toml", 0o664, 0o644),
        ("units", 0o777, 0o755),
    ] {
        set(&guest.path(name), mode);
        let error = inputs::unit(&guest.path("units"), "program").expect_err(name);
        assert!(
            error.ends_with("must belong to root and be writable by nobody else"),
            "{error}"
        );
        set(&guest.path(name), back);
    }
    assert!(inputs::unit(&guest.path("units"), "none").is_err());
}

/// Waits until the reports satisfy `wanted`.
async fn reported(
    reports: &mut watch::Receiver<Vec<ProgramFile>>,
    wanted: impl FnMut(&Vec<ProgramFile>) -> bool,
) -> Vec<ProgramFile> {
    let found = tokio::time::timeout(Duration::from_secs(60), reports.wait_for(wanted)).await;
    found.expect("it comes").expect("a sender").clone()
}

fn is(state: ProgramFileState) -> impl FnMut(&Vec<ProgramFile>) -> bool {
    move |all| all.first().is_some_and(|report| report.state == state)
}

#[tokio::test]
async fn v27_files_follow_size_watched_files_and_units() {
    let guest = Guest::new();
    let folders = Folders {
        units: guest.path("units"),
        notes: guest.path("notes"),
    };
    let (size, sizes) = watch::channel(state(1));
    let (reports, mut seen) = watch::channel(Vec::new());
    let stop = CancellationToken::new();
    let daemon = tokio::spawn(run(folders, sizes, reports, stop.clone()));
    let write = |text: &str| {
        fs::write(guest.path("units/new"), text).expect("written");
        fs::rename(guest.path("units/new"), guest.path("units/program.toml")).expect("renamed");
    };
    let text = guest.unit("size.conf", FILE_TEMPLATE);
    write(&text);
    reported(&mut seen, is(ProgramFileState::Current)).await;
    let shows = async |wanted: &str| {
        for _ in 0..600 {
            if guest.read("program/size.conf").as_deref() == Some(wanted) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{wanted}: {:?}", guest.read("program/size.conf"));
    };
    shows("cpus 1 limit 100").await;
    size.send_replace(state(3));
    shows("cpus 3 limit 100").await;
    fs::write(guest.path("limit"), "200\n").expect("written");
    shows("cpus 3 limit 200").await;
    write(&text.replace("{{ cpus }}", "{{ cpu }}"));
    let said = reported(&mut seen, is(ProgramFileState::TemplateFailed)).await;
    assert!(
        said[0].detail.contains("line 1: undefined value"),
        "{said:?}"
    );
    write(&text.replace("{{ cpus }}", "{{ cpus"));
    let said = reported(&mut seen, is(ProgramFileState::Refused)).await;
    assert!(
        said[0].detail.starts_with("template: line 1: syntax error"),
        "{said:?}"
    );
    shows("cpus 3 limit 200").await;
    fs::remove_file(guest.path("units/program.toml")).expect("removed");
    reported(&mut seen, Vec::is_empty).await;
    stop.cancel();
    daemon.await.expect("it ends");
}
