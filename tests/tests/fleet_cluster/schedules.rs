//! The windows of an environment reach the file of an updater in a guest: the fleet annotates the
//! VM, the agent reads that, and the monitor asks the agent.

use anyhow::Result;

use super::{PATIENCE, World};

/// Windows of an environment without any.
const ALWAYS: &str = "*-*-* *:00/20:00 UTC";
const KEY: &str = "fleet.bellows.dev/schedule";
/// Gives the monitor what the package of the updater gives it.
const AS_PACKAGE: &str = "echo 'export VM_MONITOR_SCHEDULE=/run/vm-monitor/schedule' \
     >> /etc/bellows/services/vm-monitor";
/// Ends the monitor, which init starts again. The pattern does not match the shell's own line.
const RESTART: &str = "for process in /proc/[0-9]*; do \
     ! grep -q -- '--contro[l]' $process/cmdline 2> /dev/null || kill ${process#/proc/}; done";

/// Requirement: R19
pub(super) async fn schedule_reaches_the_file_of_an_updater(
    world: &World,
    name: &str,
) -> Result<()> {
    let label = "autoscaling.neon.tech/enabled=true";
    world.kubectl(&["label", "--overwrite", "neonvm", name, label])?;
    world.guest_says(name, AS_PACKAGE).await?;
    world.guest_says(name, RESTART).await?;
    world
        .until("the annotation", PATIENCE, || {
            let vm = world.vm(name)?;
            Ok((vm["metadata"]["annotations"][KEY] == ALWAYS).then_some(()))
        })
        .await?;
    // The monitor asks when it connects, and each six hours.
    world.guest_says(name, RESTART).await?;
    world
        .until("the schedule in the guest", PATIENCE, || {
            let vm = world.vm(name)?;
            let file = world.cluster.guest(&vm, "cat /run/vm-monitor/schedule")?;
            Ok((file == ALWAYS).then_some(()))
        })
        .await
}
