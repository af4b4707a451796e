use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use daemon_kit::clock::Clock;
use policy_contract::{Input, PackedPast, Spec};
use prometheus_client::registry::Registry;
use protocol::policy::Limits;

use super::*;
use crate::shell::config::Policies as Settings;
use crate::shell::policy::known::Policy;
use crate::shell::policy::request::Replies;

/// Time within which a state must come. Other work may hold up the machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn policy(name: &str) -> Arc<Policy> {
    let spec = Spec::of_source(format!("return '{name}'"));
    Arc::new(Policy::of(name, spec, Limits::default()))
}

fn question(policy: &Arc<Policy>, n: u64, reply: &Replies) -> Question {
    Question {
        generation: 1,
        n,
        vm: 1,
        at: 1.0,
        policy: Arc::clone(policy),
        input: Box::new(Input::sample()),
        checksum: 2,
        first: None,
        reply: reply.clone(),
    }
}

fn said(n: u64) -> FromWorker {
    FromWorker::Fault {
        n,
        kind: Fault::Steps,
        text: String::new(),
    }
}

#[test]
fn clock_runs_from_the_question_or_the_answer_before() {
    let reply = Replies::default();
    let (policy, start) = (policy("a"), Instant::now());
    let at = |ms| start + Duration::from_millis(ms);
    let mut queue = Queue::default();
    assert_eq!(queue.deadline(), None);
    queue.loads(1, policy.digest, at(0));
    assert_eq!(queue.id_of(policy.digest), (1, false));
    queue.asks(question(&policy, 1, &reply), at(10));
    queue.asks(question(&policy, 2, &reply), at(20));
    assert_eq!(queue.deadline(), Some(at(5000)), "the load is first");
    assert!(matches!(
        queue.ended(&FromWorker::Loaded { id: 1 }, at(100)),
        Some(Ended::Load(_))
    ));
    assert_eq!(queue.deadline(), Some(at(150)));
    assert!(queue.ended(&said(2), at(110)).is_none(), "not its turn");
    assert!(queue.ended(&said(1), at(120)).is_some());
    assert_eq!(queue.deadline(), Some(at(170)));
    assert!(queue.ended(&said(2), at(160)).is_some());
    assert_eq!(queue.deadline(), None);
    queue.asks(question(&policy, 3, &reply), at(1000));
    assert_eq!(queue.deadline(), Some(at(1050)));
    assert_eq!(queue.into_open().len(), 1);
}

#[test]
fn number_of_a_policy_is_used_again_after_64() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    let digest = |n: u32| policy(&n.to_string()).digest;
    for n in 0..64 {
        let (id, is_new) = queue.id_of(digest(n));
        assert_eq!((id, is_new), (n + 1, true));
        queue.loads(id, digest(n), now);
    }
    assert_eq!(queue.id_of(digest(64)), (1, true));
    queue.loads(1, digest(64), now);
    assert_eq!(queue.id_of(digest(64)), (1, false));
    assert_eq!(queue.id_of(digest(0)), (2, true), "it must be loaded anew");
    assert_eq!(queue.id_of(digest(1)), (2, false));
    queue.loads(2, digest(1), now);
    assert_eq!(
        queue.id_of(digest(99)),
        (2, true),
        "a second load of the same takes no number"
    );
}

#[test]
fn series_have_the_time_of_a_load() {
    let reply = Replies::default();
    let (policy, start) = (policy("a"), Instant::now());
    let at = |ms| start + Duration::from_millis(ms);
    let mut queue = Queue::default();
    queue.fills(7, at(0));
    queue.asks(question(&policy, 1, &reply), at(10));
    assert_eq!(queue.deadline(), Some(at(5000)));
    assert!(queue.ended(&FromWorker::Filled { vm: 8 }, at(20)).is_none());
    let filled = queue.ended(&FromWorker::Filled { vm: 7 }, at(100));
    assert!(matches!(filled, Some(Ended::Fill)));
    assert_eq!(queue.deadline(), Some(at(150)));
}

#[test]
fn past_is_held_while_a_question_may_be_asked_again() {
    let reply = Replies::default();
    let (policy, now) = (policy("a"), Instant::now());
    let mut queue = Queue::default();
    for (checksum, is_held) in [(2, false), (256, true), (65, true)] {
        queue.asks(
            Question {
                checksum,
                ..question(&policy, 1, &reply)
            },
            now,
        );
        assert_eq!(queue.holds_past(), is_held, "{checksum}");
        assert!(queue.ended(&said(1), now).is_some());
        assert!(!queue.holds_past());
    }
}

/// A program in the place of `bellows-policy`.
fn program_of(folder: &std::path::Path, script: &str) -> PathBuf {
    let path = folder.join("bellows-policy");
    std::fs::write(&path, script).expect("a script");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&path, mode).expect("a mode");
    path
}

/// A program that ends when it is asked.
fn fake_program(folder: &std::path::Path) -> PathBuf {
    let script = r#"#!/bin/sh
[ "$1" = --version ] && { echo "fake 1 (contract 1)"; exit; }
while read -r line; do
  case "$line" in
    *'"op":"load","id":1'*) echo '{"op":"loaded","id":1}' ;;
    *'"op":"ask"'*) exit 3 ;;
  esac
done
"#;
    program_of(folder, script)
}

async fn generation_after(runtime: &PolicyRuntime, last: u64) -> u64 {
    let wait = async {
        loop {
            let generation = runtime.link(Role::Shadow).generation();
            if generation > last {
                return generation;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .expect("a worker starts")
}

async fn ask(runtime: &PolicyRuntime, policy: &Arc<Policy>, (n, generation): (u64, u64)) -> End {
    let reply = Replies::default();
    let question = Question {
        generation,
        ..question(policy, n, &reply)
    };
    assert!(
        runtime
            .link(Role::Shadow)
            .send(Request::Ask(Box::new(question)))
    );
    let said = tokio::time::timeout(PATIENCE, reply.next()).await;
    let said = said.expect("an end");
    assert_eq!(said.n, n);
    said.end
}

/// Requirement: V03
#[tokio::test]
async fn v03_policy_that_ends_two_workers_is_set_aside_and_others_are_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let (runtime, queues) = PolicyRuntime::new(
        Settings::default(),
        &mut Registry::default(),
        None,
        Clock::new(),
    );
    let program = Some(fake_program(folder.path()));
    let supervisor = Supervisor::new(runtime.clone(), Role::Shadow, queues.shadow, None, program);
    let cancel = CancellationToken::new();
    let task = tokio::spawn(supervisor.run(cancel.clone()));
    let (killer, refused) = (policy("killer"), policy("refused"));
    assert!(runtime.link(Role::Shadow).send(Request::Wanted));
    let mut generation = 0;
    for n in [1, 2] {
        generation = generation_after(&runtime, generation).await;
        let end = ask(&runtime, &killer, (n, generation)).await;
        assert!(
            matches!(end, End::Fault(Fault::WorkerDied | Fault::Late, _)),
            "{end:?}"
        );
    }
    generation = generation_after(&runtime, generation).await;
    let end = ask(&runtime, &killer, (3, generation)).await;
    assert!(matches!(end, End::Aside(Fault::WorkerDied, _)), "{end:?}");
    assert_eq!(
        runtime.link(Role::Shadow).generation(),
        generation,
        "it was not asked again"
    );
    let stale = ask(&runtime, &refused, (4, generation - 1)).await;
    assert!(matches!(stale, End::Lost), "{stale:?}");
    assert!(runtime.dump()["workers"]["shadow"]["restarts"].as_u64() >= Some(2));
    assert_eq!(
        runtime.dump()["workers"]["shadow"]["engine"],
        "fake 1 (contract 1)"
    );
    cancel.cancel();
    task.await.expect("it ends");
}

/// A program that answers its first question with 1 unit, the next with 2, and so on. It counts the
/// series of pasts in the votes.
const COUNTER: &str = r#"#!/bin/sh
[ "$1" = --version ] && { echo "fake 1 (contract 1)"; exit; }
count=0 series=0
while read -r line; do
  case "$line" in
    *'"op":"load"'*) echo '{"op":"loaded","id":1}' ;;
    *'"op":"fill"'*) series=$((series + 1)); echo '{"op":"filled","vm":1}' ;;
    *'"op":"ask"'*)
      n=${line#*'"n":'} count=$((count + 1))
      echo "{\"op\":\"said\",\"n\":${n%%,*},\"cu\":$count,\"r\":\"x\",\"votes\":{\"series\":${series}000},\"steps\":1}" ;;
  esac
done
"#;

/// Requirement: V01, V04
#[tokio::test]
async fn v04_question_of_each_check_is_asked_again_and_pasts_are_filled() {
    let folder = tempfile::tempdir().expect("a folder");
    let (runtime, queues) = PolicyRuntime::new(
        Settings::default(),
        &mut Registry::default(),
        None,
        Clock::new(),
    );
    let program = program_of(folder.path(), COUNTER);
    let supervisor = Supervisor::new(
        runtime.clone(),
        Role::Shadow,
        queues.shadow,
        None,
        Some(program),
    );
    let cancel = CancellationToken::new();
    let task = tokio::spawn(supervisor.run(cancel.clone()));
    assert!(runtime.link(Role::Shadow).send(Request::Wanted));
    let generation = generation_after(&runtime, 0).await;
    let policy = policy("counter");
    let mut past = PackedPast::new(&policy.spec.all_series());
    for series in ["load1", "used"] {
        past.record(series, 1.0, 0.5);
    }
    let (vm, past) = (1, Box::new(past));
    assert!(runtime.link(Role::Shadow).send(Request::Fill {
        generation,
        vm,
        past
    }));
    let checks = [
        (2, None),
        (256, Some(Fault::Nondeterministic)),
        (65, Some(Fault::NotFixpoint)),
    ];
    for (n, (checksum, fault)) in (1..).zip(checks) {
        let reply = Replies::default();
        let question = Question {
            generation,
            checksum,
            ..question(&policy, n, &reply)
        };
        assert!(
            runtime
                .link(Role::Shadow)
                .send(Request::Ask(Box::new(question)))
        );
        let said = tokio::time::timeout(PATIENCE, reply.next()).await;
        match (said.expect("an end").end, fault) {
            (End::Answer(answer), None) => assert_eq!(answer.votes[0].value.0, 2000),
            // A busy machine makes answers late.
            (End::Fault(of, _), fault) => assert!(of == Fault::Late || Some(of) == fault, "{of:?}"),
            (end, _) => panic!("{end:?}"),
        }
        if runtime.link(Role::Shadow).generation() != generation {
            break;
        }
    }
    cancel.cancel();
    task.await.expect("it ends");
}

#[tokio::test]
async fn missing_program_is_named_and_nothing_fails() {
    let (runtime, queues) = PolicyRuntime::new(
        Settings::default(),
        &mut Registry::default(),
        None,
        Clock::new(),
    );
    let program = Some("/nowhere/bellows-policy".into());
    let supervisor = Supervisor::new(runtime.clone(), Role::Shadow, queues.shadow, None, program);
    let cancel = CancellationToken::new();
    let task = tokio::spawn(supervisor.run(cancel.clone()));
    assert!(runtime.link(Role::Shadow).send(Request::Wanted));
    let wait = async {
        while runtime.dump()["workers"]["shadow"]["problem"].is_null() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .expect("a problem");
    let problem = runtime.dump()["workers"]["shadow"]["problem"].to_string();
    assert!(problem.contains("/nowhere/bellows-policy"), "{problem}");
    assert_eq!(runtime.link(Role::Shadow).generation(), 0);
    cancel.cancel();
    task.await.expect("it ends");
}
