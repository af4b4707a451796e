use std::path::PathBuf;
use std::process::Command;

use super::*;

mod parts;

fn guest(name: &str) -> GuestRecipe {
    Recipe::load(name).unwrap().guest().unwrap().clone()
}

/// Requirement: N46
#[test]
fn inittab_starts_everything_and_ends_it_in_order() {
    let files = files(&guest("bellows/postgres:15"));
    let expected = "\
::sysinit:/usr/lib/bellows/sysinit
::respawn:/usr/lib/bellows/service postgres
::respawn:/usr/lib/bellows/service postgres-password
::respawn:/usr/lib/bellows/service neonvmd
::respawn:/usr/lib/bellows/service vm-monitor
::respawn:/usr/lib/bellows/service sshd
::respawn:/usr/lib/bellows/service swap
::once:/usr/lib/bellows/ready POSTGRES READY
::respawn:/usr/lib/bellows/log-port
::respawn:/sbin/acpid -f -l /dev/null
ttyS0::respawn:/sbin/getty -n -L -l /usr/lib/bellows/console 115200 ttyS0 vt100
::ctrlaltdel:/sbin/poweroff
::shutdown:/usr/lib/bellows/shutdown
";
    assert_eq!(files["etc/inittab"], expected);
    for line in expected.lines() {
        let command = line.split(':').nth(3).unwrap();
        assert!(command.len() < 250, "busybox cuts {command}");
        let program = command.split(' ').next().unwrap().trim_start_matches('/');
        let ours = program.starts_with("usr/lib/bellows/");
        assert!(
            !ours || files.contains_key(program),
            "{program} is not in the image"
        );
    }
}

/// Requirement: N46
#[test]
fn the_database_has_its_own_cgroup_and_the_rest_another() {
    let files = files(&guest("bellows/postgres:15"));
    assert_eq!(files["etc/bellows/cgroups"], "postgres\nsystem\n");
    assert!(
        files["etc/bellows/services/postgres"].starts_with("user='postgres'\ngroup='postgres'\n")
    );
    assert!(files["etc/bellows/services/vm-monitor"].starts_with(
        "user='vm-monitor'\ngroup='system'\n\
             directory='/run/vm-monitor'\n\
             owns='/run/vm-monitor /sys/fs/cgroup/memory.pressure /sys/fs/cgroup/postgres/memory.pressure \
             /sys/fs/cgroup/postgres/memory.reclaim'\n"
    ));
    assert!(files["etc/bellows/services/sshd"].contains("after_ready=1\n"));
    assert!(!files["etc/bellows/services/neonvmd"].contains("after_ready"));
    let minimal = super::files(&guest("bellows/minimal"));
    assert_eq!(minimal["etc/bellows/cgroups"], "system\n");
    assert!(!minimal.contains_key("etc/bellows/services/postgres"));
}

/// Requirement: V27
#[test]
fn settings_of_the_database_follow_the_size() {
    let files = files(&guest("bellows/postgres:15"));
    let unit = &files["etc/bellows/render.d/postgres.toml"];
    assert!(
        unit.contains("/usr/lib/postgresql/15/bin/postgres\""),
        "{unit}"
    );
    assert!(
        !super::files(&guest("bellows/minimal")).contains_key("etc/bellows/render.d/postgres.toml")
    );
}

/// Requirement: N46
#[test]
fn arguments_of_a_service_reach_it_unchanged() {
    let words = [
        "/bin/echo",
        "a b",
        "it's",
        "$HOME `x` \"q\" \\",
        "--pg=host=/tmp user=x",
        "",
    ];
    let service = ServiceRecipe {
        name: "s".into(),
        command: words.iter().map(|w| (*w).to_owned()).collect(),
        user: "root".into(),
        cgroup: "system".into(),
        directory: None,
        owns: Vec::new(),
        after_ready: false,
    };
    let script = format!("{}printf '%s\\n' \"$@\"", service_file(&service));
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let got = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        got.strip_suffix('\n')
            .unwrap()
            .split('\n')
            .collect::<Vec<_>>(),
        words
    );
}

/// Requirement: N46
#[test]
fn guest_scripts_are_sound_shell() {
    let initrd = ("initrd", include_str!("../../guest/initrd-init.sh"));
    for (name, text) in SCRIPTS.iter().copied().chain([initrd]) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("script");
        fs::write(&path, text).unwrap();
        let output = Command::new("sh").arg("-n").arg(&path).output().unwrap();
        assert!(
            output.status.success(),
            "{name}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let sourced = name.ends_with("/say") || name.ends_with("/parts");
        assert!(sourced || text.starts_with("#!/bin/sh\n"), "{name}");
    }
}

/// Runs the password script in a guest whose secret holds `secret`. Returns psql's standard input,
/// the password in its environment, and its arguments.
fn set_password(secret: &str) -> (String, String, String) {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    let run = at("run/bellows/postgres");
    fs::create_dir_all(&run).unwrap();
    fs::create_dir(at("bin")).unwrap();
    fs::write(run.join(protocol::postgres::KEY), secret).unwrap();
    let root = dir.path().display();
    for (tool, text) in [
        ("pg_isready", "exit 0".to_owned()),
        (
            "psql",
            format!(
                "cat > {root}/sql; printf %s \"$PASSWORD\" > {root}/password; echo \"$*\" > {root}/words"
            ),
        ),
        // The script sleeps when it is done. This ends it.
        ("sleep", "kill $PPID".to_owned()),
    ] {
        let path = at("bin").join(tool);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mount = protocol::postgres::MOUNT_PATH;
    let script = files(&guest("bellows/postgres:15"))["usr/lib/bellows/postgres-password"].clone();
    assert!(script.contains(mount), "the script looks where the disk is");
    let script = script
        .replace(
            "PATH=/usr/local/sbin",
            &format!("PATH={root}/bin:/usr/local/sbin"),
        )
        .replace(". /usr/lib/bellows/say", "say() { :; }")
        .replace("/run/bellows", &format!("{root}/run/bellows"));
    Command::new("sh").arg("-c").arg(script).status().unwrap();
    assert!(at("run/bellows/postgres.set").exists());
    let read = |path: &str| fs::read_to_string(at(path)).unwrap();
    (read("sql"), read("password"), read("words"))
}

#[test]
fn password_of_the_database_stands_in_no_statement_and_on_no_command_line() {
    for secret in ["s3cret-word", "s3cret-word\n", "s3cret-word\nsecond"] {
        let (sql, password, words) = set_password(secret);
        assert_eq!(password, "s3cret-word");
        assert!(!sql.contains(&password) && !words.contains(&password));
        assert!(
            sql.contains("ALTER ROLE postgres PASSWORD :'password';"),
            "{sql}"
        );
    }
    let odd = r#"it's "x" \y $HOME `id`"#;
    assert_eq!(set_password(odd).1, odd);
}

#[test]
fn database_takes_sessions_from_outside_by_password_alone() {
    let rules = include_str!("../../guest/pg_hba.conf");
    let rules = rules.lines().filter(|line| !line.starts_with('#'));
    for rule in rules.filter(|rule| !rule.starts_with("local")) {
        let method = rule.split_whitespace().nth(4);
        assert!(matches!(method, Some("scram-sha-256" | "reject")), "{rule}");
    }
}

/// Requirement: N46
#[test]
fn sshd_takes_keys_only_and_follows_links() {
    let config = &files(&guest("bellows/minimal"))["etc/ssh/sshd_config"];
    for line in [
        "AuthorizedKeysFile /mnt/ssh/authorized_keys",
        "StrictModes no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "AuthenticationMethods publickey",
    ] {
        assert!(config.lines().any(|l| l == line), "{line}");
    }
}

/// Requirement: N46
#[test]
fn memory_is_made_movable_before_the_driver_is_loaded() {
    let script = include_str!("../../guest/sysinit.sh");
    let policy = script.find("online_movable > ").unwrap();
    assert!(policy < script.find("insmod").unwrap());
    assert!(script.contains("memhp_default_state=*"));
    let modules = guest("bellows/postgres:15").kernel.modules;
    assert!(modules.contains(&"virtio_mem".to_owned()) && modules.contains(&"button".to_owned()));
}

/// Runs the log port's script in a guest with these ports, of which the second is the log's.
/// Returns its output.
fn log_port(names: &[&str], container: bool) -> (String, Option<PathBuf>, u32) {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    fs::create_dir_all(at("dev")).unwrap();
    fs::create_dir_all(at("sys/fs/cgroup/system")).unwrap();
    fs::create_dir_all(at("etc/bellows")).unwrap();
    if container {
        fs::write(at("etc/bellows/container"), "").unwrap();
    }
    for (place, name) in names.iter().enumerate() {
        let port = format!("vport0p{place}");
        fs::create_dir_all(at("sys/class/virtio-ports").join(&port)).unwrap();
        let told = at("sys/class/virtio-ports").join(&port).join("name");
        fs::write(told, format!("{name}\n")).unwrap();
        fs::write(at("dev").join(&port), "").unwrap();
    }
    let root = dir.path().display();
    let script = include_str!("../../guest/log-port.sh")
        .replace("/sys/", &format!("{root}/sys/"))
        .replace("=/dev\n", &format!("={root}/dev\n"))
        .replace("/etc/bellows", &format!("{root}/etc/bellows"))
        .replace("exec logread -F", "exec echo of the services")
        .replace("exec sleep 2147483647", "exec true");
    let output = Command::new("sh").arg("-c").arg(script).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
    let link = fs::read_link(at("dev/virtio-ports/tech.neon.log.0")).ok();
    let port = at("dev/vport0p1");
    let mode = fs::metadata(&port).map_or(0, |file| file.permissions().mode() & 0o777);
    (fs::read_to_string(port).unwrap_or_default(), link, mode)
}

/// Requirement: N46
#[test]
fn the_services_log_goes_to_the_hosts_port_which_an_image_of_a_container_has_for_itself() {
    let link = Some(PathBuf::from("../vport0p1"));
    let ports = ["another", "tech.neon.log.0"];
    let of_services = "of the services\n".to_owned();
    assert_eq!(log_port(&ports, false), (of_services, link.clone(), 0o666));
    assert_eq!(log_port(&ports, true), (String::new(), link, 0o666));
    assert_eq!(log_port(&[], false), (String::new(), None, 0));
}

/// Requirement: N46
#[test]
fn files_replace_links_instead_of_following_them() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    fs::write(&outside, "untouched").unwrap();
    let root = dir.path().join("root");
    fs::create_dir_all(root.join("etc")).unwrap();
    std::os::unix::fs::symlink(&outside, root.join("etc/hostname")).unwrap();
    put(&root, "etc/hostname", b"guest\n", 0o644).unwrap();
    assert_eq!(fs::read_to_string(&outside).unwrap(), "untouched");
    assert_eq!(
        fs::read_to_string(root.join("etc/hostname")).unwrap(),
        "guest\n"
    );
}
