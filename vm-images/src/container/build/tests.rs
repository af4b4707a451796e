use super::*;
use crate::container::config::Process;
use init::inittab;
use std::os::unix::fs::MetadataExt as _;
use test_records::{Missing, skip};

fn guest() -> GuestRecipe {
    kit::recipe().unwrap().guest().unwrap().clone()
}

/// Requirement: N46
#[test]
fn no_script_of_a_container_images_guest_needs_the_images_shell_or_places_of_ours() {
    for (path, text) in scripts(&guest()) {
        assert!(path.starts_with("neonvm/"), "{path}");
        assert!(
            !text.contains("/usr/lib/bellows") && !text.contains("/etc/bellows"),
            "{path}:\n{text}"
        );
        if text.starts_with("#!") {
            assert!(text.starts_with("#!/neonvm/bin/sh\n"), "{path}:\n{text}");
        }
    }
    let table = inittab(&guest(), &ImageSpec::default());
    for line in table.lines() {
        let command = line.rsplit(':').next().unwrap().split(' ').next().unwrap();
        assert!(command.starts_with("/neonvm/"), "{line}");
        let script = command.trim_start_matches('/');
        assert!(
            command.starts_with("/neonvm/bin/") || scripts(&guest()).contains_key(script),
            "{line}"
        );
    }
}

/// Requirement: N46
#[test]
fn guest_is_configured_with_the_images_program() {
    let dir = tempfile::tempdir().unwrap();
    let root = Root(dir.path());
    root.put(
        "etc/passwd",
        b"root:x:0:0::/root:/bin/sh\npg:x:70:70::/home/pg:/bin/sh\n",
        0o644,
    )
    .unwrap();
    root.put("etc/group", b"root:x:0:\npg:x:70:\nssl:x:90:pg\n", 0o644)
        .unwrap();
    let process = Process {
        user: Some("pg".to_owned()),
        env: Some(vec![
            "A=it's".to_owned(),
            "BAD-NAME=x".to_owned(),
            "PATH=/opt/bin".to_owned(),
        ]),
        entrypoint: Some(vec!["/start".to_owned(), "a b".to_owned()]),
        cmd: Some(vec!["serve".to_owned()]),
        working_dir: Some("/srv/x".to_owned()),
    };
    let files: BTreeMap<_, _> = program(root, &process).unwrap().into_iter().collect();
    assert_eq!(files["entrypoint"], "'/start' 'a b'");
    assert_eq!(files["cmd"], "'serve'");
    assert_eq!(
        files["env"],
        "export A='it'\\''s'\nexport HOME='/home/pg'\nexport PATH='/opt/bin'\n"
    );
    assert_eq!(
        files["user"],
        "uid=70\ngid=70\ngroups='--groups 90'\nworkdir='/srv/x'\n"
    );
    let nobody = Process {
        user: Some("nobody".to_owned()),
        ..Process::default()
    };
    assert!(program(root, &nobody).is_err());
}

/// Requirement: N46
#[test]
fn users_are_added_where_they_are_missing() {
    let dir = tempfile::tempdir().unwrap();
    let root = Root(dir.path());
    root.put(
        "etc/passwd",
        b"root:x:0:0:root:/root:/bin/bash\nx:x:111:5::/:/bin/sh\nvm-monitor:x:7:7::/:/bin/sh",
        0o644,
    )
    .unwrap();
    root.put("etc/group", b"root:x:0:\n", 0o644).unwrap();
    root.put("etc/shadow", b"root:!*::0:::::\nx:!:::\n", 0o640)
        .unwrap();
    users(root, &guest()).unwrap();
    let passwd = root.text("etc/passwd").unwrap();
    // The image has no bash, and another user has the number 111.
    assert!(
        passwd.starts_with("root:x:0:0:root:/root:/neonvm/bin/sh\n"),
        "{passwd}"
    );
    assert!(
        passwd.contains("\nsshd:*:112:112:sshd:/run/sshd:"),
        "{passwd}"
    );
    assert_eq!(passwd.matches("vm-monitor").count(), 1, "{passwd}");
    assert_eq!(root.text("etc/shadow").unwrap(), "root:*::0:::::\nx:!:::\n");
    let empty = tempfile::tempdir().unwrap();
    users(Root(empty.path()), &guest()).unwrap();
    assert!(
        Root(empty.path())
            .text("etc/passwd")
            .unwrap()
            .starts_with("root:*:0:0:")
    );
}

/// Requirement: N46
#[test]
fn lines_of_a_specification_change_the_image() {
    if !nix::unistd::geteuid().is_root() {
        let test = "lines_of_a_specification_change_the_image";
        return skip(test, Missing::Root, "files of other owners");
    }
    let dir = tempfile::tempdir().unwrap();
    let root = Root(dir.path());
    root.put(
        "etc/passwd",
        b"root:x:0:0::/root:/bin/sh\npg:x:70:71::/:/bin/sh\n",
        0o644,
    )
    .unwrap();
    let files = BTreeMap::from([("a.conf".to_owned(), b"content".to_vec())]);
    let text = "WORKDIR /srv/x\nCOPY --chmod=0640 --chown=pg a.conf .\nCOPY a.conf /etc/other.conf\nENV A=1\n";
    let mut context = Context::new(root, &Process::default());
    for instruction in merge::parse(text, &files).unwrap() {
        context
            .carry_out(&instruction, &files, &mut Reporter::new(&mut |_| {}))
            .unwrap();
    }
    let copied = fs::metadata(dir.path().join("srv/x/a.conf")).unwrap();
    assert_eq!(
        (copied.mode() & 0o7777, copied.uid(), copied.gid()),
        (0o640, 70, 71)
    );
    assert_eq!(root.text("etc/other.conf").unwrap(), "content");
    assert_eq!(context.env["A"], "1");
}
