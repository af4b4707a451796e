//! Files of the drive labelled `vmruntime`: instructions for the start of a guest made for NeonVM,
//! of ours or another (docs/compatibility/neonvm.md §3.3).
//!
//! | file | when | what |
//! |---|---|---|
//! | `sysctl.conf` | always | kernel settings, one per line |
//! | `command.sh`, `args.sh` | in the spec | words of the shell that replace the image's |
//! | `env.sh` | in the spec | `export NAME=VALUE` lines |
//! | `mounts.sh` | always | a script that mounts everything else |
//! | `resize-swap-internal.sh` | swap | a script that resizes the swap to the number of bytes in its argument |
//! | `guestd.key` | key | key of the guest's daemon; NeonVM's runner has no such file |
//! | `pushed.txt` | key | the directories that the daemon lets the runner write, one per line |
//! | `monitor.token` | given | token of agents at the guest's monitor ([`super::Plan::with_monitor_token`]) |

use std::collections::BTreeMap;
use std::fmt::Write as _;

use protocol::vm::{EnvVar, Guest};

use super::{DiskProblem, GuestDisk, KEYS, SWAP, What, ext4_label};
use crate::core::guestd_key::GuestdKey;

/// Settings of every guest: a core file gets the name of its process and lies in the process's
/// working directory.
const SYSCTL: &str = "kernel.core_pattern=core\nkernel.core_uses_pid=1\n";
/// Directory of the guest's sshd with authorized keys.
const KEYS_PATH: &str = "/mnt/ssh";
/// Name of the file with the daemon's key. Only root of the guest reads it.
pub const GUESTD_KEY: &str = "guestd.key";
const PUSHED: &str = "pushed.txt";
/// Mount point of the drive in the guest.
const RUNTIME_PATH: &str = "/neonvm/runtime";

/// The guest's own tools come first in images made of containers; other images have them in the
/// usual places. The only tool of a guest that finds labels may be busybox's `findfs`, which finds
/// those of disks and not those of file systems on partitions.
const PREAMBLE: &str = r#"#!/bin/sh
# Mounts what the VM's spec gives. What fails is told, and does not hold up the rest.
set -u
export PATH=/neonvm/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
failed=0
try() {
    "$@" || { failed=1; echo "mounts.sh: this failed: $*" >&2; }
}
labelled() {
    blkid -L "$1" 2> /dev/null || findfs "LABEL=$1"
}
volume() {
    for disk in /dev/vd?; do
        label=$(dd if="$disk" bs=1 skip=32808 count=32 2> /dev/null | tr -d ' \0')
        [ "$label" != "$1" ] || { echo "$disk"; return; }
    done
    blkid -L "$1"
}
files() {
    mkdir -p "$2" && mount -t iso9660 -o ro,mode=0644 "$(volume "$1")" "$2"
}
empty() {
    mkdir -p "$2" && mount -t ext4 -o "$3" "$(labelled "$1")" "$2" && chmod 0777 "$2"
}
memory() {
    mkdir -p "$1" && chmod 0777 "$1" && mount -t tmpfs -o "size=$2" tmpfs "$1"
}
"#;

/// Mounts a persistent disk. The mode of its root is the guest's own once it has a file. The file
/// system grows with the disk. Only guests with such a disk have this part: the runtime drive of
/// the others must equal that of older runners, as they migrate between the two.
const KEPT: &str = r#"kept() {
    disk=$(labelled "$1")
    mkdir -p "$2" && mount -t ext4 -o rw,discard "$disk" "$2" || return
    [ "$(ls -A "$2")" != lost+found ] || chmod 0777 "$2"
    ! command -v resize2fs > /dev/null || resize2fs "$disk" > /dev/null 2>&1 || true
}
"#;

/// `mkswap` takes KiB. Swapped memory must fit into RAM, or the swap keeps its size.
const RESIZE_SWAP: &str = r#"#!/bin/sh
# resize-swap-internal.sh BYTES: swap of that size on the VM's swap disk, which must be large enough; none with 0.
set -eu
export PATH=/neonvm/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
disk=$(blkid -L swapdisk 2> /dev/null || findfs LABEL=swapdisk)
swapoff "$disk" 2> /dev/null || true
[ "$1" != 0 ] || exit 0
mkswap -L swapdisk "$disk" $(($1 / 1024)) > /dev/null
swapon -d "$disk"
"#;

/// Quotes a word for the shell.
#[must_use]
pub fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn words(words: &[String]) -> String {
    words
        .iter()
        .map(|word| quote(word))
        .collect::<Vec<_>>()
        .join(" ")
}

/// All files by name, for a guest with these disks, this much swap, keys, and the key of its
/// daemon.
///
/// # Errors
/// [`DiskProblem`] for a text that the shell cannot represent.
pub fn files(
    guest: &Guest,
    disks: &[GuestDisk],
    swap: Option<u64>,
    has_keys: bool,
    daemon: Option<&GuestdKey>,
) -> Result<BTreeMap<String, Vec<u8>>, DiskProblem> {
    check(guest)?;
    let mut files = BTreeMap::new();
    let mut put = |name: &str, text: String| drop(files.insert(name.to_owned(), text.into_bytes()));
    put("sysctl.conf", sysctl(guest)?);
    if !guest.command.is_empty() {
        put("command.sh", words(&guest.command));
    }
    if !guest.args.is_empty() {
        put("args.sh", words(&guest.args));
    }
    if !guest.env.is_empty() {
        put("env.sh", env(&guest.env)?);
    }
    put("mounts.sh", mounts(guest, disks, swap, has_keys));
    if swap.is_some() {
        put("resize-swap-internal.sh", RESIZE_SWAP.to_owned());
    }
    // Without a key the drive equals that of older runners, from which a guest may migrate.
    if let Some(key) = daemon {
        put(GUESTD_KEY, format!("{}\n", key.as_str()));
        put(PUSHED, pushed(disks));
    }
    Ok(files)
}

fn check(guest: &Guest) -> Result<(), DiskProblem> {
    let has_zero = |text: &String| text.contains('\0');
    for (name, texts) in [("command", &guest.command), ("args", &guest.args)] {
        if texts.iter().any(has_zero) {
            return Err(DiskProblem::Zero(name));
        }
    }
    if guest.env.iter().any(|variable| has_zero(&variable.value)) {
        return Err(DiskProblem::Zero("env"));
    }
    Ok(())
}

fn sysctl(guest: &Guest) -> Result<String, DiskProblem> {
    let mut text = SYSCTL.to_owned();
    for line in guest.settings.iter().flat_map(|settings| &settings.sysctl) {
        if line.contains(['\n', '\0']) {
            return Err(DiskProblem::Sysctl(super::cut(line)));
        }
        text.push_str(line);
        text.push('\n');
    }
    Ok(text)
}

fn env(variables: &[EnvVar]) -> Result<String, DiskProblem> {
    let mut text = String::new();
    for EnvVar { name, value } in variables {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty()
            || !name.chars().all(is_word)
            || name.starts_with(|c: char| c.is_ascii_digit())
        {
            return Err(DiskProblem::Variable(super::cut(name)));
        }
        let _ = writeln!(text, "export {name}={}", quote(value));
    }
    Ok(text)
}

fn pushed(disks: &[GuestDisk]) -> String {
    let watched = disks.iter().filter(|disk| disk.what == What::Watched);
    let paths = watched.map(|disk| disk.path.as_str());
    let lines = std::iter::once(KEYS_PATH).chain(paths);
    lines.map(|path| format!("{path}\n")).collect()
}

fn mounts(guest: &Guest, disks: &[GuestDisk], swap: Option<u64>, has_keys: bool) -> String {
    let mut text = PREAMBLE.to_owned();
    if disks
        .iter()
        .any(|disk| matches!(disk.what, What::Claimed { .. }))
    {
        text.push_str(KEPT);
    }
    let mut line = |words: String| {
        text.push_str(&words);
        text.push('\n');
    };
    if has_keys {
        line(format!("try files {KEYS} {KEYS_PATH}"));
    }
    if let Some(bytes) = swap {
        debug_assert!(RESIZE_SWAP.contains(SWAP));
        line(format!(
            "try sh {RUNTIME_PATH}/resize-swap-internal.sh {bytes}"
        ));
    }
    for GuestDisk { name, path, what } in disks {
        let label = quote(&ext4_label(name));
        let (name, path) = (quote(name), quote(path));
        line(match what {
            What::Empty {
                discard, quotas, ..
            } => {
                let mut options = vec!["rw"];
                options.extend(discard.then_some("discard"));
                options.extend(quotas.then_some("prjquota"));
                format!("try empty {label} {path} {}", options.join(","))
            }
            What::Files => format!("try files {name} {path}"),
            What::Watched => format!("try mkdir -p {path}"),
            What::Memory { bytes } => format!("try memory {path} {bytes}"),
            What::Claimed { .. } => format!("try kept {label} {path}"),
        });
    }
    // A guest sized to use swap has programs that put much into shared memory.
    let boot = guest.smallest().mem.0;
    if let Some(bytes) = swap.filter(|bytes| *bytes > boot / 2) {
        line(format!("try mount -o remount,size={bytes} /dev/shm"));
    }
    line("exit $failed".to_owned());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::disks::disks;
    use proptest::prelude::*;
    use protocol::quantity::Quantity;
    use protocol::vm::{Disk, GuestSettings, VmSpec};
    use serde_json::json;
    use std::process::Command;

    fn spec() -> VmSpec {
        let disk = |value| serde_json::from_value::<Disk>(value).unwrap();
        let mut spec = VmSpec {
            disks: vec![
                disk(
                    json!({"name": "data", "mountPath": "/var/db/postgres/compute",
                    "emptyDisk": {"size": "2Gi", "discard": true, "enableQuotas": true}}),
                ),
                disk(
                    json!({"name": "a-name-longer-than-labels-are", "mountPath": "/srv",
                    "emptyDisk": {"size": "16Mi"}}),
                ),
                disk(
                    json!({"name": "config", "mountPath": "/etc/its", "configMap": {"name": "c"}}),
                ),
                disk(
                    json!({"name": "password", "mountPath": "/var/sync//example/", "watch": true,
                    "secret": {"secretName": "s"}}),
                ),
                disk(json!({"name": "scratch", "mountPath": "/scratch", "tmpfs": {"size": "1Gi"}})),
            ],
            tls: Some(json!({"serverName": "x"})),
            ..VmSpec::default()
        };
        spec.guest.memory_slots.min = 1;
        spec.guest.settings = Some(GuestSettings {
            sysctl: vec!["net.ipv4.ip_forward=1".into()],
            swap: Some(Quantity::from_bytes(1 << 30)),
        });
        spec.guest.command = vec!["/bin/app".into(), "it's \"so\"".into()];
        spec.guest.args = vec!["-x".into(), String::new()];
        spec.guest.env = vec![EnvVar {
            name: "GREETING".into(),
            value: "a\nb".into(),
        }];
        spec
    }

    fn all(spec: &VmSpec) -> BTreeMap<String, String> {
        let disks = disks(spec).unwrap();
        let swap = super::super::swap_bytes(spec).unwrap();
        let files = files(&spec.guest, &disks, swap, true, None).unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        files.into_iter().map(|(n, b)| (n, text(b))).collect()
    }

    #[test]
    fn runtime_files_hold_the_whole_spec() {
        let mut listing = String::new();
        for (name, text) in all(&spec()) {
            let _ = write!(listing, "=== {name}\n{text}");
            if !text.ends_with('\n') {
                listing.push_str("<no line's end>\n");
            }
        }
        assert_eq!(listing, include_str!("../../../testdata/runtime-all.txt"));
    }

    #[test]
    fn empty_spec_has_few_runtime_files() {
        let files = all(&VmSpec::default());
        let names: Vec<&str> = files.keys().map(String::as_str).collect();
        assert_eq!(names, ["mounts.sh", "sysctl.conf"]);
        let commands = files["mounts.sh"].strip_prefix(PREAMBLE).unwrap();
        assert_eq!(
            commands,
            "try files ssh-authorized-keys /mnt/ssh\nexit $failed\n"
        );
    }

    #[test]
    fn drive_with_a_key_holds_the_pushed_directories_too() {
        let spec = spec();
        let disks = disks(&spec).unwrap();
        let key = GuestdKey::new([0xa5; 32]);
        let made = |key| files(&spec.guest, &disks, None, true, key).unwrap();
        let (with, mut without) = (made(Some(&key)), made(None));
        let text = |name: &str| std::str::from_utf8(&with[name]).unwrap();
        assert_eq!(text("guestd.key"), format!("{}\n", "a5".repeat(32)));
        assert_eq!(
            text("pushed.txt"),
            "/mnt/ssh\n/var/sync/example\n/var/tls\n"
        );
        // The other files equal those of a guest without a key.
        for name in ["guestd.key", "pushed.txt"] {
            without.insert(name.to_owned(), with[name].clone());
        }
        assert_eq!(without, with);
    }

    #[test]
    fn scripts_are_valid_and_a_failed_mount_does_not_stop_the_next() {
        let temp = tempfile::tempdir().unwrap();
        // Stub of the guest's tools, which this machine must not run.
        let bin = temp.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        for tool in ["blkid", "dd", "findfs", "mount", "mkdir", "chmod", "sh"] {
            let path = bin.join(tool);
            let fails = if tool == "findfs" { "exit 1" } else { "exit 0" };
            let text = format!(
                "#!/bin/sh\necho {tool} \"$@\" >> {}/log\n{fails}\n",
                temp.path().display()
            );
            std::fs::write(&path, text).unwrap();
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let script = all(&spec())["mounts.sh"]
            .replace("PATH=/neonvm/bin", &format!("PATH={}", bin.display()));
        let mut run = Command::new("/bin/sh");
        let output = run
            .arg("-c")
            .arg(script.replace("prjquota", "nothing"))
            .output()
            .unwrap();
        let log = std::fs::read_to_string(temp.path().join("log")).unwrap();
        assert!(output.status.success(), "{output:?} {log}");
        for line in [
            "mount -t iso9660 -o ro,mode=0644  /mnt/ssh",
            "mount -t ext4 -o rw,discard,nothing  /var/db/postgres/compute",
            "mkdir -p /var/sync/example",
            "mount -t tmpfs -o size=1073741824 tmpfs /scratch",
            "mount -o remount,size=1073741824 /dev/shm",
        ] {
            assert!(log.lines().any(|logged| logged == line), "{line}: {log}");
        }
        std::fs::write(bin.join("mount"), "#!/bin/sh\nexit 1\n").unwrap();
        std::fs::remove_file(temp.path().join("log")).unwrap();
        let output = Command::new("/bin/sh")
            .arg("-c")
            .arg(&script)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("this failed: empty data"), "{said}");
        let log = std::fs::read_to_string(temp.path().join("log")).unwrap();
        assert!(log.contains("mkdir -p /var/tls"), "{log}");
    }

    #[test]
    fn text_that_no_shell_reads_back_is_refused() {
        let refused = |change: fn(&mut Guest)| {
            let mut guest = Guest::default();
            change(&mut guest);
            files(&guest, &[], None, false, None)
                .unwrap_err()
                .to_string()
        };
        let variable = |name: &str| {
            vec![EnvVar {
                name: name.into(),
                value: String::new(),
            }]
        };
        assert!(refused(|g| g.command = vec!["a\0".into()]).contains("command"));
        assert!(refused(|g| g.args = vec!["\0".into()]).contains("args"));
        for name in ["", "a.b", "1a", "a b", "a;reboot", "é"] {
            let guest = Guest {
                env: variable(name),
                ..Guest::default()
            };
            let problem = files(&guest, &[], None, false, None).unwrap_err();
            assert_eq!(problem, DiskProblem::Variable(name.into()));
        }
        let two = |g: &mut Guest| {
            g.settings = Some(GuestSettings {
                sysctl: vec!["a=1\nb=2".into()],
                swap: None,
            });
        };
        assert!(refused(two).contains("more than one line"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn shell_reads_back_the_same_words(said in proptest::collection::vec("[^\0]{0,12}", 0..6)) {
            let script = format!("set -- {}; for word; do printf '%s\\0' \"$word\"; done", words(&said));
            let output = Command::new("sh").arg("-c").arg(script).output().unwrap();
            let read: Vec<Vec<u8>> = output.stdout.split_inclusive(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
            let expected: Vec<Vec<u8>> = said.iter().map(|word| [word.as_bytes(), &[0]].concat()).collect();
            prop_assert_eq!(read, expected);
        }

        #[test]
        fn variable_reaches_the_program_unchanged(value in "[^\0]{0,40}") {
            let text = env(&[EnvVar { name: "V".into(), value: value.clone() }]).unwrap();
            let output = Command::new("sh").arg("-c").arg(format!("{text}printf %s \"$V\"")).output().unwrap();
            prop_assert_eq!(output.stdout, value.into_bytes());
        }
    }
}
