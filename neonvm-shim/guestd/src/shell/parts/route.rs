//! HTTP routes of the parts.

use std::io;

use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use neonvm_parts::core::record::Verb;
use neonvm_parts::core::refusal::Refusal;
use neonvm_parts::core::request::{self, ORDER_BYTES};
use protocol::parts::{PartName, PartState, ROUTE};

use super::{Failure, Parts};
use crate::shell::response::{HttpResponse, answer, json};

/// Responds to a request below [`ROUTE`].
pub async fn route(parts: &Parts, request: Request<Incoming>) -> HttpResponse {
    let path = request.uri().path().to_owned();
    if path == ROUTE && request.method() == Method::GET {
        return match parts.publish().await {
            Ok(()) => json(&*parts.states.borrow()),
            Err(failure) => refused(&failure),
        };
    }
    let Some((part, verb)) = request::path(&path) else {
        return answer(
            StatusCode::NOT_FOUND,
            "no such part or order: parts are monitor and guestd, orders try, keep and back\n",
        );
    };
    let is_right = match verb {
        Verb::Bring => request.method() == Method::PUT,
        Verb::Try | Verb::Keep | Verb::Back => request.method() == Method::POST,
    };
    if !is_right {
        return answer(
            StatusCode::METHOD_NOT_ALLOWED,
            "a program is brought by PUT, an order is given by POST\n",
        );
    }
    match carried_out(parts, part, verb, request).await {
        Ok(state) => json(&state),
        Err(failure) => refused(&failure),
    }
}

async fn carried_out(
    parts: &Parts,
    part: PartName,
    verb: Verb,
    request: Request<Incoming>,
) -> Result<PartState, Failure> {
    if verb == Verb::Bring {
        let bring = request::bring(request.uri().query().unwrap_or_default())?;
        return parts.bring(part, &bring, request.into_body()).await;
    }
    let body = Limited::new(request.into_body(), ORDER_BYTES);
    let body = body.collect().await.map_err(|_| Refusal::Malformed {
        field: "body",
        rule: "must be at most 4 KiB",
    })?;
    let order = request::order(verb, &body.to_bytes())?;
    parts.order(part, verb, &order).await
}

fn refused(failure: &Failure) -> HttpResponse {
    let status = match failure {
        Failure::Refused(refusal) => refusal.status(),
        Failure::Files(error) => match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => 507,
            io::ErrorKind::ReadOnlyFilesystem => 409,
            _ => 500,
        },
    };
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer(status, format!("{failure}\n"))
}
