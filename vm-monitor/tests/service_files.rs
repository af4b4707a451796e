//! The service files under `dist/`: an unprivileged user, one capability, settings the program
//! knows.

use std::collections::BTreeMap;
use std::path::Path;

fn file(name: &str) -> String {
    let path = Path::new("dist").join(name);
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
    // Only the steps that give one file away each are made as root.
    let as_root = unit.values().flatten();
    let as_root = as_root.filter(|value| value.starts_with('+')).count();
    assert_eq!(as_root, unit["ExecStartPre"].len());
}

/// What a script that runs as root gives away, by the names of files in the group's folder.
fn given_away(script: &str, environment: &[(&str, &str)], there: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let group = folder.path().join("postgres");
    std::fs::create_dir(&group).expect("made");
    for name in there {
        std::fs::write(group.join(name), "").expect("written");
    }
    let root = folder.path().to_str().expect("a name");
    let script = script.replace("/sys/fs/cgroup", root);
    let ended = std::process::Command::new("sh")
        .args(["-ec", &format!("chown() {{ echo \"$@\"; }}\n{script}")])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .envs(environment.iter().copied())
        .output()
        .expect("a shell");
    assert!(ended.status.success(), "{environment:?} {ended:?}");
    assert!(ended.stderr.is_empty(), "{environment:?} {ended:?}");
    let said = String::from_utf8(ended.stdout).expect("text");
    let beginning = format!("vm-monitor {}/", group.display());
    let names = said.lines().map(|line| {
        let name = line.strip_prefix(&beginning);
        name.unwrap_or_else(|| panic!("{line}")).to_owned()
    });
    names.collect()
}

/// The group's files that a service gives its user: to arm triggers on always, to take memory by
/// only where that is switched on, and nothing that the kernel has not.
#[test]
fn only_what_is_used_is_given_away() {
    let unit = settings(&file("vm-monitor.service"));
    let steps = unit["ExecStartPre"].iter().map(|step| {
        let script = step.strip_prefix("+-/bin/sh -c '").expect("a script");
        script.strip_suffix('\'').expect("its end")
    });
    let unit = steps.collect::<Vec<_>>().join("\n");
    let openrc = format!("{}\nstart_pre\n", file("vm-monitor.openrc"));
    let (pressure, reclaim) = ("memory.pressure", "memory.reclaim");
    let all = [pressure, reclaim, "memory.high", "memory.max"];
    let group = ("VM_MONITOR_CGROUP", "postgres");
    let squeeze = |value| ("VM_MONITOR_SOFT_SQUEEZE", value);
    let estimate = |value| ("VM_MONITOR_WORKING_SET", value);
    for (name, script) in [("unit", &unit), ("openrc", &openrc)] {
        for (settings, given) in [
            (vec![group], vec![pressure]),
            (vec![group, squeeze("off"), estimate("off")], vec![pressure]),
            (vec![group, squeeze("on")], vec![pressure, reclaim]),
            (vec![group, estimate("on")], vec![pressure, reclaim]),
            (
                vec![group, squeeze("off"), estimate("on")],
                vec![pressure, reclaim],
            ),
        ] {
            assert_eq!(
                given_away(script, &settings, &all),
                given,
                "{name} {settings:?}"
            );
        }
        // Before Linux 5.19.
        let old = given_away(script, &[group, squeeze("on")], &[pressure]);
        assert_eq!(old, [pressure], "{name}");
    }
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
    let path = Path::new("dist/vm-monitor.openrc");
    let checked = std::process::Command::new("sh")
        .arg("-n")
        .arg(path)
        .status();
    assert!(checked.expect("a shell").success());
}
