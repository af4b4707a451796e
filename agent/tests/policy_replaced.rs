//! Policies, their worker and their agent are replaced while a VM is sized: nothing of the size or
//! the record is lost.

mod peers;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};

use agent::{Oracle, Reasked, Replay};
use daemon_kit::clock::Clock;
use peers::guest::Page;
use peers::policies::{
    TRIES, asked, is_set_aside, kill_worker, put_program, restart, runs, spec, start_decided,
    until_decided, world,
};
use peers::{Seen, position, until};
use policy_contract::{Answer, Input, Spec};
use protocol::journal::Record;
use serde_json::{Value, json};

/// Replacements of a test.
const ROUNDS: u32 = 20;
const HOUR_US: i64 = 3_600_000_000;

/// Answers as the program does.
#[derive(Debug, Default)]
struct Three {
    versions: BTreeMap<String, u32>,
}

impl Oracle for Three {
    fn spec(&mut self, digest: &str) -> Option<std::sync::Arc<Spec>> {
        let version = (0..ROUNDS * TRIES + 1).find(|one| spec(*one).digest().to_string() == digest);
        self.versions.insert(digest.to_owned(), version?);
        Some(spec(version?).into())
    }

    fn forget(&mut self, _: u32) {}

    fn sample(&mut self, _: u32, _: f64, _: BTreeMap<String, f64>) {}

    fn ask(&mut self, digest: &str, _: u32, _: f64, _: &Input) -> Option<Reasked> {
        let reason = format!("v{}", self.versions.get(digest)?);
        let answer = json!({"cu": 3, "reason": reason});
        Some(Ok(Answer::read(&answer).expect("an answer")))
    }
}

/// Requirement: V09
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v09_each_question_but_the_first_has_the_last_answer_of_its_version() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut world = world(folder.path(), &folder.path().join("journal")).await;
    world.config["metrics"]["system"]["secondsBetweenRequests"] = json!(1);
    world.start_connected().await;
    world.guest.set(Page::Good(0.9, 0.0));
    let questions = |version: u32| {
        let all = asked(folder.path()).into_iter();
        let own = all.filter(|(of, _)| *of == version);
        own.map(|(_, question)| question).collect::<Vec<_>>()
    };
    let mut versions = [0, 0];
    for _ in 0..TRIES {
        let live = until_decided(&world, versions[1] + 1).await;
        versions = [live, live + 1];
        let status = json!({"live": {"digest": spec(live).digest()}});
        let newest = json!({"source": spec(live + 1).source});
        world.api.put_policy_with("db", newest, status);
        let is_asked = || {
            versions
                .iter()
                .all(|version| questions(*version).len() >= 5)
        };
        until("both versions are asked again and again", || {
            is_asked() || is_set_aside(&world)
        })
        .await;
        if is_asked() {
            break;
        }
    }
    world.stop().await;
    for version in versions {
        let all = questions(version);
        let old = |question: &Value| question["i"]["old"].clone();
        assert_eq!(old(&all[0]), Value::Null, "version {version}");
        // An answer that came too late is no answer, so another question may be without.
        let later: Vec<Value> = all
            .iter()
            .skip(1)
            .map(old)
            .filter(Value::is_object)
            .collect();
        assert!(
            later.len() + 2 >= all.len() - 1,
            "version {version}: {later:?}"
        );
        for old in later {
            let own = format!("v{version}");
            assert_eq!((&old["cu"], &old["reason"]), (&json!(3), &json!(own)));
            let age = old["age_s"].as_f64();
            assert!(age.is_some_and(|age| (0.0..30.0).contains(&age)), "{old}");
        }
    }
}

/// Twenty times a version, the worker with its program, or the agent is replaced while the load
/// changes. The VM is never made smaller than its policy wants, and each run replays as it was.
///
/// Requirement: V31
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v31_twenty_replacements_under_load_lose_no_size_and_no_record() {
    let folder = tempfile::tempdir().expect("a folder");
    let journal = folder.path().join("journal");
    let mut world = world(folder.path(), &journal).await;
    let (mut version, at) = start_decided(&mut world).await;
    for round in 0..ROUNDS {
        let load = f64::from(round % 4) * 0.2;
        world.guest.set(Page::Good(load, 0.0));
        match round % 3 {
            0 => {}
            1 => {
                put_program(folder.path(), round);
                kill_worker(folder.path());
            }
            _ => restart(&mut world).await,
        }
        version = until_decided(&world, version + 1).await;
    }
    let all = world.trace.all();
    let is_smaller = |seen: &Seen| matches!(seen, Seen::Patch(_, slots, _) if *slots < 3);
    assert_eq!(position(&all[at..], is_smaller), None, "{all:?}");
    world.stop().await;

    let runs = runs(&journal);
    assert!(runs.len() >= 6, "{} runs", runs.len());
    let mut answers = 0;
    for records in runs {
        answers += records
            .iter()
            .filter(|record| matches!(record, Record::Answered(one) if one.fault.is_none()))
            .count();
        let mut replay = Replay::new().with_oracle(Box::new(Three::default()));
        records.into_iter().for_each(|record| replay.take(record));
        let report = replay.finish();
        assert!(report.is_equal(), "{report:#?}");
    }
    assert!(answers >= 20, "{answers} answers are recorded");
}

/// Requirement: V25. The past and ages go by the monotonic clock when the calendar is set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v25_past_and_ages_of_questions_do_not_follow_a_clock_that_is_set() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut world = world(folder.path(), &folder.path().join("journal")).await;
    let offset: &'static AtomicI64 = Box::leak(Box::default());
    world.clock = Clock::with_wall_offset(offset);
    world.config["metrics"]["system"]["secondsBetweenRequests"] = json!(1);
    world.start_connected().await;
    for (count, hours) in [(2, -1), (4, 24), (6, 0)] {
        until("it is asked", || asked(folder.path()).len() >= count).await;
        offset.store(hours * HOUR_US, Ordering::Relaxed);
    }
    until("it is asked", || asked(folder.path()).len() >= 8).await;
    world.stop().await;
    let questions = asked(folder.path());
    let at = |(_, question): &(u32, Value)| question["t"].as_f64().expect("a time");
    for pair in questions.windows(2) {
        let after = at(&pair[1]) - at(&pair[0]);
        assert!((0.0..60.0).contains(&after), "{after} s: {pair:?}");
    }
    for (_, question) in &questions {
        let age = question["i"]["old"]["age_s"].as_f64().unwrap_or_default();
        assert!((0.0..60.0).contains(&age), "{question}");
    }
    // The records carry the calendar of their begin, so the time of a question is the same when it
    // is asked again.
    let minute = |(_, question): &(u32, Value)| question["i"]["time"]["minute"].as_u64();
    let first = minute(&questions[0]).expect("a minute");
    for question in &questions {
        let later = (minute(question).expect("a minute") + 1440 - first) % 1440;
        assert!(later <= 2, "{later} minutes later: {question:?}");
    }
}
