//! Responses of the daemon's HTTP server.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};

pub(super) type HttpResponse = Response<Full<Bytes>>;

pub(super) fn answer(status: StatusCode, text: impl Into<Bytes>) -> HttpResponse {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response
}

/// Response of JSON.
pub(super) fn json(content: &impl serde::Serialize) -> HttpResponse {
    match serde_json::to_vec(content) {
        Ok(text) => {
            let mut response = answer(StatusCode::OK, text);
            let json = HeaderValue::from_static("application/json");
            response.headers_mut().insert(CONTENT_TYPE, json);
            response
        }
        Err(error) => answer(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}
