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
/// Pause between two dials of a dialer.
const PAUSE: Duration = Duration::from_millis(10);
/// Longest wait for an answer. A program that hangs answers nobody until its trial is over.
const PATIENCE: Duration = Duration::from_secs(120);
/// Answered at once by a monitor, which serves another path.
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: monitor\r\n\r\n";

/// How a dial ended.
///
/// The guest's network accepts on the host before it asks the guest, so a refusal ends a connection
/// too. Only a second failure in a row proves it: a program that is replaced cuts what it has
/// accepted, and the next dial waits in the listener's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The monitor answered.
    Answered,
    /// It ended without an answer.
    Cut,
    /// It ended without an answer, as the dial before it.
    Refused,
    /// It had no end in [`PATIENCE`].
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
    let mut before = Outcome::Answered;
    loop {
        let began = Instant::now();
        let answered = timeout(PATIENCE, is_answered(address)).await;
        let outcome = match (answered, before) {
            (Err(_), _) => Outcome::Unanswered,
            (Ok(true), _) => Outcome::Answered,
            (Ok(false), Outcome::Cut | Outcome::Refused) => Outcome::Refused,
            (Ok(false), _) => Outcome::Cut,
        };
        before = outcome;
        let ended = Instant::now();
        lock(&seen).push(Dial {
            began,
            ended,
            outcome,
        });
        if outcome != Outcome::Cut {
            sleep(PAUSE).await;
        }
    }
}

async fn is_answered(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(address).await else {
        return false;
    };
    let mut byte = [0];
    let sent = stream.write_all(REQUEST).await;
    sent.is_ok() && matches!(stream.read(&mut byte).await, Ok(1))
}
