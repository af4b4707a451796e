//! The guest daemons of other VMs, by their addresses on the host.

use bellows_tests::attacks::{Outcome, Report};
use bellows_tests::guest_or_skip;
use bellows_tests::site::{BOOT_PATIENCE, Site, postgres_vm};
use protocol::runner::GUESTD_FORWARD;
use protocol::vm::{VirtualMachine, VmPhase};

/// Routes 127.0.0.0/8 to the host instead of the guest itself.
const ROUTE: &str = "ip address del 127.0.0.1/8 dev lo; \
     for way in all eth0; do echo 1 > /proc/sys/net/ipv4/conf/$way/route_localnet; done; \
     ip route add 127.0.0.0/8 via 10.0.2.2 dev eth0";

/// Requirement: W3. The host forwards requests to the daemon of the guest that has the address. The
/// daemon accepts only its own host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guest_writes_no_file_by_an_address_of_a_guest_daemon_on_its_host() {
    if !guest_or_skip("guest_writes_no_file_by_an_address_of_a_guest_daemon_on_its_host") {
        return;
    }
    let site = Site::fresh().await.expect("an instance");
    site.create(&postgres_vm(
        "attacker",
        (1000, 1000, 1000),
        (1, 1, 1),
        false,
    ))
    .await
    .expect("a VM");
    let running = |vm: &VirtualMachine| {
        let status = vm.status.as_ref();
        status.is_some_and(|status| status.phase == VmPhase::Running)
    };
    let vm = site
        .wait_vm("attacker", "phase Running", BOOT_PATIENCE, running)
        .await;
    let address = vm.expect("it boots").status.expect("a status").pod_ip;
    site.ssh("attacker", ROUTE, None)
        .await
        .expect("root may do this");

    let body = r#"{"owned":{"data":"YnkgYSBndWVzdA=="}}"#;
    let length = body.len();
    let mut report = Report::new("guest");
    for (how, head) in [
        ("PUT /files without a key", ""),
        (
            "PUT /files with a guessed key",
            "Authorization: Bearer guessed\\r\\n",
        ),
    ] {
        let line = format!(
            "(printf 'PUT /files/root/attack HTTP/1.0\\r\\n{head}Content-Length: {length}\\r\\n\\r\\n{body}'; sleep 10) \
             | timeout 15 nc {address} {GUESTD_FORWARD}; test ! -e /root/attack/owned || echo WRITTEN"
        );
        let said = site.ssh("attacker", &line, None).await.unwrap_or_default();
        let first = said.lines().next().unwrap_or("no answer").to_owned();
        let outcome = if said.contains("WRITTEN") || first.contains(" 200 ") {
            Outcome::Succeeded(first)
        } else {
            Outcome::Refused(first)
        };
        report.record("W3", format!("{address}:{GUESTD_FORWARD}"), how, outcome);
    }
    report.finish();
}
