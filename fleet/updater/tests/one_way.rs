//! There is one way to change packages: `upgrade`, by one unit.

use std::fs;
use std::path::Path;

/// Text of each file of a folder, with its name.
fn texts(folder: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = fs::read_dir(folder).expect("a folder");
    let files = entries.map(|entry| entry.expect("an entry").path());
    files
        .filter(|path| path.is_file())
        .map(|path| {
            let name = path.file_name().expect("a name").display().to_string();
            (name, fs::read_to_string(&path).expect("text"))
        })
        .collect()
}

fn names_with(texts: &[(String, String)], word: &str) -> Vec<String> {
    let found = texts.iter().filter(|(_, text)| text.contains(word));
    let mut names: Vec<String> = found.map(|(name, _)| name.clone()).collect();
    names.sort();
    names
}

/// Requirement: R32
#[test]
fn only_upgrade_changes_packages() {
    let shell = texts("src/shell");
    for (program, file) in [
        ("\"apt-get\"", "apt.rs"),
        ("\"dpkg\"", "apt.rs"),
        ("\"dnf\"", "dnf.rs"),
        ("\"rpm\"", "dnf.rs"),
    ] {
        assert_eq!(names_with(&shell, program), [file], "{program}");
    }
    // `check` and `status` know what is installed, and no more.
    let users = names_with(&shell, "Manager");
    assert_eq!(users, ["apt.rs", "dnf.rs", "packages.rs", "upgrade.rs"]);
    let command = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/command.rs"));
    assert_eq!(command.expect("text").matches("upgrade::run").count(), 1);
}

/// Requirement: R41
#[test]
fn other_programs_that_are_run_are_these() {
    let mut programs: Vec<String> = texts("src/shell")
        .iter()
        .flat_map(|(_, text)| {
            let starts = text.split("Command::new(\"").skip(1);
            let programs = starts.filter_map(|rest| rest.split('"').next());
            programs.map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    programs.sort();
    programs.dedup();
    assert_eq!(
        programs,
        [
            "apt-get",
            "dnf",
            "dpkg",
            "dpkg-query",
            "rpm",
            "systemctl",
            "systemd-analyze"
        ]
    );
}

/// Each program runs its own package manager, and has nothing of the other one.
///
/// Requirement: R41
#[test]
fn program_is_built_for_one_package_manager() {
    let (of_apt, of_dnf) = ("/etc/apt/", "/etc/yum.repos.d/");
    for (program, own, other) in [
        (env!("CARGO_BIN_EXE_bellows-updater"), of_apt, of_dnf),
        (env!("CARGO_BIN_EXE_bellows-updater-dnf"), of_dnf, of_apt),
    ] {
        let program = fs::read(program).expect("a program");
        let has = |text: &str| {
            let mut windows = program.windows(text.len());
            windows.any(|window| window == text.as_bytes())
        };
        assert!(has(own) && !has(other), "{own}");
    }
}

/// Requirements: R29, R32
#[test]
fn one_unit_upgrades() {
    let units = texts("dist");
    let of = |verb: &str| names_with(&units, &format!("/bellows-updater {verb}\n"));
    assert_eq!(of("upgrade"), ["bellows-upgrade.service"]);
    assert_eq!(of("check"), ["bellows-upgrade-check.service"]);
    assert_eq!(of("set-schedule"), ["bellows-schedule.service"]);
    assert_eq!(of("clear-schedule"), ["vm-monitor.service.conf"]);
}
