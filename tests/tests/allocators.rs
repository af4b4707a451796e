//! Programs that misuse memory in the database's cgroup of a real guest, while the node has free
//! memory.

#![expect(clippy::unwrap_used, reason = "tests")]

use bellows_tests::guest_or_skip;
use bellows_tests::loads::{LOADS, Load, Rig, VM};
use bellows_tests::patience::wait_for;
use std::time::Duration;

/// Requirement: N29, N30. No process is killed by climbs, leaks or forks. Page cache alone causes
/// no growth. Swapped memory comes back. The monitor does this without root.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_process_is_killed_for_memory_while_the_node_has_capacity() {
    if !guest_or_skip("no_process_is_killed_for_memory_while_the_node_has_capacity") {
        return;
    }
    let rig = Rig::new().await.unwrap();
    the_monitor_is_unprivileged(&rig).await;
    for load in LOADS {
        let run = rig.run(load).await.unwrap();
        println!("{}: {run:?}", load.name());
        assert!(run.done.is_some(), "{load:?}: {}", run.output);
        assert_eq!((run.oom_kills, run.oom_lines), (0, 0), "{load:?}: {run:?}");
        match load {
            Load::Flood => assert_eq!(run.requests, 0, "page cache is not use"),
            Load::Climb => assert!(run.requests > 0, "{run:?}"),
            Load::Leak | Load::Storm => {}
        }
    }
    let empty = Duration::from_secs(120);
    wait_for("empty swap", empty, || async {
        let text = rig.site.ssh(VM, "cat /proc/swaps", None).await;
        let text = text.map_err(|error| format!("{error:#}"))?;
        let used = text.lines().nth(1).and_then(|line| {
            let used = line.split_whitespace().nth(3)?;
            used.parse::<u64>().ok()
        });
        if used.is_some_and(|kib| kib <= 1024) {
            Ok(())
        } else {
            Err(text)
        }
    })
    .await
    .unwrap();
}

async fn the_monitor_is_unprivileged(rig: &Rig) {
    let line = "grep -E '^(Uid|CapEff|CapPrm|CapAmb|NoNewPrivs):' /proc/$(pidof vm-monitor)/status; \
                logread | grep 'pressure signal' | head -n 1; \
                psql -qAt -U vm_monitor postgres -c 'select 1' 2>&1; \
                su -s /bin/sh vm-monitor -c 'psql -qAt -h /tmp -U postgres -c \"select 1\"' 2>&1; \
                su -s /bin/sh vm-monitor -c 'psql -qAt -h /tmp -U vm_monitor postgres -c \"alter system set work_mem = 1\"' 2>&1; \
                su -s /bin/sh vm-monitor -c 'psql -qAt -h /tmp -U vm_monitor postgres -c \"select pg_reload_conf()\"' 2>&1";
    let line = format!("export PGHOST=/tmp; {line}; true");
    let text = rig.site.ssh(VM, &line, None).await.unwrap();
    let has = |words: &str| {
        let squeezed = text.split_whitespace().collect::<Vec<_>>().join(" ");
        squeezed.contains(words)
    };
    assert!(has("Uid: 112 112 112 112"), "{text}");
    assert!(has("NoNewPrivs: 1"), "{text}");
    for capabilities in ["CapPrm", "CapEff", "CapAmb"] {
        assert!(has(&format!("{capabilities}: 0000000000000000")), "{text}");
    }
    assert!(!has("no pressure signal"), "all triggers are armed: {text}");
    // Neither root as the monitor's role, nor the monitor as the superuser.
    assert_eq!(
        text.matches("Peer authentication failed").count(),
        2,
        "{text}"
    );
    assert!(has("permission denied to set parameter"), "{text}");
    assert!(text.trim_end().ends_with('t'), "it may reload: {text}");
}
