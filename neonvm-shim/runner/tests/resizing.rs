//! A real guest is resized step by step, sees every step, and stays intact.

mod support;

use std::time::Duration;

use daemon_kit::http_client::HttpClient;
use hyper::Method;
use protocol::runner::{CpusAhead, GUESTD_FORWARD, GuestState, RunnerState};
use protocol::trace::Stage;
use protocol::units::MilliCpu;
use support::{Bounds, PATIENCE, SLOT, Vm, kit, sysfs};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// One TCP session with the guest's daemon, which polls the guest without pause.
struct Session {
    seen: watch::Receiver<GuestState>,
    asking: JoinHandle<()>,
}

impl Session {
    async fn open(vm: &Vm) -> Self {
        let stream = TcpStream::connect((vm.config.pod_ip, GUESTD_FORWARD))
            .await
            .expect("connects");
        let mut link = HttpClient::over(stream, "guest").await.expect("speaks");
        link = link.with_bearer(&vm.guestd_key());
        let (tx, seen) = watch::channel(guest(&mut link).await);
        let asking = tokio::spawn(async move {
            loop {
                let state = guest(&mut link).await;
                if tx.send(state).is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        Self { seen, asking }
    }

    /// The guest's next state; the session must not break.
    async fn now(&mut self) -> GuestState {
        self.seen.mark_unchanged();
        // Two responses: the first may have been in progress.
        for _ in 0..2 {
            self.seen.changed().await.expect("the session holds");
        }
        self.seen.borrow().clone()
    }
}

async fn guest(link: &mut HttpClient) -> GuestState {
    let answer = link
        .send(Method::GET, "/v1/state", "", PATIENCE)
        .await
        .expect("the session holds");
    serde_json::from_slice(&answer).expect("a state")
}

/// Requirement: N18, N19
#[tokio::test]
async fn guest_grows_and_shrinks_without_residue() {
    let Some(kit) = kit("guest_grows_and_shrinks_without_residue").await else {
        return;
    };
    let bounds = Bounds {
        cpus: [250, 1000, 4000],
        slots: [2, 2, 8],
    };
    let mut vm = Vm::new(&kit, &bounds, |_| ());
    vm.start().await;
    let first = vm.running().await;
    assert_eq!((first.cpus.plugged, first.cpus.guest_online), (1, Some(1)));
    assert_eq!(first.resize, None, "nobody ordered anything");
    let mut session = Session::open(&vm).await;
    let before = session.now().await;

    let rungs = [
        (2000, 2),
        (2000, 4),
        (4000, 8),
        (3000, 6),
        (250, 6),
        (1500, 3),
        (4000, 8),
        (1000, 2),
    ];
    for (revision, (milli, slots)) in (1..).zip(rungs) {
        let state = vm.resize(milli, slots, revision).await;
        let cores = milli.div_ceil(1000);
        assert_eq!(
            (state.cpus.plugged, state.cpus.guest_online),
            (cores, Some(cores))
        );
        assert_eq!(state.memory.plugged.0, (slots - 2) * SLOT);
        let resize = state.resize.expect("ordered");
        let stages: Vec<Stage> = resize.stages.iter().map(|stamp| stamp.stage).collect();
        assert_eq!(stages, [Stage::Qmp, Stage::GuestVisible]);
        // By the guest's own report, in the first session.
        let seen = session.now().await;
        assert_eq!(seen.cpus_online, cores);
        let grown = i128::from(seen.mem_total.0) - i128::from(before.mem_total.0);
        let plugged = i128::from((slots - 2) * SLOT);
        assert!(
            (grown - plugged).abs() <= 32 << 20,
            "MemTotal moved by {grown}, plugged {plugged}"
        );
    }
    let after = session.now().await;
    session.asking.abort();
    assert_eq!(after.boot_id, before.boot_id, "one boot throughout");
    assert!(after.uptime_s >= before.uptime_s);
    assert_eq!(after.mem_total, before.mem_total, "no residue");
    vm.stop(0).await;
    vm.ended().await;
}

/// Requirement: N18
/// CPUs are plugged before their order, which is then done at once; without an order they are
/// unplugged. Nothing else changes meanwhile.
#[tokio::test]
async fn cpus_are_plugged_ahead_of_their_order_and_unplugged_on_release() {
    let name = "cpus_are_plugged_ahead_of_their_order_and_unplugged_on_release";
    let Some(kit) = kit(name).await else {
        return;
    };
    let bounds = Bounds {
        cpus: [500, 1000, 3000],
        slots: [2, 2, 2],
    };
    let mut vm = Vm::new(&kit, &bounds, |_| ());
    vm.start().await;
    vm.running().await;
    vm.resize(500, 2, 1).await;
    let before = vm.state().await.expect("it answers");

    ahead(&vm, 2000).await;
    let there = online(&vm, 2).await;
    assert_eq!(there.cpus.limit, MilliCpu(500));
    assert_eq!(there.quota, before.quota, "no more time than it had");
    let state = vm.resize(2000, 2, 2).await;
    assert_eq!(state.cpus.ahead, Some(MilliCpu(0)));
    let took = state.resize.expect("ordered").stages[0];
    assert_eq!(
        (took.stage, took.duration_us),
        (Stage::Qmp, 0),
        "nothing was left to do"
    );

    ahead(&vm, 3000).await;
    online(&vm, 3).await;
    ahead(&vm, 0).await;
    let back = online(&vm, 2).await;
    assert_eq!(back.cpus.limit, MilliCpu(2000));
    vm.wait("two of QEMU", |state| state.cpus.plugged == 2)
        .await;
    vm.stop(0).await;
    vm.ended().await;
}

async fn ahead(vm: &Vm, milli: u32) {
    let cpu = MilliCpu(milli);
    let body = serde_json::to_vec(&CpusAhead { cpu }).expect("encodes");
    let held = vm.say(Method::PUT, "/v1/ahead", body).await;
    assert_eq!(held.expect("it is held").cpus.ahead, Some(cpu));
}

/// Waits until the guest has this number of CPUs.
async fn online(vm: &Vm, cpus: u32) -> RunnerState {
    vm.wait("CPUs online", |state| state.cpus.guest_online == Some(cpus))
        .await
}

/// Requirement: N18
#[tokio::test]
async fn sysfs_scaling_switches_cpus_in_the_guest() {
    let Some(kit) = kit("sysfs_scaling_switches_cpus_in_the_guest").await else {
        return;
    };
    let bounds = Bounds {
        cpus: [1000, 2000, 3000],
        slots: [2, 3, 4],
    };
    let mut vm = Vm::new(&kit, &bounds, sysfs);
    vm.start().await;
    let first = vm.running().await;
    assert_eq!(
        (first.cpus.plugged, first.cpus.guest_online),
        (3, Some(2)),
        "maxcpus= holds"
    );
    let settled = vm
        .wait("memory of the start", |state| {
            state.memory.plugged.0 == SLOT
        })
        .await;
    assert_eq!(settled.boot_id, first.boot_id);
    for (revision, milli) in (1..).zip([3000, 1000, 2000]) {
        let state = vm.resize(milli, 2, revision).await;
        assert_eq!(
            (state.cpus.plugged, state.cpus.guest_online),
            (3, Some(milli / 1000))
        );
    }
    vm.stop(0).await;
    vm.ended().await;
}

#[tokio::test]
async fn qemu_survives_more_resizes_than_its_budget_of_plugs() {
    let Some(kit) = kit("qemu_survives_more_resizes_than_its_budget_of_plugs").await else {
        return;
    };
    let bounds = Bounds {
        cpus: [1000, 1000, 4000],
        slots: [2, 2, 2],
    };
    let mut vm = Vm::new(&kit, &bounds, |_| ());
    vm.start().await;
    let first = vm.running().await;
    // Three plugs each; a TCG QEMU starts 64 vCPUs in its life. KVM has no such limit, and passes
    // too.
    for revision in 0..52 {
        let cores = if revision % 2 == 0 { 4 } else { 1 };
        let state = vm.resize(cores * 1000, 2, revision + 1).await;
        assert_eq!(state.cpus.guest_online, Some(cores), "at {revision}");
        assert_eq!(state.boot_id, first.boot_id);
        if first.accel == "tcg" && revision > 44 {
            assert_eq!(
                state.cpus.plugged, 4,
                "the last plugs are kept: switched off inside"
            );
        }
    }
    vm.stop(0).await;
    vm.ended().await;
}
