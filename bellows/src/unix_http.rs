//! HTTP over a unix socket: the admin API of `bellows up` and the control link of a runner.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::http::{Method, StatusCode};
use serde_json::Value;
use tokio::net::UnixStream;

use crate::http;

/// Longest time of one exchange.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Longer paths of sockets are opened through their directory. The kernel accepts at most 107
/// bytes.
const SOCKET_PATH_LIMIT_BYTES: usize = 100;

/// A path of a socket that the kernel accepts. It is valid while this value lives.
#[derive(Debug)]
pub(crate) struct ShortPath {
    path: PathBuf,
    _dir: Option<File>,
}

impl ShortPath {
    /// # Errors
    /// When the socket's directory cannot be opened.
    pub(crate) fn new(socket: &Path) -> std::io::Result<Self> {
        match (socket.parent(), socket.file_name()) {
            (Some(parent), Some(name)) if socket.as_os_str().len() > SOCKET_PATH_LIMIT_BYTES => {
                let dir = File::open(parent)?;
                let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name);
                Ok(Self {
                    path,
                    _dir: Some(dir),
                })
            }
            _ => Ok(Self {
                path: socket.to_owned(),
                _dir: None,
            }),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Connects to a unix socket. The path may have any length.
pub(crate) async fn connect(socket: &Path) -> std::io::Result<UnixStream> {
    let short = ShortPath::new(socket)?;
    UnixStream::connect(short.path()).await
}

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnixHttpError {
    /// No process listens on the socket.
    #[error("{path} does not answer")]
    Connect {
        path: String,
        #[source]
        source: std::io::Error,
    },
    /// The connection failed during the exchange.
    #[error("{path}: the exchange broke off: {why}")]
    Broken { path: String, why: String },
    /// The server refused the request.
    #[error("{path} answered {status}: {text}")]
    Refused {
        path: String,
        status: u16,
        text: String,
    },
}

/// Sends one request and reads the response. An empty response is `null`.
pub(crate) async fn exchange(
    socket: &Path,
    method: Method,
    route: &str,
    body: Option<&Value>,
) -> Result<Value, UnixHttpError> {
    let path = socket.display().to_string();
    let broken = |why: String| UnixHttpError::Broken {
        path: path.clone(),
        why,
    };
    let stream = connect(socket)
        .await
        .map_err(|source| UnixHttpError::Connect {
            path: path.clone(),
            source,
        })?;
    let talk = http::exchange(stream, method, route, body);
    let (status, bytes) = tokio::time::timeout(TIMEOUT, talk)
        .await
        .map_err(|_| broken(format!("no answer within {} s", TIMEOUT.as_secs())))?
        .map_err(|error| broken(daemon_kit::chain(&error)))?;
    read_answer(&path, status, &bytes)
}

fn read_answer(path: &str, status: StatusCode, bytes: &[u8]) -> Result<Value, UnixHttpError> {
    if !status.is_success() {
        let text = String::from_utf8_lossy(bytes)
            .trim()
            .chars()
            .take(500)
            .collect();
        return Err(UnixHttpError::Refused {
            path: path.to_owned(),
            status: status.as_u16(),
            text,
        });
    }
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(bytes).map_err(|error| UnixHttpError::Broken {
        path: path.to_owned(),
        why: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn refusal_differs_from_broken_exchange() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let socket = deep.join("s");
        let missing = exchange(&socket, Method::GET, "/x", None)
            .await
            .unwrap_err();
        assert!(
            matches!(missing, UnixHttpError::Connect { .. }),
            "{missing}"
        );
        let listener =
            tokio::net::UnixListener::bind(ShortPath::new(&socket).unwrap().path()).unwrap();
        let router = axum::Router::new()
            .route(
                "/echo",
                axum::routing::post(async |body: axum::Json<Value>| body),
            )
            .route("/empty", axum::routing::get(async || StatusCode::ACCEPTED));
        let server = tokio::spawn(async move { axum::serve(listener, router).await });
        let value = serde_json::json!({"a": [1, 2]});
        assert_eq!(
            exchange(&socket, Method::POST, "/echo", Some(&value))
                .await
                .unwrap(),
            value
        );
        assert_eq!(
            exchange(&socket, Method::GET, "/empty", None)
                .await
                .unwrap(),
            Value::Null
        );
        let refused = exchange(&socket, Method::GET, "/none", None)
            .await
            .unwrap_err();
        assert!(
            matches!(refused, UnixHttpError::Refused { status: 404, .. }),
            "{refused}"
        );
        server.abort();
    }
}
