//! Connections to the runner of one pod: one follows its state, the other carries orders.

use std::sync::Arc;

use daemon_kit::clock::Clock;
use tokio::sync::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::clock::moment;
use super::link::{RunnerAddress, RunnerLink, watch_state};
use super::mailbox::{Mailbox, MailboxUpdate};
use super::runner_key::RunnerKey;

/// Both connections to the runner of one pod. Dropping it ends the one that follows the state.
pub(super) struct RunnerConnections {
    pub(super) pod: String,
    pub(super) address: RunnerAddress,
    pub(super) orders: Arc<Mutex<RunnerLink>>,
    _follower: DropGuard,
}

impl RunnerConnections {
    /// Follows the runner of `pod`. Each state, and each failure to read it, goes into the mailbox.
    pub(super) fn open<N>(
        pod: &str,
        address: RunnerAddress,
        key: &Arc<RunnerKey>,
        mailbox: &Mailbox<N>,
        clock: Clock,
    ) -> Self
    where
        N: MailboxUpdate + Send + 'static,
    {
        let cancel = CancellationToken::new();
        let (mailbox, name) = (mailbox.clone(), pod.to_owned());
        let update = move |result| mailbox.put(moment(&clock), N::of_runner(name.clone(), result));
        let link = RunnerLink::with_key(address.clone(), key);
        tokio::spawn(watch_state(link, update, cancel.clone()));
        Self {
            pod: pod.to_owned(),
            orders: Arc::new(Mutex::new(RunnerLink::with_key(address.clone(), key))),
            address,
            _follower: cancel.drop_guard(),
        }
    }
}
