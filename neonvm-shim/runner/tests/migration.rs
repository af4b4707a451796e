//! A guest migrates between runners: real QEMUs and a real guest, without a controller.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use hyper::Method;
use neonvm_runner::core::paths::Paths;
use neonvm_runner::shell::guest;
use neonvm_runner::shell::record::write_json;
use protocol::migration::{
    DISK_PORT, DiskTravel, IncomingOrder, IncomingStage, OutgoingOrder, OutgoingStage, PSK_FILE,
    STREAM_PORT, StreamOptions,
};
use protocol::runner::{ExitReason, GuestState, ResizeProblem, RunnerPhase, RunnerState};
use protocol::units::Bytes;
use support::{Bounds, Kit, PATIENCE, SLOT, Vm, with_retries};
use tokio_util::sync::CancellationToken;

/// Slow enough for actions during the migration.
const SLOW: Bytes = Bytes(4 << 20);
/// Slow enough for another runner to start before the end.
const MIDDLING: Bytes = Bytes(16 << 20);
const FAST: Bytes = Bytes(1 << 30);

/// Key that the VM's runners share, and another VM's key.
const KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const OTHER_KEY: &str = "f123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn vm(kit: &Kit, receive: bool) -> Vm {
    with_key(kit, receive, Some(KEY))
}

fn with_key(kit: &Kit, receive: bool, key: Option<&str>) -> Vm {
    let bounds = Bounds {
        cpus: [1000, 1000, 3000],
        slots: [2, 2, 6],
    };
    let mut vm = Vm::new(kit, &bounds, |config| {
        config.pod = format!("{}-{}", config.pod, config.pod_ip);
        config.receive = receive;
    });
    if let Some(key) = key {
        let keys = vm.dir.path().join("shared");
        std::fs::create_dir(&keys).unwrap();
        std::fs::write(keys.join(PSK_FILE), format!("qemu:{key}\n")).unwrap();
        vm.config.migration_keys = Some(keys);
        write_json(&Paths::new(vm.dir.path()).config(), &vm.config).unwrap();
    }
    vm
}

fn how(max_bandwidth: Bytes) -> StreamOptions {
    StreamOptions {
        post_copy: false,
        auto_converge: true,
        max_bandwidth,
    }
}

/// State from the guest's daemon at a runner's address.
async fn guest_at(vm: &Vm) -> GuestState {
    let (news, mut states) = tokio::sync::mpsc::channel(1);
    let cancel = CancellationToken::new();
    tokio::spawn(guest::watch(vm.daemon(), news, cancel.clone()));
    let news = tokio::time::timeout(PATIENCE, states.recv()).await;
    cancel.cancel();
    match news {
        Ok(Some(guest::GuestReport::State(state))) => state,
        _ => panic!("no answer of the guest: {}", vm.logs()),
    }
}

async fn send(vm: &Vm, id: &str, to: Option<&RunnerState>, speed: Bytes) -> RunnerState {
    let order = OutgoingOrder {
        id: id.into(),
        to: to.map(|state| state.incoming.clone().unwrap().destination.unwrap()),
        how: how(speed),
    };
    let body = serde_json::to_vec(&order).unwrap();
    vm.say(Method::PUT, "/v1/outgoing", body)
        .await
        .expect("the order is held")
}

async fn recall(vm: &Vm, id: &str) {
    vm.say(Method::DELETE, &format!("/v1/outgoing/{id}"), Vec::new())
        .await
        .expect("the recall is held");
    vm.wait("the guest stays", |state| state.outgoing.is_none())
        .await;
}

/// A runner that listens for the guest of `from`.
async fn receiver(kit: &Kit, from: &Vm, id: &str, disk: DiskTravel) -> (Vm, RunnerState) {
    let (to, state) = listener(vm(kit, true), from, id, disk).await;
    assert!(is_encrypted(&state), "both have the key");
    (to, state)
}

fn is_encrypted(state: &RunnerState) -> bool {
    let report = state.incoming.as_ref().unwrap();
    report.destination.as_ref().unwrap().encrypted
}

async fn listener(mut to: Vm, from: &Vm, id: &str, disk: DiskTravel) -> (Vm, RunnerState) {
    to.start().await;
    to.wait("it waits", |state| {
        state.phase == RunnerPhase::Receiving
            && state.incoming.as_ref().unwrap().stage == IncomingStage::Waiting
    })
    .await;
    send(from, id, None, FAST).await;
    let held = from
        .wait("the source describes itself", |state| {
            let report = state.outgoing.as_ref();
            report.is_some_and(|report| report.id == id && report.shape.is_some())
        })
        .await;
    let order = IncomingOrder {
        id: id.into(),
        shape: held.outgoing.unwrap().shape.unwrap(),
        disk,
        how: how(FAST),
    };
    let body = serde_json::to_vec(&order).unwrap();
    to.say(Method::PUT, "/v1/incoming", body)
        .await
        .expect("the order is held");
    let state = to
        .wait("it listens", |state| {
            incoming(state, IncomingStage::Listening)
        })
        .await;
    (to, state)
}

fn incoming(state: &RunnerState, stage: IncomingStage) -> bool {
    let report = state.incoming.as_ref();
    report.is_some_and(|report| {
        assert_ne!(report.stage, IncomingStage::Failed, "{report:?}");
        report.stage == stage
    })
}

fn outgoing(state: &RunnerState, stage: OutgoingStage) -> bool {
    let report = state.outgoing.as_ref();
    report.is_some_and(|report| {
        assert!(
            report.problem.is_none() || stage == OutgoingStage::Failed,
            "{report:?}"
        );
        report.stage == stage
    })
}

/// Waits until some bytes were sent.
async fn flows(from: &Vm) {
    from.wait("memory is sent", |state| {
        let report = state.outgoing.as_ref();
        let progress = report.and_then(|report| report.progress.as_ref());
        outgoing(state, OutgoingStage::Sending) && progress.is_some_and(|at| at.ram.transferred > 0)
    })
    .await;
}

/// Waits until everything is sent, and neither side runs.
async fn handed_over(from: &Vm, to: &Vm) {
    from.wait("the guest was handed over", |state| {
        outgoing(state, OutgoingStage::HandedOver)
    })
    .await;
    to.wait("the guest has arrived", |state| {
        incoming(state, IncomingStage::Loaded)
    })
    .await;
}

/// The target runs the guest, the source ends.
async fn take_over(from: &mut Vm, to: &Vm, id: &str) -> GuestState {
    to.say(Method::POST, &format!("/v1/incoming/{id}/begin"), vec![])
        .await
        .expect("the guest may run");
    let state = guest_at(to).await;
    to.running().await;
    from.say(Method::POST, &format!("/v1/outgoing/{id}/done"), vec![])
        .await
        .expect("the source may end");
    let (report, code) = from.ended().await;
    assert_eq!(
        (report.reason, report.success, code),
        (ExitReason::Moved, true, 0)
    );
    state
}

/// Requirement: N44
/// One guest is migrated with a copy of its disk, recalled in the middle and at the very end,
/// abandoned by a target that dies, and migrated in the end. It stays the same boot, with its
/// plugged CPUs and memory.
#[tokio::test]
async fn migrated_guest_runs_in_one_place_only() {
    let name = "migrated_guest_runs_in_one_place_only";
    with_retries(name, moves).await;
}

async fn moves(kit: Arc<Kit>) {
    let mut a = vm(&kit, false);
    a.start().await;
    let boot_id = a.running().await.boot_id.unwrap();
    a.resize(2000, 5, 1).await;

    // Recalled in the middle. Resizes wait until the recall is over.
    let (b, listening) = receiver(&kit, &a, "first", DiskTravel::Layer).await;
    let early = b
        .say(Method::POST, "/v1/incoming/first/begin", vec![])
        .await;
    assert!(early.is_err(), "a guest that is not there cannot run");
    let held = a.order(3000, 4, 2).await;
    let problem = held.resize.unwrap().problem;
    assert_eq!(problem, Some(ResizeProblem::Moving { id: "first".into() }));
    send(&a, "first", Some(&listening), SLOW).await;
    flows(&a).await;
    recall(&a, "first").await;
    a.wait("the size that waited", |state| {
        state
            .resize
            .as_ref()
            .is_some_and(|resize| resize.done && resize.order.trace.revision == 2)
    })
    .await;
    drop(b);

    // Recalled at the very end, when the guest was stopped.
    let (c, listening) = receiver(&kit, &a, "second", DiskTravel::Auto).await;
    send(&a, "second", Some(&listening), FAST).await;
    handed_over(&a, &c).await;
    recall(&a, "second").await;
    assert_eq!(guest_at(&a).await.boot_id, boot_id);
    drop(c);

    // A target with another VM's key receives nothing.
    for (id, disk) in [("stranger", DiskTravel::Auto), ("thief", DiskTravel::Layer)] {
        let stranger = with_key(&kit, true, Some(OTHER_KEY));
        let (stranger, listening) = listener(stranger, &a, id, disk).await;
        send(&a, id, Some(&listening), FAST).await;
        a.wait("the other key is found out", |state| {
            outgoing(state, OutgoingStage::Failed)
        })
        .await;
        assert_eq!(guest_at(&a).await.boot_id, boot_id);
        recall(&a, id).await;
        drop(stranger);
    }

    // The target dies: the guest continues at the source. A target without a key gets the stream in
    // the clear.
    let plain = with_key(&kit, true, None);
    let (d, listening) = listener(plain, &a, "third", DiskTravel::Auto).await;
    assert!(!is_encrypted(&listening));
    send(&a, "third", Some(&listening), SLOW).await;
    a.wait("memory is sent", |state| {
        outgoing(state, OutgoingStage::Sending)
    })
    .await;
    drop(d);
    a.wait("the source notices", |state| {
        outgoing(state, OutgoingStage::Failed)
    })
    .await;
    assert_eq!(guest_at(&a).await.boot_id, boot_id);
    recall(&a, "third").await;

    // It leaves, with all of its disk.
    let (e, listening) = receiver(&kit, &a, "fourth", DiskTravel::Whole).await;
    send(&a, "fourth", Some(&listening), FAST).await;
    handed_over(&a, &e).await;
    let moved = take_over(&mut a, &e, "fourth").await;
    assert_eq!(
        (moved.boot_id.as_str(), moved.cpus_online),
        (boot_id.as_str(), 3)
    );
    let state = e.running().await;
    assert_eq!(state.memory.base.0 + state.memory.plugged.0, 4 * SLOT);
    e.resize(1000, 2, 3).await;
}

/// Requirement: N44
/// The source's runner dies while it sends a guest, with a disk that both share, and the next
/// runner goes on.
#[tokio::test]
async fn guest_is_sent_by_two_runners_in_turn() {
    let name = "guest_is_sent_by_two_runners_in_turn";
    with_retries(name, moves_by_two_runners).await;
}

async fn moves_by_two_runners(kit: Arc<Kit>) {
    let mut a = vm(&kit, false);
    a.start().await;
    let boot_id = a.running().await.boot_id.unwrap();
    // A QEMU 10.0 under TCG that has unplugged a CPU seldom begins to send, so none is unplugged.
    a.resize(2000, 5, 1).await;
    a.resize(3000, 3, 2).await;
    let (b, listening) = receiver(&kit, &a, "shared", DiskTravel::Auto).await;
    send(&a, "shared", Some(&listening), MIDDLING).await;
    flows(&a).await;
    a.kill_runner().await;
    a.start().await;
    handed_over(&a, &b).await;
    let moved = take_over(&mut a, &b, "shared").await;
    assert_eq!(
        (moved.boot_id.as_str(), moved.cpus_online),
        (boot_id.as_str(), 3)
    );
    b.resize(1000, 2, 3).await;
}

/// Requirement: W3. Every user of the machine can connect to a loopback port, so nothing listens
/// there. The guest arrives with its disk and with the key of its daemon.
#[tokio::test]
async fn guest_migrates_over_private_sockets_without_a_shared_key() {
    let name = "guest_migrates_over_private_sockets_without_a_shared_key";
    with_retries(name, moves_privately).await;
}

async fn moves_privately(kit: Arc<Kit>) {
    let mut a = with_key(&kit, false, None);
    a.start().await;
    let boot_id = a.running().await.boot_id.unwrap();
    let key = a.guestd_key();

    let target = with_key(&kit, true, None);
    let (b, listening) = listener(target, &a, "private", DiskTravel::Layer).await;
    let to = listening.incoming.clone().unwrap().destination.unwrap();
    assert_eq!(to.sockets.as_deref(), Some(b.dir.path()));
    for port in [STREAM_PORT, DISK_PORT] {
        let dialled = std::net::TcpStream::connect((b.config.pod_ip, port));
        assert!(dialled.is_err(), "port {port} is open to every user");
    }
    for socket in [b.paths().stream(), b.paths().disk(), b.paths().guestd_key()] {
        let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", socket.display());
    }
    let mode = std::fs::metadata(b.dir.path())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);

    send(&a, "private", Some(&listening), FAST).await;
    handed_over(&a, &b).await;
    let moved = take_over(&mut a, &b, "private").await;
    assert_eq!(moved.boot_id, boot_id);
    assert_eq!(b.guestd_key(), key, "the key is the boot's");
    assert!(!a.logs().contains(&key) && !b.logs().contains(&key));
}
