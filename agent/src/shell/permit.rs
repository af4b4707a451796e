//! Permit requests: one POST to the current scheduler. Source: docs/compatibility/agent.md §4.2.
//!
//! The scheduler may delay a response for about a second. The time limit
//! (`scheduler.requestTimeoutSeconds`) must be above that.

use daemon_kit::tls::TlsError;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request};
use protocol::permit::{AgentRequest, PluginResponse};

use super::config;
use super::permit_link::PermitLink;
use super::token::{Token, TokenError, TokenFile, bearer_header};
use crate::core::Failure;

/// Largest response read, bytes; a permit has less than 100.
const RESPONSE_LIMIT_BYTES: usize = 16 * 1024;
/// Longest error text kept, characters.
const SHOWN_CHARS: usize = 200;

/// Client for all permit requests.
pub(super) struct PermitClient {
    link: PermitLink,
    token: Option<Token>,
}

impl PermitClient {
    /// A client that sends `token`, or else the token in the file that the configuration names.
    pub(super) fn new(config: &config::Scheduler, token: Option<&str>) -> Self {
        let file = config.token_file.clone().map(TokenFile::new);
        let given = token.and_then(|token| bearer_header(token.as_bytes()));
        Self {
            link: PermitLink::new(config.tls.as_ref()),
            token: given.map(Token::Fixed).or(file.map(Token::File)),
        }
    }
}

/// Why a permit request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum PermitError {
    /// No scheduler pod is ready.
    #[error("no scheduler pod is ready")]
    NoScheduler,
    /// The pod's address is malformed.
    #[error("{0:?} is no address")]
    Address(String),
    /// The token file cannot be used.
    #[error("no token to show to the scheduler")]
    Token(#[from] TokenError),
    /// The files for TLS cannot be used.
    #[error("no TLS with the scheduler")]
    Tls(#[from] TlsError),
    /// No connection could be made, so the request was not sent.
    #[error("could not connect to the scheduler")]
    Connect(#[source] hyper_util::client::legacy::Error),
    /// The connection broke; the request may have been sent.
    #[error("the connection to the scheduler broke")]
    Broken(#[source] hyper_util::client::legacy::Error),
    /// No response came in time.
    #[error("the scheduler did not answer in time")]
    TimedOut,
    /// The status was not 200.
    #[error("the scheduler answered {status}: {text}")]
    Status {
        status: u16,
        /// Start of the body.
        text: String,
    },
    /// The body was too long or incomplete.
    #[error("the scheduler's answer could not be read")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The body is not a permit.
    #[error("the scheduler's answer is no permit")]
    Decode(#[source] serde_json::Error),
}

impl PermitError {
    /// Whether the scheduler may have acted on the request.
    #[must_use]
    pub(super) fn failure(&self) -> Failure {
        match self {
            Self::NoScheduler
            | Self::Address(_)
            | Self::Token(_)
            | Self::Tls(_)
            | Self::Connect(_) => Failure::NotApplied,
            Self::Status { status, .. } if (400..500).contains(status) => Failure::NotApplied,
            Self::Broken(_)
            | Self::TimedOut
            | Self::Status { .. }
            | Self::Body(_)
            | Self::Decode(_) => Failure::Unknown,
        }
    }

    /// The `code` label of the request counter.
    #[must_use]
    pub(super) fn code(&self) -> String {
        match self {
            Self::Status { status, .. } => status.to_string(),
            Self::Body(_) | Self::Decode(_) => "200".into(),
            Self::NoScheduler => "[error doing request: no known ready scheduler pod]".into(),
            Self::Address(_) => "[error doing request: bad address]".into(),
            Self::Token(_) => "[error doing request: no token]".into(),
            Self::Tls(_) => "[error doing request: no TLS]".into(),
            Self::Connect(_) => "[error doing request: could not connect]".into(),
            Self::Broken(_) => "[error doing request: connection broke]".into(),
            Self::TimedOut => "[error doing request: timed out]".into(),
        }
    }
}

/// Sends a permit request. The caller bounds the time.
///
/// # Errors
/// [`PermitError`]; [`PermitError::failure`] says whether the scheduler may have acted on it.
pub(super) async fn request(
    client: &PermitClient,
    address: &str,
    request: &AgentRequest,
) -> Result<PluginResponse, PermitError> {
    let body = serde_json::to_vec(request).map_err(PermitError::Decode)?;
    let mut builder = Request::builder()
        .method(Method::POST)
        .uri(address)
        .header(hyper::header::CONTENT_TYPE, "application/json");
    if let Some(token) = &client.token {
        builder = builder.header(hyper::header::AUTHORIZATION, token.header()?);
    }
    let http_request = builder
        .body(Full::new(Bytes::from(body)))
        .map_err(|_| PermitError::Address(address.to_owned()))?;
    let response = client
        .link
        .http()?
        .request(http_request)
        .await
        .map_err(|error| {
            if error.is_connect() {
                PermitError::Connect(error)
            } else {
                PermitError::Broken(error)
            }
        })?;
    let status = response.status();
    let body = Limited::new(response.into_body(), RESPONSE_LIMIT_BYTES)
        .collect()
        .await
        .map_err(PermitError::Body)?
        .to_bytes();
    if status != hyper::StatusCode::OK {
        let text = String::from_utf8_lossy(&body)
            .trim()
            .chars()
            .take(SHOWN_CHARS)
            .collect();
        return Err(PermitError::Status {
            status: status.as_u16(),
            text,
        });
    }
    serde_json::from_slice(&body).map_err(PermitError::Decode)
}
