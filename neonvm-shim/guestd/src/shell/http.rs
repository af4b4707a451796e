//! The daemon's HTTP server: CPUs, state and files.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use neonvm_files::checksum::checksum;
use neonvm_files::projected::{self as files, FilesError};
use neonvm_files::push;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use protocol::runner::GuestState;
use protocol::time::WallTime;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::keeper::Request as KeeperRequest;
use super::notice::Notice;
use super::parts::{self, Parts};
use super::response::{HttpResponse, answer, json};
use super::runtime::Runtime;
use crate::core::callers::{self, Refusal};
use crate::core::overlay::Overlay;

/// Longest request body in bytes: a Kubernetes secret (1 MiB) in base64, with room for names.
const MAX_BODY_BYTES: usize = 4 << 20;
/// Most connections at once. The runner uses two or three; the rest is for people on the host.
const MAX_CONNECTIONS: usize = 64;
/// Longest wait of a long-poll, whatever the request says.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Longest delay of a report until the size is stable, whatever the request says.
const MAX_SETTLE: Duration = Duration::from_millis(250);
/// A connection without a new request for this long is closed.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);

/// State that the routes share.
#[derive(Debug)]
pub struct Served {
    /// The keeper's published state, for reads and long-polls.
    pub state: watch::Receiver<GuestState>,
    /// Inbox of the keeper, the one task that switches CPUs and reads the machine.
    pub keeper: mpsc::Sender<KeeperRequest>,
    /// Root of the paths of `/files`: `/` outside tests.
    pub files_root: PathBuf,
    /// Overlay network of the guest, whose callers are refused; `None` if it has none.
    pub overlay: Option<Overlay>,
    /// Key and directories of the runtime drive, which authenticate the runner.
    pub runtime: Runtime,
    /// Parts of the guest that are replaced while it runs.
    pub parts: Arc<Parts>,
    /// What people read at a login.
    pub notice: Notice,
    /// Reads the wall clock. Tests pass a fixed time.
    pub now: fn() -> WallTime,
}

/// Serves on `listener` until cancelled. It closes connections beyond a fixed number.
pub async fn serve(listener: TcpListener, served: Arc<Served>, cancel: CancellationToken) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let stream = tokio::select! {
            () = cancel.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => match refusal(&stream, peer.ip(), served.overlay) {
                    Ok(None) => stream,
                    Ok(Some(why)) => {
                        debug!(%peer, ?why, "not listened to");
                        continue;
                    }
                    Err(error) => {
                        warn!(%peer, %error, "caller refused: its addresses cannot be read");
                        continue;
                    }
                },
                Err(error) => {
                    warn!(%error, "accept failed");
                    tokio::task::yield_now().await;
                    continue;
                }
            },
        };
        // Small responses must not wait for the peer's delayed acknowledgement.
        let _ = stream.set_nodelay(true);
        let served = served.clone();
        let cancel = cancel.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let served = served.clone();
                async move { Ok::<_, Infallible>(route(&served, request).await) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                () = cancel.cancelled() => {}
                // A broken connection concerns only its client.
                _ = connection => {}
            }
            drop(place);
        });
    }
}

/// Reason to refuse a caller, by the guest's present addresses.
fn refusal(
    stream: &TcpStream,
    peer: IpAddr,
    overlay: Option<Overlay>,
) -> io::Result<Option<Refusal>> {
    let own: Vec<IpAddr> = getifaddrs()?
        .filter_map(|device| address_of(&device.address?))
        .collect();
    let local = stream.local_addr()?.ip();
    Ok(callers::refusal(peer, local, &own, overlay))
}

fn address_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|it| it.ip().into());
    v4.or_else(|| address.as_sockaddr_in6().map(|it| it.ip().into()))
}

async fn route(served: &Served, request: Request<Incoming>) -> HttpResponse {
    if !served.runtime.admits(request.headers()) {
        return answer(
            StatusCode::UNAUTHORIZED,
            "only this VM's runner is served: show the key of its directory, guestd.key, as Authorization: Bearer KEY\n",
        );
    }
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    if path.starts_with(protocol::parts::ROUTE) {
        return parts::route::route(&served.parts, request).await;
    }
    if path == protocol::notice::ROUTE {
        return served.notice.route(request).await;
    }
    if let Some(dir) = path.strip_prefix("/files/") {
        if !served.runtime.is_pushed(dir) {
            let text = format!("/{dir} is not a directory that the VM's spec keeps fresh\n");
            return answer(StatusCode::FORBIDDEN, text);
        }
        return match method {
            Method::GET => get_files(served, dir),
            Method::PUT => put_files(served, dir, request).await,
            _ => answer(StatusCode::NOT_FOUND, "no such route\n"),
        };
    }
    match (method, path.as_str()) {
        (Method::GET, "/cpu") => match fresh(served).await {
            Some(state) => answer(
                StatusCode::OK,
                (u64::from(state.cpus_online) * 1000).to_string(),
            ),
            None => answer(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the CPUs cannot be read\n",
            ),
        },
        (Method::PUT, "/cpu") => put_cpu(served, request).await,
        (Method::GET, "/v1/state") => get_state(served, request.uri().query().unwrap_or("")).await,
        _ => answer(StatusCode::NOT_FOUND, "no such route\n"),
    }
}

/// Makes the keeper read the machine now; `None` when that fails.
async fn fresh(served: &Served) -> Option<GuestState> {
    ask(served, None).await.ok()
}

async fn ask(served: &Served, target: Option<u32>) -> Result<GuestState, String> {
    let (reply, answer) = oneshot::channel();
    let sent = served.keeper.send(KeeperRequest { target, reply }).await;
    sent.map_err(|_| "the daemon is ending".to_owned())?;
    let answer = answer
        .await
        .map_err(|_| "the daemon is ending".to_owned())?;
    answer.map_err(|error| {
        let source = std::error::Error::source(&error).map(|s| format!(": {s}"));
        format!("{error}{}", source.unwrap_or_default())
    })
}

async fn body(request: Request<Incoming>) -> Result<Bytes, HttpResponse> {
    match Limited::new(request.into_body(), MAX_BODY_BYTES)
        .collect()
        .await
    {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => Err(answer(
            StatusCode::BAD_REQUEST,
            format!("bad body: {error}\n"),
        )),
    }
}

async fn put_cpu(served: &Served, request: Request<Incoming>) -> HttpResponse {
    let body = match body(request).await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    let milli = std::str::from_utf8(&body)
        .ok()
        .and_then(|text| text.trim().parse::<u32>().ok());
    let Some(milli) = milli else {
        return answer(
            StatusCode::BAD_REQUEST,
            "the body must be decimal milli-CPU, for example 2500\n",
        );
    };
    match ask(served, Some(milli.div_ceil(1000))).await {
        Ok(_) => answer(StatusCode::OK, ""),
        Err(error) => {
            warn!(milli, error, "cpu target not reached");
            answer(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"))
        }
    }
}

async fn get_state(served: &Served, query: &str) -> HttpResponse {
    let number = |name: &str| -> Option<u64> {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs
            .filter(|(key, _)| *key == name)
            .find_map(|(_, value)| value.parse().ok())
    };
    let state = match number("after") {
        None => match fresh(served).await {
            Some(state) => state,
            None => {
                return answer(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "the machine cannot be read\n",
                );
            }
        },
        Some(after) => {
            let wait = Duration::from_millis(number("wait_ms").unwrap_or(0)).min(MAX_WAIT);
            let quiet = Duration::from_millis(number("settle_ms").unwrap_or(0));
            let change = wait_for_change(served.state.clone(), after, quiet);
            // At a change or at the timeout: the newest state is the response.
            let _ = tokio::time::timeout(wait, change).await;
            served.state.borrow().clone()
        }
    };
    json(&state)
}

/// Waits for a generation above `after`. Memory changes in many blocks, and reporting each would
/// keep the guest busy. So all changes but those of online CPUs wait until the state is stable for
/// `quiet`.
async fn wait_for_change(mut states: watch::Receiver<GuestState>, after: u64, quiet: Duration) {
    let (known, online) = {
        let state = states.borrow();
        (state.generation, state.cpus_online)
    };
    // If the keeper is gone the wait fails, and the newest state is the response.
    let _ = states.wait_for(|state| state.generation > after).await;
    if quiet.is_zero() || known > after {
        return;
    }
    let settled = async {
        while states.borrow_and_update().cpus_online == online {
            let Ok(Ok(())) = tokio::time::timeout(quiet, states.changed()).await else {
                return;
            };
        }
    };
    let _ = tokio::time::timeout(MAX_SETTLE, settled).await;
}

fn get_files(served: &Served, dir: &str) -> HttpResponse {
    let files = files::directory(&served.files_root, dir).and_then(|dir| files::read(&dir));
    match files {
        Ok(files) => answer(StatusCode::OK, checksum(&files)),
        Err(error) => answer(StatusCode::BAD_REQUEST, format!("{error}\n")),
    }
}

async fn put_files(served: &Served, dir: &str, request: Request<Incoming>) -> HttpResponse {
    let refuse = |text: String| answer(StatusCode::BAD_REQUEST, format!("{text}\n"));
    let dir = match files::directory(&served.files_root, dir) {
        Ok(dir) => dir,
        Err(error) => return refuse(error.to_string()),
    };
    let body = match body(request).await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    let content = match push::decode(&body) {
        Ok(content) => content,
        Err(error) => return refuse(error.to_string()),
    };
    match files::write(&dir, &content, (served.now)()) {
        Ok(()) => {
            info!(dir = %dir.display(), files = content.len(), "files written");
            answer(StatusCode::OK, "")
        }
        Err(error @ FilesError::Name(_)) => refuse(error.to_string()),
        // A read-only file system is mounted there: a retry would not help.
        Err(error) if error.is_read_only() => answer(StatusCode::CONFLICT, format!("{error}\n")),
        Err(error) => {
            let source = std::error::Error::source(&error).map(|s| format!(": {s}"));
            let text = format!("{error}{}\n", source.unwrap_or_default());
            warn!(error = text, "files not written");
            answer(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
    }
}

#[cfg(test)]
mod tests;
