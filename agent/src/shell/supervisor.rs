//! Keeps one VM's task alive: a crash is counted and noted, and the task starts again, at once if it had lived for long, else after
//! a while. Nothing of another VM is touched. Source: spec/agent.md §6.1.

use std::sync::Arc;
use std::time::Duration;

use protocol::time::Span;
use rand::Rng;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::metrics::RunnerState;
use super::runner::{Context, Runner, Subject, VmFeed};
use super::state::{EndState, Place, text_of};

/// A task that lived longer than this starts again at once.
const LONG_LIFE: Span = Span::from_secs(10);
/// Seconds to wait otherwise.
const RESTART_WAIT_S: std::ops::RangeInclusive<u64> = 5..=9;

/// Runs a VM's task until cancelled.
pub(super) async fn supervise(
    ctx: Arc<Context>,
    subject: Subject,
    feed: watch::Receiver<VmFeed>,
    place: Place,
    cancel: CancellationToken,
) {
    ctx.metrics.starts.inc();
    loop {
        let started = ctx.clock.now();
        let runner = Runner::new(
            Arc::clone(&ctx),
            subject.clone(),
            feed.clone(),
            place.clone(),
        );
        let mut task = AbortOnDrop(tokio::spawn(runner.run(cancel.clone()).in_current_span()));
        let Err(error) = (&mut task.0).await else {
            note_end(&ctx, &place, "canceled", None);
            return;
        };
        ctx.metrics.panics.inc();
        let text = panic_text(error);
        tracing::error!(error = text, "the VM's task crashed");
        note_end(&ctx, &place, "panicked", Some(text));
        let lived = ctx.clock.now().since(started);
        if lived <= LONG_LIFE {
            let wait = Duration::from_secs(rand::rng().random_range(RESTART_WAIT_S));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = cancel.cancelled() => return,
            }
        }
        ctx.metrics.restarts.inc();
    }
}

/// A task that does not outlive whoever waits for it.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn panic_text(error: tokio::task::JoinError) -> String {
    match error.try_into_panic() {
        Err(error) => error.to_string(),
        Ok(panic) => panic
            .downcast_ref::<&str>()
            .map(ToString::to_string)
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a crash without a text".into()),
    }
}

fn note_end(ctx: &Context, place: &Place, exit_kind: &'static str, error: Option<String>) {
    let time = text_of(&ctx.clock, ctx.clock.now());
    let mut view = place.lock();
    if error.is_some() {
        view.state = Some(RunnerState::Panicked);
        view.state_updated_at.clone_from(&time);
    }
    view.ended(EndState {
        exit_kind,
        error,
        time,
    });
}
