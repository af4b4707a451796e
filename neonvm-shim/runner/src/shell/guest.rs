//! The link to neonvmd in the guest: its state by long-poll, CPU targets, files.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::time::Duration;

use bytes::Bytes;
use daemon_kit::http_client::{HttpClient, HttpError};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use hyper::{Method, StatusCode};
use neonvm_files::push;
use protocol::runner::GuestState;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::core::guestd_key::GuestdKey;

/// Longest wait for the first response of a booting guest. QEMU's network accepts the connection
/// before the guest does, so only a response proves that the daemon runs.
const FIRST_ANSWER: Duration = Duration::from_millis(750);
/// Pause between the starts of two attempts. passt tries a guest's port once per connection, so an
/// attempt from before the guest had a network stays without a response, and the next one must not
/// wait for it.
const NEXT_TRY: Duration = Duration::from_millis(150);
/// Attempts at that pace. Later ones are rarer, as each leaves frames that wait for the guest's
/// driver.
const QUICK_TRIES: u64 = 100;
/// Timeout of every fourth attempt: a guest with a quarter of a CPU may need it.
const PATIENT_ANSWER: Duration = Duration::from_secs(4);
/// Pause between two attempts at a guest that does not answer.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// How long neonvmd holds a long-poll before it repeats itself.
const LONG_POLL_MS: u64 = 5_000;
/// How long the memory must be unchanged before neonvmd reports it: the blocks of one order arrive
/// about 10 ms apart under TCG. CPUs are reported at once.
const SETTLE_MS: u64 = 25;
/// Longest wait for the response to a long-poll: a throttled guest under TCG is slow.
const LONG_POLL_LIMIT: Duration = Duration::from_secs(15);
/// Interval of polling a daemon that has no long-poll.
const ASK_CPUS: Duration = Duration::from_secs(1);
/// Longest wait for a CPU to be switched: the first one patches the whole kernel.
const CPU_LIMIT: Duration = Duration::from_secs(15);
/// Longest wait for files to be written.
const FILES_LIMIT: Duration = Duration::from_secs(10);
/// Directory of the guest's sshd with authorized keys.
const SSH_DIR: &str = "/mnt/ssh";
/// Pause between two attempts to push the key, and their number.
const KEY_AGAIN: Duration = Duration::from_secs(1);
const KEY_TRIES: u32 = 60;

/// Address and key of a guest's daemon.
#[derive(Debug, Clone)]
pub struct Daemon {
    /// Address of the daemon's port, forwarded by the pod.
    pub address: SocketAddrV4,
    /// Key of the guest's boot. `None` for a guest that an older runner booted. NeonVM's daemon
    /// ignores it.
    pub key: Option<GuestdKey>,
}

async fn connect(daemon: &Daemon, limit: Duration) -> Result<HttpClient, HttpError> {
    let stream = tokio::time::timeout(limit, TcpStream::connect(daemon.address))
        .await
        .map_err(|_| HttpError::Late(limit))?
        .map_err(HttpError::Connect)?;
    // Small requests must not wait for the peer's delayed acknowledgement.
    stream.set_nodelay(true).map_err(HttpError::Connect)?;
    let link = HttpClient::over(stream, "guest").await?;
    Ok(match &daemon.key {
        Some(key) => link.with_bearer(key.as_str()),
        None => link,
    })
}

/// A report of the guest's daemon.
#[derive(Debug)]
pub enum GuestReport {
    /// Complete state of the guest, from neonvmd.
    State(GuestState),
    /// Number of online CPUs, from a daemon that reports nothing else: NeonVM's
    /// (docs/compatibility/neonvm.md §3.7).
    Cpus(u32),
}

/// Sends every report of the guest until cancelled or the receiver is closed.
pub async fn watch(daemon: Daemon, reports: mpsc::Sender<GuestReport>, cancel: CancellationToken) {
    let mut is_refused = false;
    loop {
        let round = follow(&daemon, &reports);
        tokio::select! {
            () = cancel.cancelled() => return,
            ended = round => match ended {
                Ok(()) => return,
                Err(HttpError::Status(StatusCode::UNAUTHORIZED, text)) => {
                    if !std::mem::replace(&mut is_refused, true) {
                        warn!(text, "the guest's daemon refuses the key in this directory");
                    }
                }
                Err(error) => debug!(error = daemon_kit::chain(&error), "guest daemon not reached"),
            },
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(TRY_AGAIN) => {}
        }
    }
}

/// First successful request of several in progress. It may reach another daemon than before, with
/// generations of its own.
async fn first_look(daemon: &Daemon) -> (HttpClient, Result<Bytes, HttpError>) {
    let look = async |limit| {
        let mut link = connect(daemon, limit).await?;
        match link.send(Method::GET, "/v1/state", "", limit).await {
            refused @ (Ok(_) | Err(HttpError::Status(..))) => Ok((link, refused)),
            Err(error) => Err(error),
        }
    };
    let mut looks = FuturesUnordered::new();
    let mut next = Instant::now();
    let mut begun = 0_u64;
    loop {
        tokio::select! {
            () = sleep_until(next) => {
                begun += 1;
                next = Instant::now() + if begun < QUICK_TRIES { NEXT_TRY } else { 4 * NEXT_TRY };
                let is_patient = begun.is_multiple_of(4);
                looks.push(look(if is_patient { PATIENT_ANSWER } else { FIRST_ANSWER }));
            }
            Some(looked) = looks.next() => match looked {
                Ok(answered) => return answered,
                Err(error) => debug!(error = daemon_kit::chain(&error), "guest daemon not reached"),
            },
        }
    }
}

/// Sends reports until the connection fails. Returns `Ok` when the receiver has closed the channel.
async fn follow(daemon: &Daemon, reports: &mpsc::Sender<GuestReport>) -> Result<(), HttpError> {
    let (mut link, first) = first_look(daemon).await;
    let mut answer = match first {
        Err(HttpError::Status(StatusCode::NOT_FOUND, _)) => {
            return follow_cpus(link, reports).await;
        }
        first => first?,
    };
    loop {
        let state: GuestState = serde_json::from_slice(&answer).map_err(HttpError::Malformed)?;
        let after = state.generation;
        if reports.send(GuestReport::State(state)).await.is_err() {
            return Ok(());
        }
        let path = format!("/v1/state?after={after}&wait_ms={LONG_POLL_MS}&settle_ms={SETTLE_MS}");
        answer = link.send(Method::GET, &path, "", LONG_POLL_LIMIT).await?;
    }
}

/// Polls the CPUs of a daemon without the state's route.
async fn follow_cpus(
    mut link: HttpClient,
    reports: &mpsc::Sender<GuestReport>,
) -> Result<(), HttpError> {
    loop {
        let answer = link.send(Method::GET, "/cpu", "", PATIENT_ANSWER).await?;
        let milli: u32 = serde_json::from_slice(&answer).map_err(HttpError::Malformed)?;
        if reports
            .send(GuestReport::Cpus(milli.div_ceil(1000)))
            .await
            .is_err()
        {
            return Ok(());
        }
        tokio::time::sleep(ASK_CPUS).await;
    }
}

/// Requests a number of online CPUs from the guest.
///
/// # Errors
/// [`HttpError`], with status 500 when the guest could not.
pub async fn set_cpus(daemon: &Daemon, cpus: u32) -> Result<(), HttpError> {
    let milli = u64::from(cpus) * 1000;
    let mut link = connect(daemon, CPU_LIMIT).await?;
    link.send(Method::PUT, "/cpu", milli.to_string(), CPU_LIMIT)
        .await
        .map(drop)
}

/// Checksum of a directory of the guest.
///
/// # Errors
/// [`HttpError`], with a status when the directory does not exist.
pub async fn checksum(daemon: &Daemon, dir: &str) -> Result<String, HttpError> {
    let mut link = connect(daemon, FILES_LIMIT).await?;
    let path = format!("/files{dir}");
    let text = link.send(Method::GET, &path, "", FILES_LIMIT).await?;
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}

/// Replaces the content of a directory of the guest.
///
/// # Errors
/// [`HttpError`].
pub async fn put_files(
    daemon: &Daemon,
    dir: &str,
    files: &BTreeMap<String, Vec<u8>>,
) -> Result<(), HttpError> {
    let body = push::encode(files).map_err(HttpError::Malformed)?;
    let mut link = connect(daemon, FILES_LIMIT).await?;
    link.send(Method::PUT, &format!("/files{dir}"), body, FILES_LIMIT)
        .await
        .map(drop)
}

/// Pushes an ssh key into the guest. A guest with the key on a drive does not take it.
pub async fn push_key(daemon: Daemon, key: String, has_drive: bool) {
    let content = format!("{}\n", key.trim_end()).into_bytes();
    let files = BTreeMap::from([("authorized_keys".to_owned(), content)]);
    for attempt in 1..=KEY_TRIES {
        match put_files(&daemon, SSH_DIR, &files).await {
            Ok(()) => return info!("ssh key is in the guest"),
            Err(HttpError::Status(..)) if has_drive => {
                return info!("the guest has the ssh key from its drive");
            }
            Err(error) if attempt == KEY_TRIES => {
                warn!(
                    error = daemon_kit::chain(&error),
                    "failed to push the ssh key into the guest"
                );
            }
            Err(_) => tokio::time::sleep(KEY_AGAIN).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::Router;
    use axum::routing::get;
    use tokio::net::TcpListener;

    use super::*;

    /// A daemon with NeonVM's routes only.
    async fn neonvms() -> Daemon {
        let routes = Router::new().route("/cpu", get(|| async { "2000" }));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, routes).await });
        match address {
            SocketAddr::V4(address) => Daemon {
                address,
                key: Some(GuestdKey::new([1; 32])),
            },
            SocketAddr::V6(_) => unreachable!("bound to an IPv4 address"),
        }
    }

    /// passt accepts a connection before its guest has a network, and never retries it at the
    /// guest.
    #[tokio::test]
    async fn request_without_a_response_does_not_delay_the_next() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let SocketAddr::V4(address) = listener.local_addr().expect("an address") else {
            unreachable!("bound to an IPv4 address")
        };
        let daemon = Daemon { address, key: None };
        let (reports, _received) = mpsc::channel(1);
        let cancel = CancellationToken::new();
        tokio::spawn(watch(daemon, reports, cancel.clone()));
        let (first, _) = listener.accept().await.expect("a first look");
        let (_second, _) = listener.accept().await.expect("a second look");
        let mut asked = [0; 4096];
        first.readable().await.expect("the first question");
        while first.try_read(&mut asked).is_ok_and(|bytes| bytes > 0) {}
        let end = first.try_read(&mut asked).map_err(|error| error.kind());
        assert_eq!(end, Err(std::io::ErrorKind::WouldBlock), "it still waits");
        cancel.cancel();
    }

    #[tokio::test]
    async fn daemon_without_the_state_route_is_polled_for_cpus() {
        let (reports, mut received) = mpsc::channel(1);
        let cancel = CancellationToken::new();
        tokio::spawn(watch(neonvms().await, reports, cancel.clone()));
        for _ in 0..2 {
            let report = received.recv().await;
            assert!(matches!(report, Some(GuestReport::Cpus(2))), "{report:?}");
        }
        cancel.cancel();
    }
}
