//! The notice at logins of a guest that is about to move. A guest whose daemon does not know
//! notices, or does not answer, moves without one.

use std::time::Duration;

use fleet_core::runners::step::MOVE_LIMIT;
use fleet_core::runners::{Key, Order};
use hyper::Method;
use protocol::fleet::RunnerMove;
use protocol::notice::{MOST_SECONDS, MoveNotice, RUNNER_ROUTE};

use super::Access;
use super::look::KnownGuest;

/// Longest exchange with a guest. The writes of the order follow within its time.
const LIMIT: Duration = Duration::from_secs(3);

impl Access {
    /// Shows the notice before a move, and takes it away with the end of the move. The guest takes
    /// one away by itself that nobody renews.
    pub(super) async fn tell_people(&self, key: &Key, known: &KnownGuest, order: &Order) {
        let (method, body) = match order {
            Order::Begin(turn) => (Method::PUT, body(turn)),
            // The first one was lost, or its move was held for long.
            Order::Migrate { .. } => match known.guest.open() {
                Some(turn) => (Method::PUT, body(turn)),
                None => return,
            },
            // A guest that is only to have the runner with its next start has no notice.
            Order::End(_) if known.guest.open().is_some() => (Method::DELETE, String::new()),
            _ => return,
        };
        let runners = &self.looker.runners;
        let sent = runners.send(&known.runner, method, RUNNER_ROUTE, body, LIMIT);
        if let Err(error) = sent.await {
            let (vm, error) = (&key.1, daemon_kit::chain(&error));
            tracing::warn!(
                namespace = key.0,
                vm,
                error,
                "no notice at logins of a guest"
            );
        }
    }
}

fn body(turn: &RunnerMove) -> String {
    let limit = MOVE_LIMIT.as_millis() / 1000;
    let notice = MoveNotice {
        version: turn.version.clone(),
        since: turn.since,
        valid_seconds: u32::try_from(limit).map_or(MOST_SECONDS, |limit| limit.min(MOST_SECONDS)),
    };
    serde_json::to_string(&notice).unwrap_or_default()
}
