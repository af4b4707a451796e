//! Dials of the monitor's port from the host, all the time, as an agent dials it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Dials at once. The monitor admits 16, of which the agent needs one.
const DIALERS: usize = 3;
/// Time for a refusal. The guest's network accepts on the host before the guest does.
const QUIET: Duration = Duration::from_millis(20);
/// Pause between two dials of a dialer.
const PAUSE: Duration = Duration::from_millis(10);
/// Longest wait for an answer. A program that hangs answers nobody until its trial is over.
const PATIENCE: Duration = Duration::from_secs(120);
/// Answered at once by a monitor, which serves another path.
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: monitor\r\n\r\n";

/// How a dial ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The monitor answered.
    Answered,
    /// Nothing listened.
    Refused,
    /// It was closed without an answer.
    Cut,
    /// Neither in [`PATIENCE`].
    Unanswered,
}

/// A dial that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dial {
    pub(super) began: Instant,
    pub(super) ended: Instant,
    pub(super) outcome: Outcome,
}

/// Dialers, which stop when this is dropped, and their dials.
pub(super) struct Dials {
    seen: Arc<Mutex<Vec<Dial>>>,
    _dialers: JoinSet<()>,
}

impl Dials {
    pub(super) fn start(address: SocketAddr) -> Self {
        let seen = Arc::default();
        let mut dialers = JoinSet::new();
        for _ in 0..DIALERS {
            dialers.spawn(dial_on(address, Arc::clone(&seen)));
        }
        Self {
            seen,
            _dialers: dialers,
        }
    }

    /// Dials that have ended since the last [`Dials::take`].
    pub(super) fn seen(&self) -> MutexGuard<'_, Vec<Dial>> {
        lock(&self.seen)
    }

    /// Takes the dials that have ended.
    pub(super) fn take(&self) -> Vec<Dial> {
        std::mem::take(&mut self.seen())
    }
}

fn lock(seen: &Mutex<Vec<Dial>>) -> MutexGuard<'_, Vec<Dial>> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn dial_on(address: SocketAddr, seen: Arc<Mutex<Vec<Dial>>>) {
    loop {
        let began = Instant::now();
        let outcome = dial(address).await;
        let ended = Instant::now();
        lock(&seen).push(Dial {
            began,
            ended,
            outcome,
        });
        sleep(PAUSE).await;
    }
}

async fn dial(address: SocketAddr) -> Outcome {
    let Ok(mut stream) = TcpStream::connect(address).await else {
        return Outcome::Refused;
    };
    let mut byte = [0];
    match timeout(QUIET, stream.read(&mut byte)).await {
        Ok(Err(_)) => return Outcome::Refused,
        Ok(Ok(_)) => return Outcome::Cut,
        Err(_) => {}
    }
    if stream.write_all(REQUEST).await.is_err() {
        return Outcome::Cut;
    }
    match timeout(PATIENCE, stream.read(&mut byte)).await {
        Ok(Ok(1)) => Outcome::Answered,
        Ok(_) => Outcome::Cut,
        Err(_) => Outcome::Unanswered,
    }
}
