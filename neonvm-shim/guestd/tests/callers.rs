//! The daemon in a network namespace, as in a guest: which callers it serves.

use std::io::{BufRead as _, BufReader};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Stdio};

use test_network::Network;
use test_records::{Missing, skip};

/// Address of the guest, and of its host.
const GUEST: &str = "169.254.254.254";
const HOST: &str = "169.254.254.253";
/// Another address of the guest.
const OTHER: &str = "10.9.8.7";
const PORT: u16 = 25183;

/// The daemon's process; ended on drop.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Daemon {
    /// Starts it in a network, and waits until it serves. It leaves the CPUs of this machine alone.
    fn start(network: &Network, files: &Path, runtime: &Path) -> Self {
        let mut command = network.command(env!("CARGO_BIN_EXE_neonvmd"));
        command
            .args(["--cpu-policy=managed", "--files-root"])
            .arg(files);
        command.arg("--runtime").arg(runtime);
        let spawned = command.stderr(Stdio::piped()).spawn();
        let mut daemon = Self(spawned.expect("nsenter"));
        let said = BufReader::new(daemon.0.stderr.take().expect("piped"));
        let serves = said
            .lines()
            .map_while(Result::ok)
            .any(|line| line.contains("serving"));
        assert!(serves, "it ended");
        daemon
    }
}

fn asked(network: &Network, at: &str) -> String {
    let at: IpAddr = at.parse().expect("an address");
    network.fetches((at, PORT).into(), "/v1/state?after=0&wait_ms=0")
}

#[test]
fn only_the_host_is_served_and_no_program_of_the_guest() {
    let made = || Network::new().expect("a network");
    let Some((guest, host)) = made().zip(made()) else {
        let test = "only_the_host_is_served_and_no_program_of_the_guest";
        return skip(test, Missing::Root, "networks of its own");
    };
    guest.cable("eth0", &host, "guest");
    guest.ip(&format!("address add {GUEST}/30 dev eth0"));
    host.ip(&format!("address add {HOST}/30 dev guest"));
    guest.ip(&format!("address add {OTHER}/32 dev lo"));
    let files = tempfile::tempdir().expect("a directory");
    let no_drive = files.path().join("no-drive");
    let _daemon = Daemon::start(&guest, files.path(), &no_drive);
    let answer = asked(&host, GUEST);
    assert!(answer.contains("boot_id"), "{answer}");
    for at in [GUEST, OTHER, "127.0.0.1", "127.1.2.3"] {
        assert_eq!(asked(&guest, at), "", "{at}");
    }
    // From one of its addresses to another, which neither end of the connection shows.
    guest.ip(&format!(
        "route replace local {GUEST} dev lo table local src {OTHER}"
    ));
    let chosen = guest.ip(&format!("route get {GUEST}"));
    assert!(chosen.contains(&format!("src {OTHER}")), "{chosen}");
    assert_eq!(asked(&guest, GUEST), "", "from {OTHER}");
    assert!(asked(&host, GUEST).contains("boot_id"));
}

/// Requirement: W3. On one machine every caller has the address of the guest's host, also other
/// guests and local users.
#[test]
fn host_without_the_key_of_the_runtime_drive_is_refused() {
    let made = || Network::new().expect("a network");
    let Some((guest, host)) = made().zip(made()) else {
        let test = "host_without_the_key_of_the_runtime_drive_is_refused";
        return skip(test, Missing::Root, "networks of its own");
    };
    guest.cable("eth0", &host, "guest");
    guest.ip(&format!("address add {GUEST}/30 dev eth0"));
    host.ip(&format!("address add {HOST}/30 dev guest"));
    let (files, drive) = (tempfile::tempdir(), tempfile::tempdir());
    let (files, drive) = files
        .and_then(|files| Ok((files, drive?)))
        .expect("directories");
    std::fs::write(drive.path().join("guestd.key"), "right\n").expect("written");
    std::fs::write(drive.path().join("pushed.txt"), "/mnt/ssh\n").expect("written");
    let _daemon = Daemon::start(&guest, files.path(), drive.path());
    let at: IpAddr = GUEST.parse().expect("an address");
    let status = |path: &str, key: Option<&str>| {
        let answer = host.fetches_with((at, PORT).into(), path, key);
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    for path in ["/v1/state", "/cpu", "/files/mnt/ssh", "/metrics"] {
        for wrong in [None, Some("wrong"), Some("")] {
            assert_eq!(status(path, wrong), "401", "{path} {wrong:?}");
        }
    }
    let right = Some("right");
    assert_eq!(status("/v1/state", right), "200");
    // The directory does not exist yet; one that the VM's spec does not name is not even looked
    // for.
    assert_eq!(status("/files/mnt/ssh", right), "400");
    assert_eq!(status("/files/etc", right), "403");
    assert_eq!(asked(&guest, "127.0.0.1"), "", "a program of the guest");
}
