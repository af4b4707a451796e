//! A runner's quota in a container with cgroups of version 2. The container is inside a guest,
//! because test machines may have version 1 only. `cluster_vms` covers version 1 in a pod.

use bellows_tests::guest_or_skip;
use bellows_tests::loads::{IN_GUEST, put_program};
use bellows_tests::site::{BOOT_PATIENCE, Site, postgres_vm};
use protocol::vm::VmPhase;
use serde_json::Value;

const VM: &str = "container";

/// A cgroup with the controllers that a kubelet gives a container.
const GROUP: &str = "/sys/fs/cgroup/made/pod";
const MAKE: &str = "cd /sys/fs/cgroup; echo '+cpu +memory' > cgroup.subtree_control; mkdir -p made/pod; \
     echo '+cpu +memory' > made/cgroup.subtree_control";

/// Requirement: N20. The runner's cgroup is created below a process that stays in place, and
/// enforces the quota for every process in it.
#[tokio::test]
async fn a_container_with_cgroups_of_version_2_holds_a_process_to_its_quota() {
    if !guest_or_skip("a_container_with_cgroups_of_version_2_holds_a_process_to_its_quota") {
        return;
    }
    let site = Site::fresh().await.unwrap();
    let object = postgres_vm(VM, (1000, 1000, 1000), (1, 1, 1), false);
    site.create(&object).await.unwrap();
    let running = |vm: &protocol::vm::VirtualMachine| {
        let status = vm.status.as_ref();
        status.is_some_and(|status| status.phase == VmPhase::Running)
    };
    let running = site.wait_vm(VM, "phase Running", BOOT_PATIENCE, running);
    running.await.unwrap();
    put_program(&site, VM).await.unwrap();
    for milli in [250_u64, 500] {
        let work = format!("{MAKE} && {IN_GUEST} {GROUP} quota {milli} 4000; ls -F {GROUP}");
        let text = site.ssh(VM, &work, None).await;
        let text = text.unwrap();
        let (line, rest) = text.split_once('\n').unwrap();
        let said: Value = serde_json::from_str(line).unwrap();
        assert_eq!(said["held_milli"], milli, "{said}");
        let [used, passed] = ["used_ms", "passed_ms"].map(|name| said[name].as_u64().unwrap());
        let allowed = passed * milli / 1000;
        // Half as much again for the first period and the clock's ticks.
        assert!(used <= allowed * 3 / 2, "{said}");
        assert!(used * 4 >= allowed, "it was busy: {said}");
        assert!(!rest.contains("quota/"), "the group is gone again: {rest}");
    }
}
