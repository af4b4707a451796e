//! Somebody sets the machine's clock while the agent runs: by a day, forward and back. Decisions,
//! cooldowns, the age of metrics, health counters and bills go by monotonic time; only the stamps
//! that people read follow the calendar.

mod peers;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use daemon_kit::clock::Clock;
use peers::guest::Page;
use peers::scheduler::{Mood, PLENTY};
use peers::{
    Seen, World, is_patch, patched_to, permits, position, units, until, until_asked_again,
};
use protocol::time::WallTime;
use serde_json::{Value, json};

const DAY_US: i64 = 86_400_000_000;
/// More than any of these tests takes, less than any step.
const HOUR_US: i64 = 3_600_000_000;

/// The machine's calendar, to be set wrong.
struct Calendar(&'static AtomicI64);

impl Calendar {
    /// An agent's clock that follows this calendar.
    fn of(world: &mut World) -> Self {
        let offset: &'static AtomicI64 = Box::leak(Box::default());
        world.clock = Clock::with_wall_offset(offset);
        Self(offset)
    }

    fn set_wrong_by(&self, days: i64) {
        self.0.store(days * DAY_US, Ordering::Relaxed);
    }
}

/// What is decided, without the stamps.
fn decision(world: &World) -> Value {
    let last = &world.state.dump()["pods"][0]["lastDecision"];
    let keys = ["current", "target", "goalUnits", "reason", "boundedBy"];
    Value::Array(keys.iter().map(|key| last[key].clone()).collect())
}

/// The status, but for what is counted on.
fn health(world: &World) -> (Value, Value, u64) {
    let status = &world.state.dump()["pods"][0]["status"];
    let failures = status["failedSchedulerRequestCounter"].as_u64();
    let failures = failures.expect("is a number");
    (
        status["state"].clone(),
        status["stuckReason"].clone(),
        failures,
    )
}

/// Requirement: N26
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stepped_wall_clock_changes_no_decision() {
    let mut world = World::new().await;
    let calendar = Calendar::of(&mut world);
    world.config["refereshStateIntervalSeconds"] = json!(1);
    world.config["metrics"]["system"]["staleAfterSeconds"] = json!(600);
    world.config["monitor"]["retryDeniedDownscaleSeconds"] = json!(600);
    world.config["scheduler"]["requestAtLeastEverySeconds"] = json!(1);
    world.config["scheduler"]["retryFailedRequestSeconds"] = json!(1);
    world.config["scheduler"]["maxFailedRequestRate"] =
        json!({"intervalSeconds": 3600, "threshold": 1000});
    world.guest.set(Page::Good(0.5, 0.0));
    world.start_connected().await;
    world
        .trace
        .until("it has two units", |all| position(all, patched_to(2)))
        .await;
    // Something to count: a failing scheduler. Something to wait for: a refused shrink. Something
    // that ages: metrics.
    world.scheduler.set(Mood::Fails);
    until("failures are counted", || health(&world).2 >= 2).await;
    world.scheduler.set(Mood::Grants(PLENTY));
    world.guest.manners.refuses.store(true, Ordering::Relaxed);
    world.guest.set(Page::Good(0.0, 0.0));
    let asked = |seen: &Seen| matches!(seen, Seen::AskedToShrink(_));
    world
        .trace
        .until("it may not shrink", |all| position(all, asked))
        .await;
    world.guest.set(Page::Unavailable);
    let held = json!("denied_downscale");
    until("the refusal holds the size", || decision(&world)[3] == held).await;
    until_asked_again(&world).await;
    let (before, failed) = (decision(&world), health(&world));
    assert_eq!((&failed.0, &failed.1), (&json!("ok"), &Value::Null));
    let seen = world.trace.all().len();
    for days in [1, -1, 0, -20_000] {
        calendar.set_wrong_by(days);
        until_asked_again(&world).await;
        assert_eq!(decision(&world), before, "{days} days");
        assert_eq!(health(&world), failed, "{days} days: no failure forgotten");
    }
    let since = &world.trace.all()[seen..];
    for (told, held) in permits(since) {
        assert_eq!((told, held), (units(2), Some(units(2))), "heartbeats only");
    }
    let others = since.iter().filter(|seen| {
        !matches!(
            seen,
            Seen::Permit(_) | Seen::Scrape | Seen::HealthCheck | Seen::Granted(_)
        )
    });
    assert_eq!(others.collect::<Vec<_>>(), Vec::<&Seen>::new());
    assert_eq!(world.trace.count(asked), 1, "asked once, refused once");
    world.stop().await;
}

/// Requests that were sent before the step and are answered after it.
///
/// Requirement: N26
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_step_during_a_patch_repeats_nothing_and_keeps_stamps_sane() {
    for days in [1, -1] {
        let mut world = World::new().await;
        let calendar = Calendar::of(&mut world);
        world.config["neonvm"]["requestTimeoutSeconds"] = json!(60);
        world.config["scheduler"]["requestAtLeastEverySeconds"] = json!(1);
        world.api.hold_patches(true);
        world.guest.set(Page::Good(0.5, 0.0));
        world.start_connected().await;
        let held = |seen: &Seen| *seen == Seen::PatchHeld;
        world
            .trace
            .until("a patch is under way", |all| position(all, held))
            .await;
        let real = Clock::new().wall().0;
        calendar.set_wrong_by(days);
        until_asked_again(&world).await;
        world.api.hold_patches(false);
        world
            .trace
            .until("the monitor is told", |all| {
                position(all, |seen| matches!(seen, Seen::Granted(_)))
            })
            .await;
        let latency = "autoscaling_agent_scaling_latency_seconds_count";
        world.until_metric(latency).await;
        until_asked_again(&world).await;
        assert_eq!(world.trace.count(held), 1, "{days}: sent once");
        assert_eq!(world.trace.count(is_patch), 1, "{days}: made once");
        let page = world.get(|a| a.metrics, "/metrics").await;
        let sums = page.lines().filter(|line| line.contains("_seconds_sum"));
        let mut looked_at = 0;
        for line in sums {
            let value = line.rsplit(' ').next().and_then(|text| text.parse().ok());
            let value: f64 = value.expect("is a number");
            assert!((0.0..3600.0).contains(&value), "{days}: {line}");
            looked_at += 1;
        }
        assert!(looked_at > 0, "{page}");
        for stage in world.stages.snapshot() {
            assert!(stage.duration_us < HOUR_US.unsigned_abs(), "{stage:?}");
            let off = stage.start_unix_us - real;
            let is_of = |day: i64| (off - day * DAY_US).abs() < HOUR_US;
            assert!(is_of(0) || is_of(days), "{days}: {stage:?}");
        }
        check_stamps(&world.state.dump(), real, days);
        world.stop().await;
    }
}

/// Every time of a dump reads, and is one of the calendar before the step or after it.
fn check_stamps(dump: &Value, real: i64, days: i64) {
    let pod = &dump["pods"][0];
    let mut stamps = vec![
        &pod["status"]["startTime"],
        &pod["status"]["stateUpdatedAt"],
        &pod["status"]["lastSuccessfulMonitorComm"],
        &pod["lastDecision"]["at"],
    ];
    let decisions = pod["decisions"].as_array().expect("is a list");
    stamps.extend(decisions.iter().map(|entry| &entry["at"]));
    assert!(stamps.len() > 5, "{pod}");
    for stamp in stamps {
        let at = WallTime::parse(stamp.as_str().expect("is text"));
        let off = at.expect("is a time").0 - real;
        let is_of = |day: i64| (off - day * DAY_US).abs() < HOUR_US;
        assert!(is_of(0) || is_of(days), "{days}: {stamp} in {pod}");
    }
}

/// Billing events on disk, from all segments in order; none before there is a folder.
fn bills(folder: &Path) -> Vec<Value> {
    let files = std::fs::read_dir(folder.join("billing")).into_iter();
    let paths = files.flatten().map(|file| file.expect("reads").path());
    let mut segments: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|end| end == "events"))
        .collect();
    segments.sort();
    let text = segments.iter().map(std::fs::read_to_string);
    let text: String = text.map(|text| text.expect("reads")).collect();
    let lines = text.lines().filter(|line| !line.starts_with('!'));
    lines
        .map(|line| serde_json::from_str(line).expect("is JSON"))
        .collect()
}

/// Whole seconds billed as active.
fn active(bills: &[Value]) -> u64 {
    let active = bills
        .iter()
        .filter(|bill| bill["metric"] == "active_time_seconds");
    active
        .map(|bill| bill["value"].as_u64().expect("never below zero"))
        .sum()
}

/// Requirement: N40
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bills_count_elapsed_time_not_calendar_time() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut world = World::new().await;
    let calendar = Calendar::of(&mut world);
    world.events_folder = Some(folder.path().to_owned());
    // Nobody takes them, so all of them stay on disk.
    world.config["billing"]["clients"] = json!({"http": {"url": "http://127.0.0.1:9",
        "pushEverySeconds": 3600, "pushRequestTimeoutSeconds": 1, "maxBatchSize": 100}});
    world.config["billing"]["collectEverySeconds"] = json!(1);
    world.config["billing"]["accumulateEverySeconds"] = json!(1);
    let mut vm = peers::api::vm("vm", &world.guest.ip.to_string());
    vm["metadata"]["annotations"] = json!({"autoscaling.neon.tech/billing-endpoint-id": "ep-1"});
    vm["status"]["cpus"] = json!("250m");
    world.api.put_vm(vm);
    let (started, mut at_least) = (Instant::now(), 0);
    for (at_start, later) in [(0, [1, -1]), (2, [0, -2]), (-3, [3, 0])] {
        calendar.set_wrong_by(at_start);
        world.start().await;
        for days in later {
            let had = active(&bills(folder.path()));
            until("it goes on", || active(&bills(folder.path())) > had).await;
            calendar.set_wrong_by(days);
            at_least += 1;
        }
        world.stop().await;
    }
    let (told, passed) = (bills(folder.path()), started.elapsed().as_secs() + 1);
    let billed = active(&told);
    assert!(
        (at_least..=passed).contains(&billed),
        "{billed} s of {passed} s: {told:#?}"
    );
    let keys = told.iter().map(|bill| bill["idempotency_key"].as_str());
    let keys: BTreeSet<_> = keys.collect();
    assert_eq!(keys.len(), told.len(), "a key twice: {told:#?}");
    let at = |bill: &Value, key: &str| {
        let text = bill[key].as_str().expect("is text");
        WallTime::parse(text).expect("is a time")
    };
    let is_active = |bill: &&Value| bill["metric"] == "active_time_seconds";
    let mut end = WallTime(0);
    for bill in told.iter().filter(is_active) {
        let (from, to) = (at(bill, "start_time"), at(bill, "stop_time"));
        assert!(end <= from && from < to, "a period twice: {told:#?}");
        end = to;
    }
}
