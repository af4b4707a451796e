//! Reads files of a repository: by https with TLS 1.2 or newer, or of this machine.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use protocol::parts::PROGRAM_BYTES;
use reqwest::{Certificate, Client, StatusCode, Url, redirect, tls};
use tokio::io::AsyncReadExt as _;
use tough::{Transport, TransportError, TransportErrorKind, TransportStream};

use crate::layout::METADATA;

/// Redirects that are followed. Each leads to https again.
const MAX_REDIRECTS: usize = 3;
/// Longest wait for a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Bounds of each file.
#[derive(Debug, Clone, Copy)]
pub struct FetchLimits {
    /// Most bytes of a metadata file.
    pub metadata_bytes: u64,
    /// Most bytes of every other file.
    pub target_bytes: u64,
    /// Longest time for a metadata file, a text or a manifest.
    pub within: Duration,
    /// Longest time for a program.
    pub program_within: Duration,
}

impl Default for FetchLimits {
    fn default() -> Self {
        Self {
            metadata_bytes: 4 << 20,
            target_bytes: PROGRAM_BYTES,
            within: Duration::from_secs(30),
            program_within: Duration::from_secs(600),
        }
    }
}

/// Why a file was not read.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("{0} is not there")]
    NotFound(Url),
    #[error("{url} has more than {most} bytes")]
    TooLarge { url: Url, most: u64 },
    #[error("failed to read {url}: {reason}")]
    Failed { url: Url, reason: String },
    #[error("{0} must begin with https:, or with file: on one machine")]
    Scheme(Url),
}

/// Reads files within bounds.
#[derive(Debug, Clone)]
pub struct Fetcher {
    client: Client,
    pub(crate) limits: FetchLimits,
}

impl Fetcher {
    /// A fetcher that trusts the machine's certificates, and these authorities in PEM beside them.
    ///
    /// # Errors
    /// The certificates cannot be read.
    pub fn new(limits: FetchLimits, authorities: &[&[u8]]) -> Result<Self, String> {
        let text = |error: reqwest::Error| format!("failed to prepare https: {error}");
        let certificates = authorities.iter().map(|pem| Certificate::from_pem(pem));
        let certificates: Vec<_> = certificates.collect::<Result<_, _>>().map_err(text)?;
        let builder = Client::builder()
            .https_only(true)
            .tls_version_min(tls::Version::TLS_1_2)
            .redirect(redirect::Policy::limited(MAX_REDIRECTS))
            .connect_timeout(CONNECT_WITHIN)
            .tls_certs_merge(certificates);
        let client = builder.build().map_err(text)?;
        Ok(Self { client, limits })
    }

    /// Reads a file of at most so many bytes.
    pub(crate) async fn read(
        &self,
        url: &Url,
        most: u64,
        within: Duration,
    ) -> Result<Bytes, FetchError> {
        let reading = async {
            match url.scheme() {
                "https" => self.download(url, most).await,
                "file" => read_file(url, most).await,
                _ => Err(FetchError::Scheme(url.clone())),
            }
        };
        let read = tokio::time::timeout(within, reading).await;
        read.unwrap_or_else(|_| Err(failed(url, &format!("no end within {within:?}"))))
    }

    async fn download(&self, url: &Url, most: u64) -> Result<Bytes, FetchError> {
        let of_client = |error: reqwest::Error| failed(url, &causes(&error.without_url()));
        let mut response = self
            .client
            .get(url.clone())
            .send()
            .await
            .map_err(of_client)?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND | StatusCode::FORBIDDEN | StatusCode::GONE => {
                return Err(FetchError::NotFound(url.clone()));
            }
            status => return Err(failed(url, &format!("the server answered {status}"))),
        }
        let mut content = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(of_client)? {
            content.extend_from_slice(&piece);
            bounded(url, content.len(), most)?;
        }
        Ok(content.into())
    }
}

async fn read_file(url: &Url, most: u64) -> Result<Bytes, FetchError> {
    let of_file = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => FetchError::NotFound(url.clone()),
        _ => failed(url, &error.to_string()),
    };
    let path = url.to_file_path();
    let path = path.map_err(|()| failed(url, "it names another machine"))?;
    // A pipe would hold the open call.
    if !tokio::fs::metadata(&path).await.map_err(of_file)?.is_file() {
        return Err(failed(url, "it is no file"));
    }
    let file = tokio::fs::File::open(&path).await.map_err(of_file)?;
    let mut content = Vec::new();
    let mut bounded_file = file.take(most.saturating_add(1));
    bounded_file
        .read_to_end(&mut content)
        .await
        .map_err(of_file)?;
    bounded(url, content.len(), most)?;
    Ok(content.into())
}

fn bounded(url: &Url, length: usize, most: u64) -> Result<(), FetchError> {
    if u64::try_from(length).is_ok_and(|length| length <= most) {
        return Ok(());
    }
    Err(FetchError::TooLarge {
        url: url.clone(),
        most,
    })
}

fn failed(url: &Url, reason: &str) -> FetchError {
    FetchError::Failed {
        url: url.clone(),
        reason: reason.to_owned(),
    }
}

fn causes(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", causes(cause)),
        None => error.to_string(),
    }
}

#[async_trait]
impl Transport for Fetcher {
    async fn fetch(&self, url: Url) -> Result<TransportStream, TransportError> {
        let limits = &self.limits;
        let folder = url.path_segments().and_then(|mut all| all.nth_back(1));
        let (most, within) = if folder == Some(METADATA) {
            (limits.metadata_bytes, limits.within)
        } else {
            (limits.target_bytes, limits.program_within)
        };
        let content = self.read(&url, most, within).await.map_err(|error| {
            let kind = match error {
                FetchError::NotFound(_) => TransportErrorKind::FileNotFound,
                FetchError::Scheme(_) => TransportErrorKind::UnsupportedUrlScheme,
                FetchError::TooLarge { .. } | FetchError::Failed { .. } => {
                    TransportErrorKind::Other
                }
            };
            TransportError::new_with_cause(kind, url, error)
        });
        // In the stream, because the library takes a failed call for the end of the roots.
        Ok(Box::pin(futures::stream::iter([content])))
    }
}
