//! Receivers of events: an HTTP endpoint, an S3 bucket, an Azure blob container.
//!
//! A batch has the same name at each attempt. An object store therefore overwrites the object of an
//! earlier attempt, and an HTTP receiver finds the same trace id. Source:
//! docs/compatibility/agent.md §4.6, §4.7.

use std::future::Future;
use std::io::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _, RetryConfig};

use super::clients::{AzureConfig, Kind, ReceiverConfig, S3Config};

/// Path appended to the configured URL.
const USAGE_EVENTS: &str = "/usage_events";
/// Host suffix of Azure's own storage accounts. The label before it names the account.
const AZURE_HOST: &str = ".blob.core.windows.net";
/// Time limit of connecting.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Why a receiver cannot be used as configured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiverError {
    #[error("could not make an HTTP client")]
    Client(#[source] reqwest::Error),
    /// The configuration or the credentials in the environment are incomplete.
    #[error("could not set up the object store")]
    Store(#[source] object_store::Error),
}

/// Why a batch counts as not received.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// No response, or an incomplete one.
    #[error("could not send the events")]
    Request(#[source] reqwest::Error),
    /// A response other than 200.
    #[error("the receiver answered with status {0}")]
    Status(u16),
    #[error("could not write the object")]
    Store {
        /// Label of the error counter.
        cause: &'static str,
        #[source]
        source: object_store::Error,
    },
    /// The name is not valid for an object.
    #[error("{0:?} is no name of an object")]
    Name(String),
    #[error("could not pack the events")]
    Pack(#[source] std::io::Error),
    #[error("the receiver did not answer in time")]
    TimedOut,
}

impl SendError {
    /// The `cause` label.
    pub(crate) fn cause(&self) -> String {
        match self {
            Self::Status(code) => format!("HTTP code {code}"),
            Self::Store { cause, .. } => (*cause).to_owned(),
            Self::Request(error) => root(error),
            other => other.to_string(),
        }
    }
}

/// Message of the innermost error of a chain.
fn root(error: &dyn std::error::Error) -> String {
    let mut root = error;
    while let Some(source) = root.source() {
        root = source;
    }
    root.to_string()
}

#[derive(Debug, Clone)]
pub(crate) enum Receiver {
    Http {
        client: reqwest::Client,
        url: String,
    },
    Store {
        store: Arc<dyn ObjectStore>,
        cause: &'static str,
    },
}

impl Receiver {
    /// Makes a receiver without connecting to it.
    ///
    /// # Errors
    /// [`ReceiverError`].
    pub(crate) fn new(config: &ReceiverConfig) -> Result<Self, ReceiverError> {
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_LIMIT)
            .timeout(config.pace.timeout())
            .build()
            .map_err(ReceiverError::Client)?;
        match &config.kind {
            Kind::Http(http) => Ok(Self::Http {
                client,
                url: format!("{}{USAGE_EVENTS}", http.url.trim_end_matches('/')),
            }),
            Kind::S3(config) => Ok(Self::Store {
                store: s3(config, client).map_err(ReceiverError::Store)?,
                cause: "S3 error",
            }),
            Kind::Azure(config) => Ok(Self::Store {
                store: Arc::new(
                    azure(config, client)
                        .build()
                        .map_err(ReceiverError::Store)?,
                ),
                cause: "Azure Blob error",
            }),
        }
    }

    /// Sends a batch once.
    ///
    /// # Errors
    /// [`SendError`]; the receiver may have taken the batch all the same.
    pub(crate) async fn send(&self, name: &str, events: &[String]) -> Result<(), SendError> {
        match self {
            Self::Http { client, url } => {
                let request = client
                    .post(url)
                    .header("content-type", "application/json")
                    .header("x-trace-id", name)
                    .body(array(events));
                let response = request.send().await.map_err(SendError::Request)?;
                match response.status().as_u16() {
                    200 => Ok(()),
                    code => Err(SendError::Status(code)),
                }
            }
            Self::Store { store, cause } => {
                let path = Path::parse(name).map_err(|_| SendError::Name(name.to_owned()))?;
                let packed = packed(events).map_err(SendError::Pack)?;
                match store.put(&path, packed.into()).await {
                    Ok(_) => Ok(()),
                    Err(source) => Err(SendError::Store { cause, source }),
                }
            }
        }
    }
}

/// `{"events":[…]}`, without spaces.
fn array(events: &[String]) -> String {
    format!("{{\"events\":[{}]}}", events.join(","))
}

/// Gzip of one event per line.
fn packed(events: &[String]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    for event in events {
        encoder.write_all(event.as_bytes())?;
        encoder.write_all(b"\n")?;
    }
    encoder.finish()
}

/// The store makes one attempt; `Batches` decides when the next one is due.
fn no_retry() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        ..RetryConfig::default()
    }
}

fn s3(config: &S3Config, client: reqwest::Client) -> object_store::Result<Arc<dyn ObjectStore>> {
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(&config.bucket)
        .with_region(&config.region)
        .with_virtual_hosted_style_request(false)
        .with_retry(no_retry())
        .with_http_connector(Connector(client));
    if let Some(endpoint) = config.endpoint.as_deref().filter(|url| !url.is_empty()) {
        builder = builder
            .with_endpoint(endpoint.trim_end_matches('/'))
            .with_allow_http(true);
    }
    Ok(Arc::new(builder.build()?))
}

fn azure(config: &AzureConfig, client: reqwest::Client) -> MicrosoftAzureBuilder {
    let endpoint = config.endpoint.trim_end_matches('/');
    let mut builder = MicrosoftAzureBuilder::from_env()
        .with_container_name(&config.container)
        .with_endpoint(endpoint.to_owned())
        .with_allow_http(true)
        .with_retry(no_retry())
        .with_http_connector(Connector(client));
    // Other hosts, such as emulators, have their account in the environment.
    let host = endpoint.split("://").nth(1).unwrap_or(endpoint);
    if let Some((account, "")) = host.split_once(AZURE_HOST) {
        builder = builder.with_account(account);
    }
    builder
}

/// Makes the object stores use the workspace's `reqwest` client.
#[derive(Debug, Clone)]
struct Connector(reqwest::Client);

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

type ResponseFuture<'a> =
    Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for Connector {
    fn call<'life0, 'async_trait>(
        &'life0 self,
        request: HttpRequest,
    ) -> ResponseFuture<'async_trait>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let url = parts
                .uri
                .to_string()
                .parse()
                .map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
            let mut sent = reqwest::Request::new(parts.method, url);
            *sent.headers_mut() = parts.headers;
            *sent.body_mut() = Some(reqwest::Body::wrap(body));
            let reply = self.0.execute(sent).await.map_err(http_error)?;
            let status = reply.status();
            let headers = reply.headers().clone();
            let body = reply.bytes().await.map_err(http_error)?;
            let mut response = HttpResponse::new(HttpResponseBody::from(body));
            *response.status_mut() = status;
            *response.headers_mut() = headers;
            Ok(response)
        })
    }
}

fn http_error(error: reqwest::Error) -> HttpError {
    let kind = if error.is_timeout() {
        HttpErrorKind::Timeout
    } else if error.is_connect() {
        HttpErrorKind::Connect
    } else {
        HttpErrorKind::Unknown
    };
    // The store's error already has the address, without secrets.
    HttpError::new(kind, error.without_url())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::sync::Mutex;

    use axum::body::Bytes;
    use axum::extract::Request;
    use axum::http::header::ETAG;
    use axum::http::{HeaderMap, HeaderValue, StatusCode};

    use super::*;

    fn events(all: &[&str]) -> Vec<String> {
        all.iter().map(|event| (*event).to_owned()).collect()
    }

    #[test]
    fn bodies_equal_those_of_the_deployed_agent() {
        assert_eq!(array(&[]), r#"{"events":[]}"#);
        assert_eq!(
            array(&events(&["{}", "{\"a\":1}"])),
            r#"{"events":[{},{"a":1}]}"#
        );
        assert_eq!(unpacked(&packed(&[]).expect("packs")), "");
        assert_eq!(
            unpacked(&packed(&events(&["{}", "{}"])).expect("packs")),
            "{}\n{}\n"
        );
    }

    fn unpacked(packed: &[u8]) -> String {
        let mut text = String::new();
        let mut decoder = flate2::read::GzDecoder::new(packed);
        decoder.read_to_string(&mut text).expect("is gzip");
        text
    }

    /// Uploads that a blob service got: path, kind of blob, body.
    type Kept = Arc<Mutex<Vec<(String, String, Bytes)>>>;

    /// Serves `Put Blob` as Azure does: 201, or 404 for a container that does not exist.
    async fn blob_service(kept: Kept) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("binds");
        let url = format!("http://{}", listener.local_addr().expect("has an address"));
        let router = axum::Router::new().fallback(move |request: Request| {
            let kept = Arc::clone(&kept);
            async move {
                let (parts, body) = request.into_parts();
                let body = axum::body::to_bytes(body, 1 << 20)
                    .await
                    .expect("a whole body");
                if parts.uri.path().contains("/missing/") {
                    return (StatusCode::NOT_FOUND, HeaderMap::new());
                }
                let kind = parts.headers["x-ms-blob-type"]
                    .to_str()
                    .expect("is text")
                    .to_owned();
                let entry = (parts.uri.path().to_owned(), kind, body);
                kept.lock().expect("no crash").push(entry);
                let etag = HeaderMap::from_iter([(ETAG, HeaderValue::from_static("\"1\""))]);
                (StatusCode::CREATED, etag)
            }
        });
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }

    fn azure_receiver(endpoint: &str, container: &str) -> Receiver {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = AzureConfig {
            endpoint: format!("{endpoint}/"),
            container: container.into(),
            prefix_in_container: None,
        };
        let builder = azure(&config, reqwest::Client::new())
            .with_account("account")
            .with_access_key("a2V5");
        Receiver::Store {
            store: Arc::new(builder.build().expect("builds")),
            cause: "Azure Blob error",
        }
    }

    #[tokio::test]
    async fn azure_upload_reads_back_equal_and_missing_container_is_a_404() {
        let kept = Kept::default();
        let url = blob_service(Arc::clone(&kept)).await;
        let name = "p/year=2024/month=01/03:04:05Z_uuid.ndjson.gz";
        let sent = azure_receiver(&url, "bills")
            .send(name, &events(&["{\"a\":1}"]))
            .await;
        sent.expect("is received");
        {
            let kept = kept.lock().expect("no crash");
            let (path, kind, body) = &kept[0];
            assert!(
                path.ends_with("/bills/p/year=2024/month=01/03:04:05Z_uuid.ndjson.gz"),
                "{path}"
            );
            assert_eq!(
                (kind.as_str(), unpacked(body)),
                ("BlockBlob", "{\"a\":1}\n".into())
            );
        }
        let error = azure_receiver(&url, "missing")
            .send(name, &events(&["{}"]))
            .await;
        let error = error.expect_err("there is no such container");
        assert_eq!(error.cause(), "Azure Blob error");
        let text = daemon_kit::chain(&error);
        assert!(text.contains("404") || text.contains("not found"), "{text}");
    }
}
