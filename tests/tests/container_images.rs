//! A guest of a container image: packed, specified, built to a disk and booted.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "container_images/given.rs"]
mod given;

use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bellows_tests::patience::wait_for;
use bellows_tests::site::{BOOT_PATIENCE, Site, postgres_vm};
use bellows_tests::{bellows_bin, guest_or_skip};
use protocol::vm::VmPhase;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);
const NAME: &str = "bellows-tests/container:1";

/// Program of the image: prints its user and directory, then waits for the word that ends it.
const PROGRAM: &str = r#"#!/bin/sh
trap 'exit 0' USR1
echo $$ > /srv/app/pid
{ id -u; id -g; pwd; echo "$GREETING"; echo "$SAID"; echo "$*"; } > /srv/app/said.new
mv /srv/app/said.new /srv/app/said
while :; do sleep 0.2; done
"#;

const SPEC: &str = r#"
commands:
- name: once-as-nobody
  user: nobody
  sysvInitAction: once
  shell: echo "$(id -u) $(cat /etc/app.conf)" > /tmp/once
- name: first
  user: root
  sysvInitAction: sysinit
  shell: echo first > /srv/first
shutdownHook: |
  echo "the hook runs" && kill -USR1 $(cat /srv/app/pid)
merge: |
  # The base has no such file.
  COPY --chmod=0640 --chown=app:app app.conf /etc/app.conf
  RUN chmod 0644 /etc/app.conf \
      && mkdir -p /srv/app && chown app:app /srv/app
files:
- filename: app.conf
  content: configured
"#;

fn text(text: &str, at: &str) -> Value {
    json!({"text": {"text": text, "at": at}})
}

/// A container image of Debian's files in two layers. The second removes files of the first.
fn specification() -> Value {
    let mut tools =
        vec![json!({"file": {"from": "/bin/busybox", "at": "/bin/busybox", "mode": 0o755}})];
    for name in [
        "cat", "chmod", "chown", "echo", "id", "ls", "mkdir", "mv", "sh", "sleep",
    ] {
        tools.push(json!({"link": {"to": "busybox", "at": format!("/bin/{name}")}}));
    }
    tools.extend([
        json!({"directory": {"at": "/tmp", "mode": 0o1777}}),
        text(
            "nobody:x:65534:65534::/:/sbin/nologin\napp:x:1234:1235::/srv/app:/bin/sh\n",
            "/etc/passwd",
        ),
        text("app:x:1235:\n", "/etc/group"),
        text("to be taken away", "/srv/gone"),
    ]);
    let program = text(PROGRAM, "/usr/lib/app/app.sh");
    json!({
        "reference": "docker.io/bellows-tests/app:1",
        "layers": [tools, [program, text("", "/srv/.wh.gone")]],
        "entrypoint": ["/bin/sh", "/usr/lib/app/app.sh"],
        "cmd": ["by default"],
        "env": {"GREETING": "it's \"so\""},
        "user": "app",
        "working_dir": "/srv/app",
    })
}

/// Runs `bellows image` and returns its output.
fn image(arguments: &[&str]) -> String {
    bellows_tests::image::image(arguments).unwrap()
}

/// Packs the image and builds a guest of it; returns its digest.
fn build(dir: &Path, archive: &Path) -> String {
    let spec = dir.join("image.yaml");
    std::fs::write(&spec, SPEC).unwrap();
    let (archive, spec) = (archive.to_str().unwrap(), spec.to_str().unwrap());
    let built = image(&[
        "build",
        "--from",
        archive,
        "--name",
        NAME,
        "--spec",
        spec,
        "--disk-size",
        "128Mi",
        "-o",
        "json",
    ]);
    let built: Value = serde_json::from_str(&built).unwrap();
    built["items"][0]["digest"].as_str().unwrap().to_owned()
}

fn pack(dir: &Path) -> PathBuf {
    let (specification_file, archive) = (dir.join("app.json"), dir.join("app.tar"));
    std::fs::write(&specification_file, specification().to_string()).unwrap();
    image(&[
        "pack",
        specification_file.to_str().unwrap(),
        archive.to_str().unwrap(),
    ]);
    archive
}

/// Waits until a shell command in the guest prints something.
async fn said(site: &Site, line: &str) -> String {
    wait_for(line, PATIENCE, || async {
        site.ssh("app", line, None)
            .await
            .map_err(|error| format!("{error:#}"))
    })
    .await
    .unwrap()
}

/// Requirement: N46. A container image becomes a disk that boots. Its program runs with the image's
/// user, environment, arguments and directory, and the specification's additions exist. Layers are
/// merged. Power-off repeats the hook until the program has ended. Rows swap, disk-quota,
/// vm-secret-sync, vm-ssh and vm-neonvmd of NeonVM's suite: the VM's spec applies to the same
/// guest. Equal inputs give equal digests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_image_boots_and_has_what_the_vms_spec_gives() {
    if !guest_or_skip("a_container_image_boots_and_has_what_the_vms_spec_gives") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let archive = pack(dir.path());
    let digest = build(dir.path(), &archive);
    image(&["rm", NAME]);
    assert_eq!(
        build(dir.path(), &archive),
        digest,
        "a second build differs"
    );

    let site = Site::fresh().await.unwrap();
    let mut vm = postgres_vm("app", (1000, 1000, 1000), (1, 1, 1), false);
    vm["spec"]["guest"]["rootDisk"] = json!({"image": NAME, "size": "256Mi"});
    vm["spec"]["restartPolicy"] = json!("Never");
    given::add(&mut vm["spec"]);
    site.create(&vm).await.unwrap();
    given::come_late(&site).await;
    let phase = |vm: &protocol::vm::VirtualMachine| vm.status.clone().unwrap_or_default().phase;
    site.wait_vm("app", "phase Running", BOOT_PATIENCE, |vm| {
        phase(vm) == VmPhase::Running
    })
    .await
    .unwrap();
    let words = said(&site, "cat /srv/app/said").await;
    let words: Vec<&str> = words.lines().collect();
    assert_eq!(
        words,
        [
            "1234",
            "1235",
            "/srv/app",
            "it's \"so\"",
            "it's $HOME",
            "by the VM's \"args\""
        ]
    );
    assert_eq!(
        said(&site, "cat /tmp/once").await.trim(),
        "65534 configured"
    );
    assert_eq!(said(&site, "cat /srv/first").await.trim(), "first");
    assert_eq!(
        said(&site, "ls /srv")
            .await
            .split_whitespace()
            .collect::<Vec<_>>(),
        ["app", "first"]
    );
    // The disk was made larger than the image, and the file system with it.
    let blocks = said(&site, "stat -f -c %b / | awk '$1 > 40000'").await;
    assert!(
        !blocks.trim().is_empty(),
        "the root file system has not grown"
    );
    given::check(&site).await;

    let mut console =
        std::fs::File::open(site.rundir("app").await.unwrap().join("console.log")).unwrap();
    // The connection may break before the command returns.
    let _ = site.ssh("app", "poweroff", None).await;
    wait_for("a power-off after the hook", PATIENCE, || {
        let mut text = String::new();
        console.rewind().unwrap();
        console.read_to_string(&mut text).unwrap();
        let order =
            ["the hook runs", "the program has ended", "POWER OFF"].map(|words| text.find(words));
        async move {
            if order.iter().all(Option::is_some) && order.is_sorted() {
                Ok(())
            } else {
                Err(text)
            }
        }
    })
    .await
    .unwrap();
    drop(site);
    image(&["rm", NAME]);
}

/// Requirement: N46. A failed build names the problem and the file, and leaves no image.
#[test]
fn invalid_images_and_specifications_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (archive, spec) = (dir.path().join("a.tar"), dir.path().join("s.yaml"));
    std::fs::write(&archive, "this is no archive").unwrap();
    std::fs::write(
        &spec,
        "commands: [{name: x, user: root, sysvInitAction: later, shell: y}]\nfoo: 1\n",
    )
    .unwrap();
    let cache = dir.path().join("cache");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(bellows_bin());
        command
            .env("XDG_CACHE_HOME", &cache)
            .env("BELLOWS_GUEST_BIN_DIR", dir.path());
        let output = command
            .args(["image", "build", "--name", "x:1", "--from"])
            .args(arguments)
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    for program in ["vm-monitor", "neonvmd"] {
        std::fs::write(dir.path().join(program), "").unwrap();
    }
    let archive = archive.to_str().unwrap();
    let (code, text) = run(&[archive]);
    assert_eq!(code, Some(69), "{text}");
    assert!(
        text.contains("a.tar cannot be the base of a guest"),
        "{text}"
    );
    let (code, text) = run(&[archive, "--spec", spec.to_str().unwrap()]);
    assert_eq!(code, Some(64), "{text}");
    assert!(
        text.contains("s.yaml is not an image specification") && text.contains("foo"),
        "{text}"
    );
    let (code, text) = run(&[archive, "--disk-size", "1Ki"]);
    assert!(code != Some(0) && text.contains("64Mi"), "{text}");
}
