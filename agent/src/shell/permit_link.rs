//! Connections to the scheduler: plain, or TLS with files that may be replaced at any time.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use daemon_kit::reload::{Files, Reloaded};
use daemon_kit::tls::{ClientFiles, IdentityFiles, TlsError};
use http_body_util::Full;
use hyper::Uri;
use hyper::body::Bytes;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;
use tower_service::Service;

use super::config::SchedulerTls;

/// Idle connections kept per scheduler. VMs that started together send requests together.
const IDLE_CONNECTIONS: usize = 16;
/// Time after which an idle connection is closed.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// An HTTP client with its idle connections.
pub(super) type Http = Client<Connector, Full<Bytes>>;

/// Source of the HTTP client for the next request.
pub(super) enum PermitLink {
    Plain(Http),
    /// Client with TLS, made again when a file changes.
    Tls(Box<Mutex<Reloaded<TlsLink>>>),
}

pub(super) struct TlsLink {
    files: ClientFiles,
    name: Option<ServerName<'static>>,
}

impl PermitLink {
    pub(super) fn new(tls: Option<&SchedulerTls>) -> Self {
        let Some(tls) = tls else {
            return Self::Plain(http(None));
        };
        let identity = tls.identity.as_ref().map(|own| IdentityFiles {
            cert: own.cert_file.clone(),
            key: own.key_file.clone(),
        });
        let link = TlsLink {
            files: ClientFiles {
                authority: tls.ca_file.clone(),
                identity,
            },
            name: tls.server_name.as_ref().map(|name| name.0.clone()),
        };
        Self::Tls(Box::new(Mutex::new(Reloaded::new(link))))
    }

    /// Client for the current files. Changed files get a new client with new connections. If the
    /// files cannot be used, the last client stays.
    ///
    /// # Errors
    /// [`TlsError`] when the files cannot be used and there is no last client.
    pub(super) fn http(&self) -> Result<Http, TlsError> {
        match self {
            Self::Plain(http) => Ok(http.clone()),
            Self::Tls(link) => {
                let mut link = link.lock().unwrap_or_else(PoisonError::into_inner);
                link.renew().map(|(http, _)| http)
            }
        }
    }
}

impl Files for TlsLink {
    const WHAT: &'static str = "files for TLS with the scheduler";
    type Content = Http;
    type Error = TlsError;

    fn paths(&self) -> Vec<&Path> {
        self.files.paths()
    }

    fn read(&self) -> Result<Http, TlsError> {
        Ok(http(Some((self.files.read()?, self.name.clone()))))
    }
}

type Tls = (Arc<ClientConfig>, Option<ServerName<'static>>);

fn http(tls: Option<Tls>) -> Http {
    Client::builder(TokioExecutor::new())
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .pool_idle_timeout(IDLE_LIMIT)
        .build(Connector { tls })
}

#[derive(Clone)]
pub(super) struct Connector {
    tls: Option<Tls>,
}

impl Service<Uri> for Connector {
    type Response = HttpStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<HttpStream>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let tls = self.tls.clone();
        Box::pin(async move { connect(&uri, tls).await })
    }
}

async fn connect(uri: &Uri, tls: Option<Tls>) -> io::Result<HttpStream> {
    let bad = || io::Error::from(io::ErrorKind::InvalidInput);
    let host = uri.host().ok_or_else(bad)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = uri.port_u16().ok_or_else(bad)?;
    let stream = transport::dial_tcp((host, port)).await?;
    let Some((config, name)) = tls else {
        return Ok(HttpStream(TokioIo::new(Box::new(stream))));
    };
    let name = match name {
        Some(name) => name,
        None => ServerName::try_from(host.to_owned()).map_err(|_| bad())?,
    };
    let stream = TlsConnector::from(config).connect(name, stream).await?;
    Ok(HttpStream(TokioIo::new(Box::new(stream))))
}

/// A connection with or without TLS.
pub(super) struct HttpStream(TokioIo<transport::Stream>);

impl Connection for HttpStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for HttpStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl Write for HttpStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
