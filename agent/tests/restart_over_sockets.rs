//! The agent's program is killed and started again, with many VMs on real sockets: each with a
//! metrics page and a monitor of its own, one API server and one scheduler for all. What the cores
//! decide in a restart is in `restart_with_many`; here it is what goes over the wire, and that a
//! thousand tasks find their peers again.
//!
//! A VM takes about six open files of this process. The test raises its limit of open files; where
//! the hard limit is too low for a thousand VMs, it does not run.

mod peers;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use peers::api::vm;
use peers::guest::{Guest, Page};
use peers::program::Program;
use peers::{Seen, Trace, World, address};
use protocol::monitor::Allocation;
use protocol::units::Resources;
use serde_json::{Value, json};
use test_records::{Missing, skip};

const VMS: usize = 1_000;
/// Open files of a VM: two listeners, both ends of its page's and its monitor's connections, and
/// some to spare.
const FILES_PER_VM: usize = 8;
/// What the test itself has open.
const FILES_OF_ITS_OWN: usize = 200;
/// The largest VM.
const MAX_UNITS: usize = 4;
/// How long all of them may take for something, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

const FILES: usize = FILES_OF_ITS_OWN + VMS * FILES_PER_VM;

/// Raises the limit of open files; whether there is room for all VMs.
fn has_room() -> bool {
    daemon_kit::descriptors::raise_limit();
    daemon_kit::descriptors::share(FILES, 1) == FILES
}

/// What VM `n` needs before the restart, units.
fn need(n: usize) -> usize {
    n % MAX_UNITS + 1
}

/// A VM that is about to grow when the agent dies.
fn is_caught(n: usize) -> bool {
    n.is_multiple_of(5) && need(n) < MAX_UNITS
}

/// What VM `n` needs after the restart.
fn wanted(n: usize) -> usize {
    need(n) + usize::from(is_caught(n))
}

fn load(units: usize) -> Page {
    let units = u32::try_from(units).expect("is small");
    Page::Good(0.225 * f64::from(units), 0.0)
}

fn units(n: usize) -> Resources {
    Resources::new(250, 1 << 30).saturating_mul(u32::try_from(n).expect("is small"))
}

fn slots(vm: &Value) -> usize {
    let slots = vm["spec"]["guest"]["memorySlots"]["use"].as_u64();
    usize::try_from(slots.expect("it has some")).expect("is small")
}

/// All VMs of a world, and what each guest sees.
struct Town {
    world: World,
    guests: Vec<Guest>,
    traces: Vec<Trace>,
}

impl Town {
    async fn new(count: usize) -> Self {
        let mut world = World::new().await;
        world.api.delete_vm("vm");
        world.config["dumpState"] = Value::Null;
        // One page a second of each of a thousand guests is more than the test is about.
        world.config["metrics"]["system"]["secondsBetweenRequests"] = json!(3);
        world.config["monitor"]["connectionRetryMinWaitSeconds"] = json!(1);
        let ports = [world.guest.metrics_port, world.guest.monitor_port];
        let (mut guests, mut traces) = (Vec::new(), Vec::new());
        for n in 0..count {
            let (ip, trace): (IpAddr, Trace) = (address(), Trace::default());
            let guest = Guest::start_at(trace.clone(), ip, ports).await;
            guest.set(load(need(n)));
            world.api.put_vm(vm(&name(n), &ip.to_string()));
            guests.push(guest);
            traces.push(trace);
        }
        Self {
            world,
            guests,
            traces,
        }
    }

    fn object(&self, n: usize) -> Value {
        self.world.api.get_vm(&name(n))
    }

    /// Waits until something is so of every VM.
    async fn until_all(&self, what: &str, is_so: impl Fn(usize) -> bool) {
        let deadline = tokio::time::Instant::now() + LIMIT;
        let mut left: Vec<usize> = (0..self.guests.len()).collect();
        loop {
            left.retain(|n| !is_so(*n));
            let Some(first) = left.first() else { return };
            assert!(
                tokio::time::Instant::now() < deadline,
                "waited in vain until {what}: not so of {} VMs, as {}: {}, seen {:?}",
                left.len(),
                name(*first),
                self.object(*first)["spec"],
                self.traces[*first].all(),
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until every VM has so many units and its monitor was last told of that many.
    async fn until_settled(&self, what: &str, size: impl Fn(usize) -> usize) {
        self.until_all(what, |n| {
            let size = size(n);
            slots(&self.object(n)) == size && last_agreed(&self.traces[n]) == Some(size as u64)
        })
        .await;
    }

    /// The permit requests since the trace was so long, by VM: size told, permit held.
    fn permits_since(&self, from: usize) -> BTreeMap<String, Vec<(Resources, Option<Resources>)>> {
        let mut by_vm: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for seen in self.world.trace.all().into_iter().skip(from) {
            if let Seen::Permit(request) = seen {
                let asked = (request.resources, request.last_permit);
                by_vm.entry(request.pod.name).or_default().push(asked);
            }
        }
        by_vm
    }
}

fn name(n: usize) -> String {
    format!("vm-{n}")
}

/// The size a monitor counts on, GiB: what it was last told, or agreed to. Before either, what its
/// machine has.
fn last_agreed(trace: &Trace) -> Option<u64> {
    let gib = |size: Allocation| size.mem >> 30;
    trace
        .all()
        .into_iter()
        .rev()
        .find_map(|seen| match seen {
            Seen::Granted(size) | Seen::AskedToShrink(size) => Some(gib(size)),
            _ => None,
        })
        .or(Some(1))
}

fn shrinks(trace: &Trace) -> usize {
    trace.count(|seen| matches!(seen, Seen::AskedToShrink(_)))
}

/// Requirement: N09, N16
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn successor_of_a_killed_agent_disturbs_none_of_1000_vms() {
    if !has_room() {
        let reason = format!("{FILES} open files: `ulimit -Hn` is lower");
        let test = "successor_of_a_killed_agent_disturbs_none_of_1000_vms";
        return skip(test, Missing::Files, &reason);
    }
    let count = VMS;
    let folder = tempfile::tempdir().expect("makes a folder");
    let town = Town::new(count).await;
    let api = &town.world.api;
    let mut first = Program::start(folder.path(), &town.world);
    town.until_settled("each has what it needs", need).await;

    // Some grow, and their patches are on the way when the agent dies; those arrive when another is
    // there already.
    api.hold_patches(true);
    for n in (0..count).filter(|n| is_caught(*n)) {
        town.guests[n].set(load(wanted(n)));
    }
    let caught = (0..count).filter(|n| is_caught(*n)).count();
    let held = |all: &Trace| all.count(|seen| *seen == Seen::PatchHeld);
    let deadline = tokio::time::Instant::now() + LIMIT;
    while held(&town.world.trace) < caught {
        assert!(tokio::time::Instant::now() < deadline, "not all grow");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    first.child.kill().await.expect("is killed");
    let revisions: Vec<Value> = (0..count)
        .map(|n| town.object(n)["spec"]["targetRevision"].clone())
        .collect();
    let asked: Vec<usize> = town.traces.iter().map(shrinks).collect();
    let from = town.world.trace.all().len();

    let second = Program::start(folder.path(), &town.world);
    town.until_all("the new one is connected to all", |n| {
        let connected = |seen: &Seen| *seen == Seen::Connected(2);
        town.traces[n].count(connected) > 0
    })
    .await;
    api.hold_patches(false);
    town.until_settled("those that were about to grow have", wanted)
        .await;

    let permits = town.permits_since(from);
    for n in 0..count {
        let asked_for = &permits[&format!("{}-pod", name(n))];
        let (told, held) = asked_for[0];
        assert_eq!(held, None, "{n}: the first contact carries no permit");
        let is_there = told == units(need(n)) || told == units(wanted(n));
        assert!(is_there, "{n} is told to have {told}");
        assert_eq!(shrinks(&town.traces[n]), asked[n], "{n} was to shrink");
        if !is_caught(n) {
            let now = town.object(n)["spec"]["targetRevision"].clone();
            assert_eq!(now, revisions[n], "{n} rested and was patched");
            let same = |asked: &(Resources, _)| asked.0 == told;
            assert!(asked_for.iter().all(same), "{n}: {asked_for:?}");
        }
    }

    // None is held for ever: without load all shrink, each with its monitor's word.
    for guest in &town.guests {
        guest.set(load(0));
    }
    town.until_settled("all are at their smallest", |_| 1).await;
    assert_eq!(second.terminate().await, Some(0));
}
