//! The daemon in a network of its own, as in a guest: who is listened to there.

use std::io::{BufRead as _, BufReader};
use std::net::IpAddr;
use std::process::{Child, Stdio};

use test_network::Network;

/// The guest's address, and its host's.
const GUEST: &str = "169.254.254.254";
const HOST: &str = "169.254.254.253";
/// Another address of the guest's.
const OTHER: &str = "10.9.8.7";
const PORT: u16 = 25183;

/// The daemon; it ends with the test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Daemon {
    /// Starts it in a network, and waits until it serves. It leaves the CPUs of this machine alone.
    fn start(network: &Network, files: &std::path::Path) -> Self {
        let mut command = network.command(env!("CARGO_BIN_EXE_neonvmd"));
        command.args(["--cpu-policy=managed", "--files-root"]);
        let spawned = command.arg(files).stderr(Stdio::piped()).spawn();
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
fn the_host_is_listened_to_and_no_program_of_the_guest() {
    let made = || Network::new().expect("a network");
    let Some((guest, host)) = made().zip(made()) else {
        return println!(
            "SKIP(missing: root): the_host_is_listened_to_and_no_program_of_the_guest"
        );
    };
    guest.cable("eth0", &host, "guest");
    guest.ip(&format!("address add {GUEST}/30 dev eth0"));
    host.ip(&format!("address add {HOST}/30 dev guest"));
    guest.ip(&format!("address add {OTHER}/32 dev lo"));
    let files = tempfile::tempdir().expect("a directory");
    let _daemon = Daemon::start(&guest, files.path());
    let answer = asked(&host, GUEST);
    assert!(answer.contains("boot_id"), "{answer}");
    for at in [GUEST, OTHER, "127.0.0.1", "127.1.2.3"] {
        assert_eq!(asked(&guest, at), "", "{at}");
    }
    // From one of its addresses to another, which neither end of the connection tells of.
    guest.ip(&format!(
        "route replace local {GUEST} dev lo table local src {OTHER}"
    ));
    let chosen = guest.ip(&format!("route get {GUEST}"));
    assert!(chosen.contains(&format!("src {OTHER}")), "{chosen}");
    assert_eq!(asked(&guest, GUEST), "", "from {OTHER}");
    assert!(asked(&host, GUEST).contains("boot_id"));
}
