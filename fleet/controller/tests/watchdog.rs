//! The eye on a driver whose runtime is blocked.

use std::sync::mpsc;
use std::time::Duration;

use daemon_kit::StageLog;
use daemon_kit::clock::Clock;
use fleet::{Location, Metrics, Params, Pulses};
use fleet_controller::watchdog;
use test_api::TestApi;
use tokio_util::sync::CancellationToken;

const LIMIT: Duration = Duration::from_millis(2500);
/// Longest wait for the watchdog, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Requirement: B42
#[test]
fn driver_on_a_blocked_runtime_is_reported_and_a_working_one_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let pulses = Pulses::default();
    let (report, reported) = mpsc::channel();
    let on_stuck = move |step| report.send(step).expect("a receiver");
    watchdog::start(pulses.clone(), LIMIT, on_stuck).expect("a thread");
    let step = runtime.block_on(async {
        let api = TestApi::start().await;
        let params = Params {
            client: api.client(),
            clock: Clock::new(),
            state_dir: folder.path().to_owned(),
            location: Location::Machine,
            stages: StageLog::new(1),
            metrics: Metrics::default(),
            journal: None,
            pulses,
            schedules: false,
        };
        tokio::spawn(fleet::run(params, CancellationToken::new()));
        tokio::time::sleep(2 * LIMIT).await;
        assert!(reported.try_recv().is_err(), "the driver works");
        // The only thread of the runtime waits, so no task gets on.
        reported.recv_timeout(PATIENCE).expect("a report")
    });
    assert!(step > LIMIT, "{step:?}");
}
