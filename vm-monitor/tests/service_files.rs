//! The service files under `dist/`: an unprivileged user, one capability, settings the program knows.

use std::collections::BTreeMap;
use std::path::Path;

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("dist")
        .join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Names and values of a unit's lines.
fn settings(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut settings: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let lines = text.lines().filter(|line| !line.starts_with(['#', '[']));
    for (name, value) in lines.filter_map(|line| line.split_once('=')) {
        settings
            .entry(name.to_owned())
            .or_default()
            .push(value.to_owned());
    }
    settings
}

#[test]
fn the_unit_gives_one_user_one_capability() {
    let unit = settings(&file("vm-monitor.service"));
    for (name, value) in [
        ("User", "vm-monitor"),
        ("AmbientCapabilities", "CAP_SYS_RESOURCE"),
        ("CapabilityBoundingSet", "CAP_SYS_RESOURCE"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("MemoryDenyWriteExecute", "yes"),
        ("SystemCallFilter", "@system-service"),
        (
            "RestrictAddressFamilies",
            "AF_INET AF_INET6 AF_UNIX AF_VSOCK",
        ),
    ] {
        assert_eq!(unit.get(name), Some(&vec![value.to_owned()]), "{name}");
    }
    // Only the one step that gives the trigger's file away is made as root.
    let as_root = unit.values().flatten();
    let as_root: Vec<_> = as_root.filter(|value| value.starts_with('+')).collect();
    assert_eq!(as_root.len(), 1);
    assert!(as_root[0].contains("/memory.pressure"), "{as_root:?}");
    assert!(!as_root[0].contains("memory.high"));
}

#[test]
fn the_program_knows_every_variable_the_files_name() {
    let help = std::process::Command::new(env!("CARGO_BIN_EXE_vm-monitor"))
        .env_clear()
        .arg("--help")
        .output()
        .expect("started");
    let help = String::from_utf8(help.stdout).expect("text");
    for name in ["vm-monitor.service", "vm-monitor.openrc"] {
        let text = file(name);
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let variables: Vec<_> = words
            .filter(|word| word.starts_with("VM_MONITOR_"))
            .collect();
        assert!(variables.len() >= 3, "{name}");
        for variable in variables {
            assert!(help.contains(variable), "{name}: {variable}");
        }
    }
}

#[test]
fn the_openrc_script_is_a_shell_script_with_the_same_rights() {
    let text = file("vm-monitor.openrc");
    for line in [
        "command_user=vm-monitor:vm-monitor",
        "capabilities=\"^cap_sys_resource\"",
        "no_new_privs=yes",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("dist/vm-monitor.openrc");
    let checked = std::process::Command::new("sh")
        .arg("-n")
        .arg(path)
        .status();
    assert!(checked.expect("a shell").success());
}
