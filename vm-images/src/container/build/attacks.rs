//! Requirement: W10. `RUN` lines of an image attack the machine that builds. Honest lines still
//! work.

use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use super::*;
use crate::container::config::Process;

/// A static program, which runs in a tree without libraries. `xtask setup` installs it.
const BUSYBOX: &str = "/bin/busybox";

/// A tree with a shell and the usual commands.
fn tree(dir: &Path) -> Root<'_> {
    assert!(
        nix::unistd::geteuid().is_root(),
        "builds run as root, and so do these tests: sudo -E cargo test -p vm-images"
    );
    let root = Root(dir);
    root.put("bin/busybox", &fs::read(BUSYBOX).unwrap(), 0o755)
        .unwrap();
    for name in [
        "cat", "chmod", "chown", "cp", "dd", "echo", "head", "id", "ln", "mkdir", "mknod", "mount",
        "mv", "nc", "sh", "stat", "timeout", "touch", "wc",
    ] {
        symlink("busybox", dir.join("bin").join(name)).unwrap();
    }
    root.directory("tmp", 0o1777).unwrap();
    root.put(
        "etc/passwd",
        b"root:x:0:0::/root:/bin/sh\napp:x:70:71::/:/bin/sh\n",
        0o644,
    )
    .unwrap();
    root.put(
        "etc/group",
        b"root:x:0:\napp:x:71:\nextra:x:90:app\n",
        0o644,
    )
    .unwrap();
    root
}

/// Runs the lines of a specification.
fn carry_out(root: Root<'_>, lines: &str) -> Result<(), BuildError> {
    let files = BTreeMap::new();
    let mut context = Context::new(root, &Process::default());
    for instruction in merge::parse(lines, &files).unwrap() {
        context.carry_out(&instruction, &files, &mut Reporter::new(&mut |_| {}))?;
    }
    Ok(())
}

/// Major and minor number of a block device of this machine.
fn block_device() -> Option<(String, String)> {
    let entries = fs::read_dir("/sys/block").unwrap();
    let numbers =
        entries.filter_map(|entry| fs::read_to_string(entry.unwrap().path().join("dev")).ok());
    numbers
        .filter_map(|text| {
            text.trim()
                .split_once(':')
                .map(|(a, b)| (a.to_owned(), b.to_owned()))
        })
        .next()
}

#[test]
fn run_line_reaches_no_device_mount_kernel_setting_port_or_open_file_of_the_machine() {
    let dir = tempfile::tempdir().unwrap();
    let root = tree(dir.path());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (major, minor) = block_device().unwrap_or(("1".into(), "1".into()));
    let attempts = [
        ("device", format!("mknod /tmp/disk b {major} {minor}")),
        ("memory device", "mknod /tmp/mem c 1 1".to_owned()),
        ("mount", "mount -t tmpfs none /mnt".to_owned()),
        ("proc", "mount -t proc none /mnt".to_owned()),
        (
            "kernel setting",
            "mount -t proc none /mnt; read v < /mnt/sys/vm/swappiness && echo $v > /mnt/sys/vm/swappiness".to_owned(),
        ),
        ("port", format!("timeout 2 nc 127.0.0.1 {port} < /dev/null")),
        (
            "open file",
            "for n in 3 4 5 6 7 8 9; do (: <&$n) && echo file $n >> /got; done; exit 1".to_owned(),
        ),
    ];
    let script: String = attempts
        .iter()
        .map(|(what, line)| {
            format!("RUN if ( {line} ) 2>/dev/null; then echo '{what}' >> /got; fi\n")
        })
        .collect();
    carry_out(root, &format!("RUN mkdir -p /mnt && touch /got\n{script}")).unwrap();
    assert_eq!(root.text("got").unwrap(), "", "a RUN line got these");
}

/// Variables of the image are set for its programs only. The loader of this machine's programs
/// reads some of them.
#[test]
fn variables_of_an_image_reach_no_program_of_the_machine() {
    let dir = tempfile::tempdir().unwrap();
    let inside = dir.path().join("root");
    fs::create_dir(&inside).unwrap();
    // Root's home, which holds the cache, is closed to the users of images.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let root = tree(&inside);
    let trace = dir.path().join("trace");
    let lines = format!(
        "ENV LD_DEBUG=all\nENV LD_DEBUG_OUTPUT={}\nENV PATH=/bin\nRUN echo $PATH > /path\n",
        trace.display()
    );
    carry_out(root, &lines).unwrap();
    assert_eq!(root.text("path").unwrap(), "/bin\n");
    let written: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .filter(|name| name != "root")
        .collect();
    assert!(
        written.is_empty(),
        "written outside of the image: {written:?}"
    );
}

/// The owners, modes and users that a line leaves are those of the image.
#[test]
fn run_line_changes_owners_modes_and_users_of_the_image() {
    let dir = tempfile::tempdir().unwrap();
    let root = tree(dir.path());
    let lines = "RUN mkdir /srv && chown 70:71 /srv && echo x > /srv/f && chown 1234:65534 /srv/f\n\
                 RUN touch /srv/s && chown 70:90 /srv/s && chmod 6755 /srv/s && ln -s f /srv/link\n\
                 RUN ln /srv/f /srv/hard && cp /etc/passwd /etc/passwd+ && echo new:x:500:500::/:/bin/sh >> /etc/passwd+ \\
                 && mv /etc/passwd+ /etc/passwd && echo null > /dev/null\n\
                 USER app\n\
                 RUN id -u > /srv/id && id -G >> /srv/id && test ! -w /etc/passwd\n";
    carry_out(root, lines).unwrap();
    let facts = |path: &str| {
        let meta = dir.path().join(path).symlink_metadata().unwrap();
        (meta.mode() & 0o7777, meta.uid(), meta.gid())
    };
    assert_eq!(facts("srv"), (0o755, 70, 71));
    assert_eq!(facts("srv/f"), (0o644, 1234, 65534));
    assert_eq!(facts("srv/hard"), (0o644, 1234, 65534));
    assert_eq!(facts("srv/s"), (0o6755, 70, 90));
    assert_eq!(facts("srv/link"), (0o777, 0, 0));
    assert_eq!(facts("srv/id"), (0o644, 70, 71));
    assert_eq!(facts("bin/busybox"), (0o755, 0, 0));
    assert_eq!(facts("tmp"), (0o1777, 0, 0));
    assert!(root.text("etc/passwd").unwrap().contains("new:x:500:"));
    assert_eq!(root.text("srv/id").unwrap(), "70\n71 90\n");
    assert!(
        fs::read_dir(dir.path().join("dev"))
            .unwrap()
            .next()
            .is_none()
    );
}

/// The builder changes owners after a line. No program of the image may then still change paths.
#[test]
fn processes_that_a_run_line_leaves_end_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let root = tree(dir.path());
    let mark = format!("left-by-{}", std::process::id());
    let line = format!("RUN (while :; do : {mark}; done) > /dev/null 2>&1 < /dev/null &\n");
    carry_out(root, &line).unwrap();
    let processes = fs::read_dir("/proc").unwrap();
    let words = processes.filter_map(|entry| fs::read(entry.unwrap().path().join("cmdline")).ok());
    let left = words.filter(|words| String::from_utf8_lossy(words).contains(&mark));
    assert_eq!(left.count(), 0, "processes of the line still run");
}
