//! What a shrink rests on beside the mean of the readings, over real sockets, with real hooks.

mod harness;

use std::os::unix::fs::PermissionsExt as _;

use harness::{Agent, Files, GIB, Guest, MIB};
use protocol::monitor::{AgentBody, Allocation, MonitorBody};
use protocol::monitor_v2::{Capabilities, MonitorBodyV2, RefusalReason};
use protocol::time::Span;

async fn refused(agent: &mut Agent, mem: u64) -> String {
    match agent.downscale(mem).await {
        MonitorBody::DownscaleResult { ok: false, status } => status,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn n27_what_is_in_swap_would_come_back() {
    let guest = Guest::start().await;
    let swap = guest.files.cgroup().join("memory.swap.current");
    guest.files.write(&swap, &format!("{}\n", 900 * MIB));
    let mut agent = guest.agent().await;
    guest.files.set_usage(100 * MIB);
    guest.five_readings(1000 * MIB).await;
    let status = refused(&mut agent, GIB).await;
    assert!(
        status.contains("100 MiB (in memory) + 900 MiB (in swap)"),
        "{status}"
    );
    guest.files.write(&swap, "0\n");
    guest.five_readings(100 * MIB).await;
    guest.shrinks_at_last(&mut agent, GIB).await;
    guest.stop().await;
}

#[tokio::test]
async fn n27_nothing_shrinks_while_tasks_wait_for_memory() {
    let guest = Guest::start().await;
    let pressure = guest.files.cgroup().join("memory.pressure");
    guest.files.write(
        &pressure,
        "some avg10=31.40 avg60=9.00 avg300=1.00 total=99\n",
    );
    let capabilities = Capabilities::all(Span::from_secs(60));
    let mut agent = Agent::connect_v2(guest.addr, capabilities).await;
    guest.settle(100 * MIB).await;
    let target = Allocation { cpu: 1.0, mem: GIB };
    let id = agent.ask(AgentBody::DownscaleRequest { target }).await;
    let answer = agent.frame_where(|frame| frame.id == id).await;
    let MonitorBodyV2::Refused(refused) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(refused.reason, RefusalReason::Pressure);
    assert!(refused.status.contains("31.4 %"), "{}", refused.status);
    guest.stop().await;
}

#[tokio::test]
async fn n27_n28_hooks_have_a_say() {
    let files = Files::new();
    let folder = files.proc_root().join("hooks.d");
    std::fs::create_dir(&folder).expect("made");
    let (hook, log) = (folder.join("50-say"), files.proc_root().join("hooks.log"));
    let script = format!(
        "#!/bin/sh\necho $1 $BELLOWS_MEMORY_BYTES >> {}\n[ $1 = after-grow ] || {{ echo checkpoint runs; exit 1; }}\n",
        log.display()
    );
    std::fs::write(&hook, script).expect("written");
    std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).expect("set");
    let config = vm_monitor::Config {
        hooks: Some(folder),
        ..files.config()
    };
    let guest = Guest::with(files, config).await;
    let mut agent = guest.agent().await;
    guest.settle(100 * MIB).await;
    let status = refused(&mut agent, GIB).await;
    assert_eq!(status, "hook 50-say: checkpoint runs");
    assert_eq!(
        agent.upscale(8 * GIB).await,
        MonitorBody::UpscaleConfirmation
    );
    let said = std::fs::read_to_string(&log).expect("the hook ran");
    assert_eq!(said, "before-shrink 1073741824\nafter-grow 8589934592\n");
    // Without the hook there is nothing in the way.
    std::fs::remove_file(hook).expect("removed");
    let answer = agent.downscale(GIB).await;
    assert!(
        matches!(answer, MonitorBody::DownscaleResult { ok: true, .. }),
        "{answer:?}"
    );
    let page = guest.page("/metrics", 200).await;
    for line in [
        "vm_monitor_downscale_refusals_total{reason=\"hook\"} 1",
        "vm_monitor_hooks_total{outcome=\"vetoed\"} 1",
        "vm_monitor_hooks_total{outcome=\"passed\"} 2",
    ] {
        assert!(
            page.contains(&format!("\n{line}\n")),
            "{line} is not in\n{page}"
        );
    }
    guest.stop().await;
}

#[tokio::test]
async fn n27_what_cannot_be_moved_is_not_promised() {
    let guest = Guest::start().await;
    // 4 GiB, 3 of them plugged and movable, of which 1 is free and nothing else is anywhere.
    let zone = |name: &str, managed: u64, free: u64| {
        format!(
            "Node 0, zone {name:>8}\n  pages free     {free}\n        high     0\n        managed  {managed}\n"
        )
    };
    let text = [zone("DMA32", 262_144, 0), zone("Movable", 786_432, 262_144)];
    let zoneinfo = guest.files.proc_root().join("zoneinfo");
    guest.files.write(&zoneinfo, &text.concat());
    let capabilities = Capabilities::all(Span::from_secs(60));
    let mut agent = Agent::connect_v2(guest.addr, capabilities).await;
    guest.settle(100 * MIB).await;
    let mem = 3 * GIB - MIB;
    let target = Allocation { cpu: 1.0, mem };
    let id = agent.ask(AgentBody::DownscaleRequest { target }).await;
    let answer = agent.frame_where(|frame| frame.id == id).await;
    let MonitorBodyV2::Refused(refused) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(refused.reason, RefusalReason::NotMovable);
    let mem = refused.smallest.expect("known").mem;
    assert_eq!(mem, 3 * GIB);
    guest.shrinks_at_last(&mut agent, mem).await;
    guest.stop().await;
}

#[tokio::test]
async fn n27_a_soft_squeeze_comes_before_the_answer() {
    let files = Files::new();
    let config = vm_monitor::Config {
        squeezes: true,
        ..files.config()
    };
    let (current, reclaim) = (
        files.cgroup().join("memory.current"),
        files.cgroup().join("memory.reclaim"),
    );
    files.write(&current, &format!("{}\n", 1000 * MIB));
    files.write(&reclaim, "");
    let guest = Guest::with(files, config).await;
    let mut agent = guest.agent().await;
    guest.settle(100 * MIB).await;
    // A group that gives nothing: 924 MiB are to be left of 1000.
    let status = refused(&mut agent, GIB).await;
    assert_eq!(
        status,
        "squeezed to fit into 924 MiB, the group still had 1000 MiB and would give no more (0 ms of waiting)"
    );
    let asked = std::fs::read_to_string(&reclaim).expect("there");
    assert_eq!(
        asked,
        (76 * MIB / 8).to_string(),
        "an eighth of what is too much"
    );
    // One that fits.
    guest.files.write(&current, &format!("{}\n", 924 * MIB));
    guest.files.write(&reclaim, "untouched");
    guest.shrinks_at_last(&mut agent, GIB).await;
    let asked = std::fs::read_to_string(&reclaim).expect("there");
    assert_eq!(asked, "untouched");
    // One that cannot be squeezed, as before Linux 5.19.
    guest.files.write(&current, &format!("{}\n", 1000 * MIB));
    std::fs::remove_file(&reclaim).expect("removed");
    guest.shrinks_at_last(&mut agent, GIB).await;
    let page = guest.page("/metrics", 200).await;
    for line in [
        "vm_monitor_downscale_refusals_total{reason=\"squeeze\"} 1",
        "vm_monitor_squeezes_total{outcome=\"stuck\"} 1",
        "vm_monitor_squeezes_total{outcome=\"impossible\"} 1",
    ] {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
    guest.stop().await;
}
