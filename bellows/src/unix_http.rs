//! HTTP over a unix socket: the admin API of `bellows up` and the control link of a runner.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use daemon_kit::http_client::refusal;
use daemon_kit::unix_socket::connect;
use hyper::http::{Method, Response};
use serde_json::Value;

use crate::http;

/// Longest time of one exchange.
const TIMEOUT: Duration = Duration::from_secs(20);

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
    let response = tokio::time::timeout(TIMEOUT, talk)
        .await
        .map_err(|_| broken(format!("no answer within {} s", TIMEOUT.as_secs())))?
        .map_err(|error| broken(daemon_kit::chain(&error)))?;
    read_answer(&path, &response)
}

fn read_answer(path: &str, response: &Response<Bytes>) -> Result<Value, UnixHttpError> {
    let bytes = response.body();
    if !response.status().is_success() {
        return Err(UnixHttpError::Refused {
            path: path.to_owned(),
            status: response.status().as_u16(),
            text: refusal(bytes),
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
    use axum::http::StatusCode;
    use daemon_kit::unix_socket::ShortPath;

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
