//! A link to a runner that is held: one connection follows its state, another carries orders.

use std::sync::Arc;

use daemon_kit::clock::Clock;
use tokio::sync::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::link::{self, RunnerAddress, RunnerLink};
use super::mailbox::{Mailbox, News};
use super::moment;
use super::runner_key::RunnerKey;

/// Both connections to the runner of one pod; following ends when it is dropped.
pub(super) struct Held {
    pub(super) pod: String,
    pub(super) address: RunnerAddress,
    pub(super) orders: Arc<Mutex<RunnerLink>>,
    _follower: DropGuard,
}

impl Held {
    /// Follows the runner of `pod`, and puts what it says, or that it is silent, into the mailbox.
    pub(super) fn open<N>(
        pod: &str,
        address: RunnerAddress,
        key: &Arc<RunnerKey>,
        mailbox: &Mailbox<N>,
        clock: Clock,
    ) -> Self
    where
        N: News + Send + 'static,
    {
        let cancel = CancellationToken::new();
        let (mailbox, name) = (mailbox.clone(), pod.to_owned());
        let tell = move |said| mailbox.put(moment(&clock), N::of_runner(name.clone(), said));
        let link = RunnerLink::with_key(address.clone(), key);
        tokio::spawn(link::follow(link, tell, cancel.clone()));
        Self {
            pod: pod.to_owned(),
            orders: Arc::new(Mutex::new(RunnerLink::with_key(address.clone(), key))),
            address,
            _follower: cancel.drop_guard(),
        }
    }
}
