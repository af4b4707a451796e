//! A node's worth of VMs: one worker with eight policies and an hour of six series of each VM.

use policy_cli::made_up::Question;
use policy_contract::frames::{FromWorker, ToWorker};
use policy_contract::{SLOT_SECONDS, SLOTS, Series};

use super::{PATIENCE, POLICY, ask, load, percentile, sorted, worker};

const VMS: u32 = 500;
const POLICIES: u32 = 8;
const SERIES: [&str; 6] = ["load1", "load5", "used", "cached", "lfc_hits", "lfc_misses"];
/// Periods in which each VM is asked about once.
const PERIODS: usize = 20;

/// Time in which all VMs are asked about, microseconds, and the worker's resident memory, MiB.
pub(super) fn period(asked: &Question) -> (f64, f64) {
    let mut client = worker(POLICY);
    for id in 2..=POLICIES {
        let loaded = client.request(&load(id, POLICY), PATIENCE);
        assert!(
            matches!(loaded, Ok(FromWorker::Loaded { .. })),
            "{loaded:?}"
        );
    }
    let slots = u32::try_from(SLOTS).expect("it fits");
    for vm in 0..VMS {
        for name in SERIES {
            let value = |slot: u32| Some(f64::from((slot * 7 + vm) % 1000));
            let fill = ToWorker::Fill {
                vm,
                s: Series::of(name).expect("a series"),
                t: f64::from(slots) * SLOT_SECONDS,
                v: (0..slots).map(value).collect(),
            };
            let filled = client.request(&fill, PATIENCE);
            assert!(
                matches!(filled, Ok(FromWorker::Filled { .. })),
                "{filled:?}"
            );
        }
    }
    let now = f64::from(slots) * SLOT_SECONDS;
    let times = sorted(PERIODS, |_| {
        for vm in 0..VMS {
            let mut question = ask(0, asked);
            if let ToWorker::Ask { vm: of, id, t, .. } = &mut question {
                (*of, *id, *t) = (vm, vm % POLICIES + 1, now);
            }
            let reply = client.request(&question, PATIENCE);
            assert!(matches!(reply, Ok(FromWorker::Said { .. })), "{reply:?}");
        }
    });
    (percentile(&times, 0.5), resident_mib(client.pid()))
}

fn resident_mib(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.expect("a number") / 1024.0
}
