//! The control socket: root asks for the state of this process and has it execute another program.
//!
//! The socket has mode 0600, and the kernel names the user of each peer. A peer other than root is
//! refused, also the monitor's own user. A program that runs answers nothing more: the connection
//! of a successful order ends without an answer.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use protocol::parts::PROGRAM_BYTES;
use protocol::parts::control::{EXEC, Exec, PartSelf, SELF};
use protocol::release::RELEASE;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::inbox::{ExecOrder, ExecRefusal, Inbox};
use super::process::{self, ThisProcess};

/// Longest body of an order, bytes.
pub const BODY_LIMIT_BYTES: usize = 8 << 10;
/// Connections at once.
const CONNECTIONS: usize = 4;
/// Time of one connection, with the reading of the program.
const LIMIT: Duration = Duration::from_secs(20);
/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Binds the socket, mode 0600, in the place of one that no process listens at.
///
/// # Errors
/// The path is another file, a process listens there, or the folder cannot be written.
pub fn bind(path: &Path) -> io::Result<StdListener> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            let rule =
                "a file that is no socket is there: remove it, or give --control another path";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, rule));
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        _ => {}
    }
    // A name of its own until the mode is right.
    let draft = draft_of(path);
    let _ = fs::remove_file(&draft);
    let listener = StdListener::bind(&draft)?;
    fs::set_permissions(&draft, Permissions::from_mode(0o600))?;
    fs::rename(&draft, path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Name of a file beside `path` that is to take its place.
pub(super) fn draft_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// What the answers are made from.
#[derive(Debug, Clone)]
pub struct Control {
    /// Where orders and questions go.
    pub inbox: mpsc::Sender<Inbox>,
    /// Facts about this process.
    pub process: ThisProcess,
}

/// Serves peers until cancelled.
pub async fn serve(listener: UnixListener, control: Control, cancel: CancellationToken) {
    let slots = std::sync::Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            () = cancel.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let Ok(slot) = std::sync::Arc::clone(&slots).try_acquire_owned() else {
            continue;
        };
        let (control, cancel) = (control.clone(), cancel.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = cancel.cancelled() => {}
                // A peer that is too slow is closed.
                _ = timeout(LIMIT, control.serve_peer(stream)) => {}
            }
            drop(slot);
        });
    }
}

impl Control {
    async fn serve_peer(&self, stream: UnixStream) {
        let user = stream.peer_cred().map(|peer| peer.uid()).ok();
        let service = hyper::service::service_fn(move |request| async move {
            let response = match user {
                Some(0) => self.respond(request).await,
                _ => text(
                    StatusCode::FORBIDDEN,
                    "only root gives orders here: ask as root",
                ),
            };
            Ok::<_, std::convert::Infallible>(response)
        });
        let served = hyper::server::conn::http1::Builder::new()
            .keep_alive(false)
            .max_buf_size(8 * 1024)
            .serve_connection(TokioIo::new(stream), service)
            .await;
        if let Err(error) = served {
            tracing::debug!(%error, "bad request on the control socket");
        }
    }

    async fn respond(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        match (request.method(), request.uri().path()) {
            (&Method::GET, SELF) => self.describe().await,
            (&Method::POST, EXEC) => match self.exec(request).await {
                Err((status, rule)) => text(status, rule),
                Ok(refusal) => {
                    let status = match refusal {
                        ExecRefusal::Busy(_) => StatusCode::CONFLICT,
                        ExecRefusal::Failed { .. } => StatusCode::INTERNAL_SERVER_ERROR,
                    };
                    text(status, refusal.to_string())
                }
            },
            (_, SELF | EXEC) => text(
                StatusCode::METHOD_NOT_ALLOWED,
                format!("use GET {SELF} or POST {EXEC}"),
            ),
            _ => text(
                StatusCode::NOT_FOUND,
                format!("use GET {SELF} or POST {EXEC}"),
            ),
        }
    }

    async fn describe(&self) -> Response<Full<Bytes>> {
        let (to, from) = oneshot::channel();
        // A closed inbox means that the process is ending.
        let asked = self.inbox.send(Inbox::Dump(to)).await;
        let dump = match asked {
            Ok(()) => from.await.ok(),
            Err(_) => None,
        };
        let answer = PartSelf {
            version: RELEASE.to_owned(),
            sha256: self.process.sha256().await,
            pid: std::process::id(),
            execs: self.process.execs(),
            agent_connected: dump.is_some_and(|dump| dump.connection.is_some()),
            resident_bytes: process::resident_bytes().unwrap_or_default(),
        };
        let body = serde_json::to_vec(&answer).expect("plain JSON");
        response(StatusCode::OK, JSON, body)
    }

    /// Has the program executed. Returns only a refusal: from the owner, or as status and rule.
    async fn exec(&self, request: Request<Incoming>) -> Result<ExecRefusal, (StatusCode, String)> {
        let body = Limited::new(request.into_body(), BODY_LIMIT_BYTES);
        let body = body.collect().await.map_err(|_| {
            let rule = format!("an order has at most {BODY_LIMIT_BYTES} bytes");
            (StatusCode::PAYLOAD_TOO_LARGE, rule)
        })?;
        let order = read_order(&body.to_bytes()).map_err(|rule| (StatusCode::BAD_REQUEST, rule))?;
        let program = PathBuf::from(&order.path);
        let checked = tokio::task::spawn_blocking(move || check_program(&order)).await;
        let checked = checked.unwrap_or_else(|_| Err("the check has ended early".to_owned()));
        checked.map_err(|rule| (StatusCode::UNPROCESSABLE_ENTITY, rule))?;
        let (refused, refusal) = oneshot::channel();
        let order = ExecOrder { program, refused };
        // A closed inbox means that the process is ending.
        let _ = self.inbox.send(Inbox::Exec(order)).await;
        let ending = (
            StatusCode::SERVICE_UNAVAILABLE,
            "the monitor is ending: ask the next one".to_owned(),
        );
        refusal.await.map_err(|_| ending)
    }
}

/// An order with a sound path and digest.
///
/// # Errors
/// A sentence that names the member, the rule and the fix.
pub fn read_order(body: &[u8]) -> Result<Exec, String> {
    let order: Exec = serde_json::from_slice(body)
        .map_err(|error| format!(r#"{error}: send {{"path":"/…","sha256":"…"}}"#))?;
    if !Path::new(&order.path).is_absolute() || order.path.contains('\0') {
        return Err("path is not absolute: give the whole path of the program".to_owned());
    }
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if order.sha256.len() != 64 || !order.sha256.bytes().all(is_hex) {
        return Err(
            "sha256 is not 64 lower-case hex digits: send what sha256sum prints".to_owned(),
        );
    }
    Ok(order)
}

/// Compares the program's file with the order.
fn check_program(order: &Exec) -> Result<(), String> {
    let path = &order.path;
    let failed = |error: io::Error| format!("failed to read {path}: {error}");
    // Before it is opened: opening a named pipe would wait for its writer.
    let found = fs::metadata(path).map_err(failed)?;
    if !found.is_file() || found.len() > PROGRAM_BYTES {
        return Err(format!(
            "{path} is no file of at most {PROGRAM_BYTES} bytes: name a program"
        ));
    }
    let sha256 = File::open(path).and_then(process::digest).map_err(failed)?;
    if sha256 != order.sha256 {
        return Err(format!(
            "{path} has the SHA-256 {sha256}, not the ordered one: bring the program again"
        ));
    }
    Ok(())
}

fn text(status: StatusCode, rule: impl Into<String>) -> Response<Full<Bytes>> {
    response(status, TEXT, format!("{}\n", rule.into()))
}

fn response(
    status: StatusCode,
    kind: HeaderValue,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
