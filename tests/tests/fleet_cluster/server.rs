//! HTTPS server of a folder of releases, on the network of a cluster's nodes.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use test_authority::Authority;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// A server that runs until the test ends.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    /// Certificate of its authority, PEM.
    pub(super) authority: String,
}

impl Server {
    pub(super) fn start(listener: std::net::TcpListener, folder: PathBuf) -> Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let authority = Authority::new("releases");
        let name: IpAddr = address.ip();
        let identity = authority.signs(name);
        let pair = (identity.cert.as_bytes(), identity.key.as_bytes());
        let config = daemon_kit::tls::showing(pair.0, pair.1).context("a pair")?;
        let acceptor = TlsAcceptor::from(config);
        let listener = TcpListener::from_std(listener)?;
        tokio::spawn(accept(listener, acceptor, Arc::new(folder)));
        Ok(Self {
            address,
            authority: authority.pem,
        })
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, folder: Arc<PathBuf>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, folder) = (acceptor.clone(), Arc::clone(&folder));
        tokio::spawn(async move {
            // A client that breaks off tries again.
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            let service = service_fn(move |request| respond(request, Arc::clone(&folder)));
            let http = hyper::server::conn::http1::Builder::new();
            drop(http.serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

async fn respond(
    request: Request<Incoming>,
    folder: Arc<PathBuf>,
) -> Result<Response<Full<Bytes>>, hyper::http::Error> {
    let file = folder.join(request.uri().path().trim_start_matches('/'));
    let read = tokio::fs::read(file).await;
    let (status, body) = match read {
        Ok(content) => (StatusCode::OK, content),
        Err(_) => (StatusCode::NOT_FOUND, Vec::new()),
    };
    Response::builder()
        .status(status)
        .body(Full::new(body.into()))
}
