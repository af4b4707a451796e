//! Requirement: S8. What clients saw of the store while it was killed, held, full and without
//! power, checked as a history of versioned registers. `cargo xtask histories` records a long one.

mod support;

#[path = "histories/clients.rs"]
mod clients;
#[path = "histories/disk.rs"]
mod disk;
#[path = "histories/history.rs"]
mod history;
#[path = "histories/power.rs"]
mod power;
#[path = "histories/server.rs"]
mod server;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clients::World;
use disk::{Disk, SyncMode};
use history::{History, Operation, OperationRecord, Outcome, anomalies};
use power::PowerCut;
use server::{Process, Server};

/// Names of objects that clients share.
const OBJECTS: usize = 8;
const CLIENTS: usize = 8;
const WATCHERS: usize = 2;
/// Calls of both histories together, where the environment says nothing else.
const CALLS: u64 = 10_000;
const HISTORIES: u64 = 2;
/// Syncs that a late disk is behind: those of a few commits, and fewer than those of all calls.
const LATE: usize = 6;
/// Time between two faults of a process.
const CALM: Duration = Duration::from_millis(700);
/// Time between two losses of power: a disk in memory serves many calls in it.
const POWER: Duration = Duration::from_millis(100);

async fn recorded(server: Arc<dyn Server>, calm: Duration) -> History {
    let calls_of_all = match std::env::var("BELLOWS_HISTORY_CALLS") {
        Ok(text) => text.parse().expect("a number of calls"),
        Err(_) => CALLS,
    };
    let most = calls_of_all / HISTORIES;
    let world = Arc::new(World::new(Arc::clone(&server)));
    let spawned = |world: &Arc<World>| Arc::clone(world);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let world = spawned(&world);
            tokio::spawn(async move { world.use_it(OBJECTS, most).await })
        })
        .collect();
    let watchers: Vec<_> = (0..WATCHERS)
        .map(|_| {
            let world = spawned(&world);
            tokio::spawn(async move { world.watch().await })
        })
        .collect();
    let mut suffered = 0;
    while world.calls.load(Ordering::SeqCst) < most {
        tokio::time::sleep(calm).await;
        server.suffer(suffered).await;
        suffered += 1;
    }
    let mut history = History::default();
    for client in clients {
        let (calls, lists) = client.await.expect("no panic");
        history.calls.extend(calls);
        history.lists.extend(lists);
    }
    let last = world.list().await.expect("it answers after all");
    history.lists.push(last);
    world.is_over.store(true, Ordering::SeqCst);
    for watcher in watchers {
        history.watches.extend(watcher.await.expect("no panic"));
    }
    print(&history, suffered);
    history
}

#[expect(clippy::print_stdout, reason = "the figures of a long history")]
fn print(history: &History, suffered: usize) {
    let of =
        |is: fn(&OperationRecord) -> bool| history.calls.iter().filter(|call| is(call)).count();
    let events = history.watches.iter().map(|watch| watch.events.len());
    println!(
        "{} calls, {} lists, {} watches with {} events, {suffered} faults, {} made, {} deleted, \
         {} absent, {} lost, {} refused, {} conflicts",
        history.calls.len(),
        history.lists.len(),
        history.watches.len(),
        events.sum::<usize>(),
        of(|call| matches!(
            (call.asked, call.answer),
            (Operation::Create(_), Outcome::Is(_))
        )),
        of(|call| matches!(call.answer, Outcome::Removed(_))),
        of(|call| call.answer == Outcome::Absent),
        of(|call| call.answer == Outcome::Lost),
        of(|call| call.answer == Outcome::Refused),
        of(|call| matches!(call.answer, Outcome::Conflict | Outcome::Exists)),
    );
}

fn assert_sound(history: &History) {
    assert!(history.watches.iter().any(|watch| !watch.events.is_empty()));
    let found = anomalies(history);
    let first: Vec<&String> = found.iter().take(10).collect();
    assert!(found.is_empty(), "{} anomalies: {first:#?}", found.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn history_under_kill_stop_and_full_disk_is_one_of_versioned_registers() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Arc::new(Process::start(dir.path()));
    assert_sound(&recorded(server, CALM).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn history_under_loss_of_power_is_one_of_versioned_registers() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Arc::new(PowerCut::start(dir.path(), Disk::honest()));
    let history = recorded(Arc::clone(&server) as Arc<dyn Server>, POWER).await;
    assert_sound(&history);
    let dropped = server.dropped_writes();
    println!("{dropped} writes were lost that were not synced");
    assert!(dropped > 0, "the power went when all was synced");
}

/// Calls on a server whose disk does not do what it says, then a loss of power.
async fn after_loss_of_power(sync: SyncMode) -> History {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Arc::new(PowerCut::start(dir.path(), Disk::faulty(sync)));
    let world = World::new(Arc::clone(&server) as Arc<dyn Server>);
    let mut history = History::default();
    for key in 0..OBJECTS {
        let asked = Operation::Create(world.token());
        history.calls.push(world.call(key, asked).await);
    }
    tokio::task::block_in_place(|| server.cut());
    for key in 0..OBJECTS {
        history.calls.push(world.call(key, Operation::Get).await);
    }
    history
}

#[tokio::test(flavor = "multi_thread")]
async fn answered_writes_survive_a_loss_of_power() {
    let history = after_loss_of_power(SyncMode::Honest).await;
    assert_eq!(anomalies(&history), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn store_that_does_not_sync_is_found() {
    let history = after_loss_of_power(SyncMode::Nothing).await;
    assert!(!anomalies(&history).is_empty(), "{history:?}");
}

/// The last answers have come before their commits were durable.
#[tokio::test(flavor = "multi_thread")]
async fn server_that_answers_before_it_commits_is_found() {
    let history = after_loss_of_power(SyncMode::Late(LATE)).await;
    assert!(!anomalies(&history).is_empty(), "{history:?}");
}
