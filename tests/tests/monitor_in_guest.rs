//! The monitor in the image, queried over its real link in a real guest.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use bellows_tests::agent_link::AgentLink;
use bellows_tests::guest::Guest;
use bellows_tests::loads::{GROUP, IN_GUEST, put_program};
use bellows_tests::patience::wait_for;
use bellows_tests::site::{BOOT_PATIENCE, Site, postgres_vm};
use bellows_tests::{bellows_bin, free_addresses, guest_or_skip};
use protocol::monitor::{AgentBody, Allocation, MonitorBody};
use protocol::vm::VmPhase;
use serde_json::json;

/// Longest time until a busy guest gives up half of its memory.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longest time for an estimate. The estimator pauses for 300 s when tasks stall for other reasons,
/// such as load on the machine.
const ESTIMATED: Duration = Duration::from_secs(700);
const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// The VM's name.
const VM: &str = "watched";
/// Ports of a second monitor beside the one in the image: its link and its metrics.
const SECOND: [u16; 2] = [10401, 10402];

/// A VM that no agent touches, with its database answering.
async fn boot(site: &Site, slots: u32) -> Guest {
    let mut object = postgres_vm(VM, (1000, 1000, 1000), (1, slots, 4), false);
    let ports = &mut object["spec"]["guest"]["ports"];
    let ports = ports.as_array_mut().unwrap();
    ports.extend(SECOND.map(|port| json!({"port": port})));
    site.create(&object).await.unwrap();
    let running = |vm: &protocol::vm::VirtualMachine| {
        vm.status
            .as_ref()
            .is_some_and(|s| s.phase == VmPhase::Running)
    };
    let vm = site
        .wait_vm(VM, "phase Running", BOOT_PATIENCE, running)
        .await
        .unwrap();
    let guest = Guest::new(vm.status.unwrap().pod_ip.parse().unwrap()).unwrap();
    wait_for("an answer of the database", BOOT_PATIENCE, || async {
        guest
            .postgres()
            .await
            .map(drop)
            .map_err(|error| format!("{error:#}"))
    })
    .await
    .unwrap();
    guest
}

/// Requirement: N27, N31, N36, N46. The image boots with the monitor. It serves the gauges, refuses
/// a shrink below the memory in use with numbers in its reason, approves it once memory is free,
/// and confirms a growth.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn monitor_in_the_image_refuses_to_remove_used_memory() {
    if !guest_or_skip("monitor_in_the_image_refuses_to_remove_used_memory") {
        return;
    }
    let site = Site::fresh().await.unwrap();
    let guest = boot(&site, 2).await;
    let page = guest.page(9100, "/metrics").await.unwrap();
    for name in [
        "host_load1",
        "host_load5",
        "host_memory_total_bytes",
        "host_memory_available_bytes",
        "host_memory_cached_bytes",
    ] {
        assert!(
            page.contains(&format!("# TYPE {name} gauge")),
            "{name} is missing:\n{page}"
        );
    }
    let address = SocketAddr::new(guest.ip, 10301);
    let rundir = site.rundir(VM).await.unwrap();
    let mut link = AgentLink::dial_with_token(address, &rundir).await.unwrap();
    let grown = Allocation {
        cpu: 1.0,
        mem: 2 * GIB,
    };
    let confirmed = link
        .ask(AgentBody::UpscaleNotification { granted: grown })
        .await
        .unwrap();
    assert_eq!(confirmed, MonitorBody::UpscaleConfirmation);

    speaks_by_vsock(&site, &guest).await;

    // About 900 MiB held by one backend: more than fits below the threshold of 1 GiB.
    let session = guest.postgres().await.unwrap();
    let release = session.cancel_token();
    let hold = tokio::spawn(async move {
        let sql = "do $$ declare p text[]; begin for i in 1..28 loop p[i] := repeat(md5(i::text), 1048576); end loop; \
                   perform pg_sleep(600); end $$";
        session.batch_execute(sql).await
    });
    let target = Allocation { cpu: 1.0, mem: GIB };
    let rundir = rundir.as_path();
    let refusal = wait_for(
        "a refused shrink",
        Duration::from_secs(180),
        || async move {
            match may_shrink(address, Some(rundir), target).await? {
                (false, status) if status.contains("MiB") => Ok(status),
                other => Err(format!("{other:?}")),
            }
        },
    )
    .await
    .unwrap();
    assert!(refusal.len() < 1024, "{refusal}");
    release.cancel_query(tokio_postgres::NoTls).await.unwrap();
    assert!(
        hold.await.unwrap().is_err(),
        "the memory was given back before the refusal was seen"
    );
    wait_for(
        "an approved shrink",
        Duration::from_secs(180),
        || async move {
            match may_shrink(address, Some(rundir), target).await? {
                (true, _) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        },
    )
    .await
    .unwrap();
}

/// N31: a monitor that listens on AF_VSOCK is served by it: the agent's own way of dialling, in the
/// guest's kernel.
async fn speaks_by_vsock(site: &Site, guest: &Guest) {
    put_program(site, VM).await.unwrap();
    let [link, metrics] = SECOND;
    let line = format!(
        "/usr/local/bin/vm-monitor --addr vsock:{link} --metrics-addr 0.0.0.0:{metrics} > /tmp/vsock.log 2>&1 < /dev/null & \
         {IN_GUEST} relay {link} {link} > /tmp/relay.log 2>&1 < /dev/null &"
    );
    site.ssh(VM, &line, None).await.unwrap();
    let address = SocketAddr::new(guest.ip, link);
    let dialled = wait_for("a link by AF_VSOCK", Duration::from_secs(60), || async {
        let link = AgentLink::dial(address).await;
        link.map_err(|error| format!("{error:#}"))
    });
    let mut dialled = dialled.await.unwrap();
    let granted = Allocation {
        cpu: 1.0,
        mem: 2 * GIB,
    };
    let granted = AgentBody::UpscaleNotification { granted };
    let confirmed = dialled.ask(granted).await.unwrap();
    assert_eq!(confirmed, MonitorBody::UpscaleConfirmation);
    let doors = site
        .ssh(VM, "cat /tmp/vsock.log /tmp/relay.log", None)
        .await
        .unwrap();
    assert!(doors.contains(&format!("vsock:{link}")), "{doors}");
}

/// Requirement: N28. On a growth the monitor does its work in the database before it confirms. A
/// stock PostgreSQL has no file cache of its own, so one of its reloadable settings stands for it,
/// as the monitor's flags allow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_file_cache_has_grown_when_the_growth_is_confirmed() {
    if !guest_or_skip("the_file_cache_has_grown_when_the_growth_is_confirmed") {
        return;
    }
    let site = Site::fresh().await.unwrap();
    let guest = boot(&site, 1).await;
    let [port, metrics] = free_addresses();
    let mut monitor = tokio::process::Command::new(bellows_bin().with_file_name("vm-monitor"))
        .args([
            "--addr",
            &port.to_string(),
            "--metrics-addr",
            &metrics.to_string(),
            "--file-cache",
            "on",
        ])
        .args([
            "--file-cache-setting",
            "effective_cache_size",
            "--file-cache-max-setting",
            "",
        ])
        .env("VM_MONITOR_PGCONNSTR", guest.connection().unwrap())
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut link = wait_for("the monitor", Duration::from_secs(20), || async {
        AgentLink::dial(port)
            .await
            .map_err(|error| format!("{error:#}"))
    })
    .await
    .unwrap();
    let granted = Allocation {
        cpu: 1.0,
        mem: 4 * GIB + (100 << 20),
    };
    assert_eq!(
        link.ask(AgentBody::UpscaleNotification { granted })
            .await
            .unwrap(),
        MonitorBody::UpscaleConfirmation
    );
    // 4 GiB usable: three quarters of it, by the formula of the file cache.
    let session = guest.postgres().await.unwrap();
    wait_for("the setting in a session", Duration::from_secs(60), || async {
        let row = session.query_one("select setting::bigint * 8192 from pg_settings where name = 'effective_cache_size'", &[]);
        let bytes: i64 = row.await.map_err(|error| error.to_string())?.get(0);
        if bytes == 3 << 30 { Ok(()) } else { Err(format!("{bytes} bytes")) }
    })
    .await
    .unwrap();
    monitor.kill().await.unwrap();
}

/// Requirement: N27. With the soft squeeze a group that has more than it may keep is brought down
/// before the answer, and only then is it yes; and where its memory is used all the time, the
/// estimator finds out how much of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_reclaimed_gently_before_a_shrink_and_for_an_estimate() {
    if !guest_or_skip("memory_is_reclaimed_gently_before_a_shrink_and_for_an_estimate") {
        return;
    }
    let site = Site::fresh().await.unwrap();
    let guest = boot(&site, 2).await;
    put_program(&site, VM).await.unwrap();
    let ssh = async |line: String| site.ssh(VM, &line, None).await.unwrap();
    let charged = format!("cat {GROUP}/memory.current");
    let [link, metrics] = SECOND;
    let address = SocketAddr::new(guest.ip, link);

    // Page cache of 1400 MiB in a guest of 2 GiB.
    let full = ssh(format!(
        "/usr/local/bin/vm-monitor --addr 0.0.0.0:{link} --metrics-addr 0.0.0.0:{metrics} --cgroup postgres \
         --soft-squeeze on --working-set on > /tmp/second.log 2>&1 < /dev/null & \
         {IN_GUEST} {GROUP} flood {} /var/tmp/flood > /tmp/flood.json && {charged}",
        1400 * MIB
    ))
    .await;
    let full: u64 = full.trim().parse().unwrap();
    assert!(full > 1400 * MIB, "{full}");
    let target = Allocation { cpu: 1.0, mem: GIB };
    // In a slow guest it may need more than one request. The next continues from what is left.
    wait_for("a shrink that is agreed to", PATIENCE, || async {
        match may_shrink(address, None, target).await? {
            (true, _) => Ok(()),
            (false, status) => Err(status),
        }
    })
    .await
    .unwrap();
    let left: u64 = ssh(charged).await.trim().parse().unwrap();
    assert!(left < GIB, "{left} bytes are left");
    let page = guest.page(metrics, "/metrics").await.unwrap();
    let done = "vm_monitor_squeezes_total{outcome=\"done\"} 1\n";
    assert!(page.contains(done), "{page}");

    // Reads the reclaimed file again, so that all of it is cached at the first sample.
    ssh(format!(
        "sh -c 'echo $$ > {GROUP}/cgroup.procs; cat /var/tmp/flood > /dev/null'"
    ))
    .await;
    // The VM keeps its size, and the whole file is read repeatedly. A connected agent could return
    // missed memory.
    let mut link = AgentLink::dial(address).await.unwrap();
    let granted = Allocation {
        cpu: 1.0,
        mem: 2 * GIB,
    };
    let granted = AgentBody::UpscaleNotification { granted };
    let confirmed = link.ask(granted).await.unwrap();
    assert_eq!(confirmed, MonitorBody::UpscaleConfirmation);
    ssh(format!(
        "sh -c 'echo $$ > {GROUP}/cgroup.procs; while :; do cat /var/tmp/flood > /dev/null; done' \
         > /dev/null 2>&1 < /dev/null &"
    ))
    .await;
    let estimate = wait_for("an estimate", ESTIMATED, || async {
        let page = guest.page(metrics, "/metrics").await;
        let page = page.map_err(|error| format!("{error:#}"))?;
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix("vm_monitor_working_set_bytes "));
        line.and_then(|bytes| bytes.parse::<u64>().ok())
            .ok_or_else(|| "none yet".to_owned())
    })
    .await
    .unwrap();
    let file = 1400 * MIB;
    assert!(
        (file * 9 / 10..file * 11 / 10).contains(&estimate),
        "{estimate} bytes, for a file of {file}"
    );
}

/// Requirement: N30. Tasks that wait for memory are the reason of a request: the kernel slows a
/// group down that has more than its `memory.high`, far below the size of the guest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stall_of_real_tasks_is_the_reason_of_a_request() {
    if !guest_or_skip("stall_of_real_tasks_is_the_reason_of_a_request") {
        return;
    }
    let site = Site::fresh().await.unwrap();
    let guest = boot(&site, 2).await;
    put_program(&site, VM).await.unwrap();
    let ssh = async |line: String| site.ssh(VM, &line, None).await.unwrap();
    let [port, metrics] = SECOND;
    let address = SocketAddr::new(guest.ip, port);
    let group = "/sys/fs/cgroup/stalled";
    ssh(format!(
        "mkdir {group} && echo {} > {group}/memory.high && echo 0 > {group}/memory.swap.max && \
         /usr/local/bin/vm-monitor --addr 0.0.0.0:{port} --metrics-addr 0.0.0.0:{metrics} \
         --cgroup stalled > /tmp/second.log 2>&1 < /dev/null &",
        1200 * MIB
    ))
    .await;
    let dialled = wait_for("the second monitor", PATIENCE, || async {
        let link = AgentLink::dial_v2(address, &["ask_details"]).await;
        link.map_err(|error| format!("{error:#}"))
    });
    let mut link = dialled.await.unwrap();
    // So slowly that no forecast comes first.
    ssh(format!(
        "{IN_GUEST} {group} climb {} {} 600000 > /tmp/climb.json 2>&1 < /dev/null &",
        1600 * MIB,
        60 * MIB
    ))
    .await;
    let is_stall = ["psi_some", "psi_full"].map(|reason| format!(r#""reason":"{reason}""#));
    let began = Instant::now();
    let mut frames = Vec::new();
    // A slow guest may climb in leaps, which a forecast takes for a fast climb.
    while !frames
        .last()
        .is_some_and(|frame: &String| is_stall.iter().any(|it| frame.contains(it)))
    {
        assert!(began.elapsed() < PATIENCE, "{frames:?}");
        frames.push(link.own_frame(PATIENCE).await.unwrap());
    }
    let asked = frames.pop().unwrap();
    assert!(asked.contains(r#""type":"UpscaleRequest""#), "{asked}");
}

/// Sends shrink requests over new connections until the monitor has enough samples. `rundir` holds
/// the token of a monitor that requires one.
async fn may_shrink(
    address: SocketAddr,
    rundir: Option<&Path>,
    target: Allocation,
) -> Result<(bool, String), String> {
    let link = match rundir {
        Some(rundir) => AgentLink::dial_with_token(address, rundir).await,
        None => AgentLink::dial(address).await,
    };
    let mut link = link.map_err(|error| format!("{error:#}"))?;
    for _ in 0..100 {
        match link.ask(AgentBody::DownscaleRequest { target }).await {
            Ok(MonitorBody::DownscaleResult { ok: false, status })
                if status.contains("not enough memory samples") =>
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok(MonitorBody::DownscaleResult { ok, status }) => return Ok((ok, status)),
            other => return Err(format!("{other:?}")),
        }
    }
    Err("it never has enough memory samples".into())
}
