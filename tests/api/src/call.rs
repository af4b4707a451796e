//! A call to the API server.

use axum::http::request::Parts;
use bytes::Bytes;
use serde_json::Value;

/// A call to the API server.
#[derive(Debug, Clone)]
pub struct Call {
    /// Method and path, as `PATCH /api/v1/namespaces/default/pods/one`. The method of a watch is
    /// `WATCH`.
    pub line: String,
    /// The query as it came.
    pub query: String,
    /// Body of the call.
    pub body: Bytes,
    /// Status that the API server gave it. `None` if the call has not reached it.
    pub status: Option<u16>,
}

impl Call {
    pub(crate) fn new(head: &Parts, body: Bytes) -> Self {
        let query = head.uri.query().unwrap_or_default().to_owned();
        let watches = |pair: &str| matches!(pair, "watch=true" | "watch=1");
        let method = if query.split('&').any(watches) {
            "WATCH"
        } else {
            head.method.as_str()
        };
        Self {
            line: format!("{method} {}", head.uri.path()),
            query,
            body,
            status: None,
        }
    }

    /// The body as JSON; `null` if it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// A member of the query, as it came.
    #[must_use]
    pub fn option(&self, name: &str) -> Option<&str> {
        let mut pairs = self
            .query
            .split('&')
            .filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// The last name in the path.
    #[must_use]
    pub fn name(&self) -> &str {
        self.line.rsplit('/').next().unwrap_or_default()
    }

    pub(crate) fn is_watch(&self) -> bool {
        self.line.starts_with("WATCH ")
    }

    pub(crate) fn is_write(&self) -> bool {
        !self.is_watch() && !self.line.starts_with("GET ")
    }

    /// Whether the API server has carried it out.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.status.is_some_and(|status| status < 300)
    }
}
