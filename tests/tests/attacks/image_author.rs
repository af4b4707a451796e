//! Attacker: the author of an image, whose `RUN` lines run while the image is built.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bellows_tests::attacks::{Outcome, Report};
use bellows_tests::bellows_bin;
use serde_json::{Value, json};

const NAME: &str = "bellows-tests/attacker:1";
/// The program that attacks, in `src/bin/image_attacker.rs`, and how many attempts it reports.
const PROGRAM: &str = "image-attacker";
const ATTEMPTS: usize = 10;
/// Path of the loader in programs.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
/// A file's content that the attacker must not see.
const SECRET: &str = "secret of the machine";
/// Marks a line of the attacker's report.
const MARK: &str = "attempt:";

/// The attacker without debug information, and the libraries that this test has loaded, which the
/// attacker needs, too.
fn attacker_files(dir: &Path) -> Vec<Value> {
    let small = dir.join("attacker");
    let status = Command::new("strip")
        .arg("-o")
        .args([&small, &bellows_tests::program(PROGRAM)])
        .status()
        .unwrap();
    assert!(status.success(), "strip: {status}");
    let file = |from: &Path, at: &str| json!({"file": {"from": from, "at": at, "mode": 0o755}});
    let maps = procfs::process::Process::myself().unwrap().maps().unwrap();
    let libraries: BTreeSet<PathBuf> = maps
        .into_iter()
        .filter_map(|map| match map.pathname {
            procfs::process::MMapPath::Path(path) if path.to_str()?.contains(".so") => Some(path),
            _ => None,
        })
        .collect();
    let mut files = vec![
        file(&small, "/attacker"),
        file(Path::new("/bin/busybox"), "/bin/sh"),
        file(&std::fs::canonicalize(LOADER).unwrap(), LOADER),
    ];
    files.extend(
        libraries
            .iter()
            .map(|path| file(path, path.to_str().unwrap())),
    );
    files.push(json!({"directory": {"at": "/tmp", "mode": 0o1777}}));
    files
}

/// A container image that holds the attacker.
fn archive(dir: &Path) -> PathBuf {
    let (specification, archive) = (dir.join("image.json"), dir.join("image.tar"));
    let image = json!({
        "reference": "docker.io/bellows-tests/attacker:1",
        "layers": [attacker_files(dir)],
        "entrypoint": ["/attacker"],
    });
    std::fs::write(&specification, image.to_string()).unwrap();
    let words = [specification.to_str().unwrap(), archive.to_str().unwrap()];
    bellows_tests::image::image(&[&["pack"], &words[..]].concat()).unwrap();
    archive
}

/// Builds a guest of the archive by a command that ends with that of the build.
fn build(mut command: Command, archive: &Path, merge: &str) -> Output {
    let dir = archive.parent().unwrap();
    let spec = dir.join("spec.yaml");
    let text = json!({"merge": merge}).to_string();
    std::fs::write(&spec, text).unwrap();
    command
        .args([
            "image",
            "build",
            "--name",
            NAME,
            "--disk-size",
            "256Mi",
            "--from",
        ])
        .arg(archive)
        .arg("--spec")
        .arg(spec);
    if let Some(programs) = bellows_tests::image::guest_programs() {
        command.env("BELLOWS_GUEST_BIN_DIR", programs);
    }
    command.output().unwrap()
}

/// Requirement: W10. `RUN` has all rights of the image's root, and none on the machine.
#[test]
fn run_line_of_an_image_gets_nothing_of_the_machine_that_builds() {
    let dir = tempfile::tempdir().unwrap();
    let archive = archive(dir.path());
    let secret = dir.path().join("secret");
    std::fs::write(&secret, SECRET).unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let trace = dir.path().join("trace");
    let merge = format!(
        "ENV SECRET={} HOST={} PROCESS={}\nENV LD_DEBUG=libs LD_DEBUG_OUTPUT={}\n\
         RUN unset LD_DEBUG; exec /attacker\n",
        secret.display(),
        listener.local_addr().unwrap(),
        std::process::id(),
        trace.display(),
    );
    let output = build(Command::new(bellows_bin()), &archive, &merge);
    let said = String::from_utf8_lossy(&output.stderr);
    let mut report = Report::new("image author");
    let lines = said.split(MARK).skip(1);
    for line in lines {
        let words: Vec<&str> = line
            .split(';')
            .next()
            .unwrap()
            .trim()
            .split(" | ")
            .collect();
        let [target, how, came] = words[..] else {
            panic!("{words:?} is no attempt: {said}");
        };
        let outcome = match came.strip_prefix("refused ") {
            Some(why) => Outcome::Refused(why.to_owned()),
            None => Outcome::Succeeded(came.to_owned()),
        };
        report.record("W10", target, how, outcome);
    }
    assert_eq!(report.attempts().len(), ATTEMPTS, "{said}");
    let files = std::fs::read_dir(dir.path()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let traces: Vec<String> = names.filter(|name| name.starts_with("trace")).collect();
    let outcome = if traces.is_empty() {
        Outcome::Refused("no file".to_owned())
    } else {
        Outcome::Succeeded(format!("root wrote {traces:?}"))
    };
    report.record(
        "W10",
        "a file of root",
        "LD_DEBUG_OUTPUT of the image",
        outcome,
    );
    report.finish();
}

/// Requirement: W10. A build that cannot have its walls ends before anything of the image runs.
#[test]
fn build_is_refused_where_programs_of_an_image_cannot_be_confined() {
    let dir = tempfile::tempdir().unwrap();
    let archive = archive(dir.path());
    let without_bubblewrap =
        "mount --bind /bin/false \"$(command -v bwrap)\" && exec \"$0\" \"$@\"";
    let cases: [(&str, &[&str]); 2] = [
        (
            "no bubblewrap",
            &["--mount", "sh", "-c", without_bubblewrap],
        ),
        ("no numbers of users", &["--user", "--map-root-user"]),
    ];
    for (case, words) in cases {
        let mut command = Command::new("unshare");
        command.args(words).arg(bellows_bin());
        let output = build(command, &archive, "RUN echo it runs >&2; exit 1");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{case}: {said}");
        assert!(!said.contains("it runs"), "{case}: {said}");
        for part in [
            "cannot be kept apart from this machine",
            "apt-get install bubblewrap",
            "sysctl",
        ] {
            assert!(said.contains(part), "{case}: {part}: {said}");
        }
    }
}
