//! HTTPS server of a folder, with faults by path.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fleet_release::{FetchLimits, Fetcher, ReadError, Repository, Scope, Trust};
use protocol::fleet::ChannelReading;
use reqwest::Url;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, SupportedProtocolVersion};
use test_authority::Authority;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::shop::{Shop, install_provider};

/// What the server does instead of handing out the file.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// Sends bytes until the reader hangs up.
    Endless,
    /// Sends one byte, and nothing more.
    Slow,
    /// Announces the whole body, and closes after half of it.
    Cut,
    /// Answers with a status.
    Status(u16),
    /// Sends this body.
    Body(Vec<u8>),
}

type Faults = Arc<dyn Fn(&str) -> Option<Fault> + Send + Sync>;

pub(crate) struct FileServer {
    port: u16,
    authority: String,
    sent: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Drop for FileServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FileServer {
    pub(crate) async fn start(
        folder: &Path,
        faults: impl Fn(&str) -> Option<Fault> + Send + Sync + 'static,
    ) -> Self {
        Self::with(folder, faults, "localhost", rustls::ALL_VERSIONS).await
    }

    /// A server with a certificate for `name`, which speaks these versions of TLS.
    pub(crate) async fn with(
        folder: &Path,
        faults: impl Fn(&str) -> Option<Fault> + Send + Sync + 'static,
        name: &str,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Self {
        install_provider();
        let authority = Authority::new("test");
        let identity = authority.signs(name);
        let certificate = CertificateDer::from_pem_slice(identity.cert.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
        let config = ServerConfig::builder_with_protocol_versions(versions)
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let sent = Arc::new(AtomicU64::new(0));
        let served = Served {
            folder: folder.to_owned(),
            faults: Arc::new(faults),
            sent: Arc::clone(&sent),
        };
        let task = tokio::spawn(accept(listener, acceptor, served));
        Self {
            port,
            authority: authority.pem,
            sent,
            task,
        }
    }

    pub(crate) fn url(&self) -> Url {
        Url::parse(&format!("https://localhost:{}/", self.port)).unwrap()
    }

    pub(crate) fn fetcher(&self, limits: FetchLimits) -> Fetcher {
        Fetcher::new(limits, &[self.authority.as_bytes()]).unwrap()
    }

    /// Bytes of bodies that were sent.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Opens the repository as a reader of this server.
    pub(crate) async fn open(
        &self,
        shop: &Shop,
        limits: FetchLimits,
    ) -> Result<Repository, ReadError> {
        let trust = Trust::Tuf {
            root: &shop.root(),
            verified: &shop.verified(),
        };
        let fetcher = self.fetcher(limits);
        let scope = Scope::Cluster { allow_dev: false };
        Repository::open(&fetcher, &self.url(), trust, scope).await
    }

    /// Reads the channel `stable`.
    pub(crate) async fn read(
        &self,
        shop: &Shop,
        limits: FetchLimits,
    ) -> Result<ChannelReading, ReadError> {
        self.open(shop, limits).await?.channel("stable").await
    }
}

#[derive(Clone)]
struct Served {
    folder: PathBuf,
    faults: Faults,
    sent: Arc<AtomicU64>,
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, served: Served) {
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, served) = (acceptor.clone(), served.clone());
        tokio::spawn(async move {
            // A reader that hangs up is what some tests want.
            let _ = connection(stream, acceptor, &served).await;
        });
    }
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, served: &Served) -> io::Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    let path = request_path(&mut stream).await?;
    served.respond(&mut stream, &path).await?;
    stream.shutdown().await
}

/// Reads a request, and returns its path without the leading slash.
async fn request_path(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head);
    let path = head.split(' ').nth(1).unwrap_or_default();
    Ok(path.trim_start_matches('/').to_owned())
}

impl Served {
    async fn respond(&self, stream: &mut (impl AsyncWrite + Unpin), path: &str) -> io::Result<()> {
        let file = std::fs::read(self.folder.join(path));
        match ((self.faults)(path), file) {
            (Some(Fault::Endless), _) => {
                stream.write_all(&head(200, None)).await?;
                let piece = [b' '; 64 << 10];
                loop {
                    stream.write_all(&piece).await?;
                    self.sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
                }
            }
            (Some(Fault::Slow), _) => {
                stream.write_all(&head(200, Some(100))).await?;
                stream.write_all(b"{").await?;
                stream.flush().await?;
                tokio::time::sleep(Duration::from_secs(3600)).await;
                Ok(())
            }
            (Some(Fault::Cut), Ok(content)) => {
                stream.write_all(&head(200, Some(content.len()))).await?;
                stream.write_all(&content[..content.len() / 2]).await
            }
            (Some(Fault::Status(status)), _) => stream.write_all(&head(status, Some(0))).await,
            (Some(Fault::Body(content)), _) | (None, Ok(content)) => {
                stream.write_all(&head(200, Some(content.len()))).await?;
                stream.write_all(&content).await
            }
            (_, Err(_)) => stream.write_all(&head(404, Some(0))).await,
        }
    }
}

fn head(status: u16, length: Option<usize>) -> Vec<u8> {
    let length = length.map_or_else(String::new, |it| format!("Content-Length: {it}\r\n"));
    format!("HTTP/1.1 {status} x\r\nConnection: close\r\n{length}\r\n").into_bytes()
}
