//! The files of the journal over HTTP, for `kubectl bellows journal fetch`.
//!
//! | page | content |
//! |---|---|
//! | `/debug/journal` | the list of files ([`JournalFiles`](served::JournalFiles)) |
//! | `/debug/journal/PATH` | one of them |
//!
//! The admin server has them for the agent's own pod, as it has its state.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use daemon_kit::journal::served;
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;
use tokio_util::io::ReaderStream;

/// Routes of the journal in `folder`.
pub(super) fn routes(folder: PathBuf) -> Router {
    Router::new()
        .route("/debug/journal", get(list))
        .route("/debug/journal/{*path}", get(file))
        .with_state(Arc::new(folder))
}

async fn list(State(folder): State<Arc<PathBuf>>) -> Response {
    let listed = tokio::task::spawn_blocking(move || served::list(&folder)).await;
    match listed.map_err(std::io::Error::other).flatten() {
        Ok(files) => axum::Json(files).into_response(),
        Err(error) => unreadable(&error),
    }
}

async fn file(State(folder): State<Arc<PathBuf>>, Path(path): Path<String>) -> Response {
    if !served::is_name(&path) {
        return (StatusCode::NOT_FOUND, "a journal has no such file\n").into_response();
    }
    match open(&folder.join(path)).await {
        Ok((file, bytes)) => {
            // The newest segment grows meanwhile.
            let body = Body::from_stream(ReaderStream::new(file.take(bytes)));
            ([(header::CONTENT_LENGTH, bytes)], body).into_response()
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // The writer has packed or removed it.
            (StatusCode::NOT_FOUND, "the file is gone\n").into_response()
        }
        Err(error) => unreadable(&error),
    }
}

async fn open(path: &std::path::Path) -> std::io::Result<(File, u64)> {
    let file = File::open(path).await?;
    let bytes = file.metadata().await?.len();
    Ok((file, bytes))
}

fn unreadable(error: &std::io::Error) -> Response {
    let text = format!("the journal cannot be read: {error}\n");
    (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
}

#[cfg(test)]
mod tests {
    use axum::http::Request;
    use daemon_kit::admin::Admin;
    use daemon_kit::bearer::Expected;
    use daemon_kit::connections::ServerCounters;
    use daemon_kit::connections::http::Addresses;
    use http_body_util::BodyExt as _;
    use tower_service::Service as _;

    use super::*;

    async fn ask(routes: &mut Router, path: &str, peer: &str) -> (StatusCode, String) {
        let addresses = Addresses {
            peer: peer.parse().expect("an address"),
            local: "10.0.0.1".parse().expect("an address"),
        };
        let mut request = Request::get(path).body(Body::empty()).expect("a request");
        request.extensions_mut().insert(addresses);
        let answer = routes.call(request).await.expect("an answer");
        let status = answer.status();
        let body = answer.into_body().collect().await.expect("a body");
        let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        (status, text)
    }

    #[tokio::test]
    async fn files_of_the_journal_are_served_to_the_own_pod_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let journal = folder.path().join("journal");
        std::fs::create_dir_all(journal.join("agent")).expect("made");
        std::fs::write(journal.join("agent/0000000001.bj"), "lines").expect("written");
        std::fs::write(folder.path().join("secret"), "x").expect("written");
        let counters = ServerCounters::unregistered();
        let admin = Admin::new(Arc::default(), counters).debug(routes(journal));
        let mut routes = admin.router();
        let (status, list) = ask(&mut routes, "/debug/journal", "127.0.0.1").await;
        assert!(
            status.is_success() && list.contains(r#""path":"agent/0000000001.bj","bytes":5"#),
            "{list}"
        );
        let path = "/debug/journal/agent/0000000001.bj";
        let whole = ask(&mut routes, path, "127.0.0.1").await;
        assert_eq!(whole, (StatusCode::OK, "lines".into()));
        for path in [path, "/debug/journal"] {
            let (status, _) = ask(&mut routes, path, "10.0.0.2").await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{path}");
        }
        for path in [
            "agent/0000000002.bj",
            "agent/lock",
            "../secret",
            "agent/../../secret",
            "agent%2F..%2F..%2Fsecret",
        ] {
            let path = format!("/debug/journal/{path}");
            let (status, text) = ask(&mut routes, &path, "127.0.0.1").await;
            assert_eq!(status, StatusCode::NOT_FOUND, "{path}: {text}");
        }
    }

    /// Every local user of one machine reaches its loopback.
    #[tokio::test]
    async fn files_of_the_journal_are_not_served_behind_a_token() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = "/debug/journal/agent/0000000001.bj";
        std::fs::create_dir(folder.path().join("agent")).expect("made");
        std::fs::write(folder.path().join("agent/0000000001.bj"), "lines").expect("written");
        let token = daemon_kit::bearer::random();
        let mut routes = Admin::new(Arc::default(), ServerCounters::unregistered())
            .debug(routes(folder.path().to_owned()))
            .behind_token(Some(Expected::new(&token)))
            .router();
        for path in [path, "/debug/journal"] {
            let (status, text) = ask(&mut routes, path, "127.0.0.1").await;
            assert!(
                status.is_client_error() && !text.contains("lines"),
                "{text}"
            );
        }
    }
}
