//! HTTP in front of the store: authentication, routing, and turning requests into calls.

mod accept;
mod body;
mod docs;
mod documents;
mod exchange;
mod output;
mod read;
mod respond;
mod watch;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use daemon_kit::connections::Connection;

use self::accept::Accept;
pub use self::documents::Documents;
pub use self::exchange::App;
use self::exchange::Exchange;
use self::output::json;
pub(super) use self::output::text_header;
use crate::core::error::{ApiError, Reason};
use crate::core::request::{self, DeleteOptions, PatchKind, Query, Verb, WriteOptions};
use crate::core::store::{self, WriteRequest};

/// Beginning of the headers by which a caller asks to act as another user: `Impersonate-User`,
/// `-Group`, `-Uid` and `-Extra-*`.
const IMPERSONATE: &str = "impersonate-";

/// Router of the whole API.
pub fn router(app: Arc<App>) -> Router {
    Router::new().fallback(entry).with_state(app)
}

async fn entry(State(app): State<Arc<App>>, request: Request) -> Response {
    let path = request.uri().path();
    if matches!(path, "/healthz" | "/livez" | "/readyz") && request.method() == Method::GET {
        return (StatusCode::OK, "ok").into_response();
    }
    let is_authenticated = is_authorised(request.headers(), &app.token);
    let audit = app.audit.as_ref();
    let audited = audit.and_then(|log| log.begin(&request, is_authenticated));
    let response = if is_authenticated {
        serve(&app, request).await
    } else {
        unauthorised()
    };
    match audited {
        Some(audited) => audited.until_sent(response),
        None => response,
    }
}

fn unauthorised() -> Response {
    let mut response = respond::refusal(&ApiError::new(Reason::Unauthorized, "Unauthorized"));
    let challenge = header::HeaderValue::from_static("Bearer");
    response
        .headers_mut()
        .insert(header::WWW_AUTHENTICATE, challenge);
    response
}

async fn serve(app: &Arc<App>, request: Request) -> Response {
    if let Some(connection) = request.extensions().get::<Connection>() {
        connection.trust();
    }
    let started = std::time::Instant::now();
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let response = match refuse_impersonation(request.headers()) {
        Ok(()) => dispatch(app, request).await,
        Err(refusal) => Err(refusal),
    };
    let response = response.unwrap_or_else(|refusal| respond::refusal(&refusal));
    tracing::debug!(%method, %uri, code = response.status().as_u16(), us = started.elapsed().as_micros(), "request");
    response
}

/// Compares without stopping at the first difference.
fn is_authorised(headers: &HeaderMap, token: &str) -> bool {
    let given = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let given = given.and_then(|text| {
        let (scheme, rest) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| rest.trim())
    });
    given.is_some_and(|given| {
        let difference = given
            .bytes()
            .zip(token.bytes())
            .fold(0, |sum, (a, b)| sum | (a ^ b));
        given.len() == token.len() && difference == 0
    })
}

/// Refuses to act as another user. A caller that drops its rights by these headers would otherwise
/// keep all of them without a sign.
fn refuse_impersonation(headers: &HeaderMap) -> Result<(), ApiError> {
    let names = headers.keys().map(header::HeaderName::as_str);
    match names.into_iter().find(|name| name.starts_with(IMPERSONATE)) {
        None => Ok(()),
        Some(name) => Err(ApiError::new(
            Reason::Forbidden,
            format!(
                "header {name} is refused: the API of one machine has one user, who may do \
                 everything, and cannot act as another; send the request without the header \
                 (kubectl: without --as, --as-group, --as-uid and --as-user-extra)"
            ),
        )),
    }
}

async fn dispatch(app: &Arc<App>, request: Request) -> Result<Response, ApiError> {
    let segments = request::segments(request.uri().path())?;
    let names: Vec<&str> = segments.iter().map(String::as_str).collect();
    let accept = Accept::parse(request.headers());
    let reviews = [
        "apis",
        "authorization.k8s.io",
        "v1",
        "selfsubjectaccessreviews",
    ];
    if names == reviews && request.method() == Method::POST {
        return review(app, request).await;
    }
    let Some(target) = request::target(&segments) else {
        return docs::answer(app, request.method(), &names, &accept);
    };
    let target = target.ok_or_else(ApiError::unknown_path)?;
    let form = app.hub.with(|view| store::form(&view.registry, &target))?;
    let exchange = Exchange {
        query: Query::parse(request.uri().query().unwrap_or_default()),
        agent: text_header(request.headers(), &header::USER_AGENT).to_owned(),
        output: accept.output()?,
        app: Arc::clone(app),
        target,
        form,
    };
    match (request.method().as_str(), exchange.target.name.is_some()) {
        ("GET", true) => read::get(&exchange),
        ("GET", false) if exchange.query.flag("watch")? => watch::start(&exchange),
        ("GET", false) => read::list(&exchange),
        ("POST" | "PUT" | "PATCH" | "DELETE", _) => exchange.write(request).await,
        _ => Err(store::method_not_allowed()),
    }
}

/// Whoever has the token may do everything; `kubectl auth can-i` and dashboards ask.
async fn review(app: &Arc<App>, request: Request) -> Result<Response, ApiError> {
    let mut review = body::read(request, None, &app.messages).await?;
    if !review.is_object() {
        return Err(ApiError::bad_request(
            "the body must be a SelfSubjectAccessReview",
        ));
    }
    review["status"] =
        serde_json::json!({"allowed": true, "reason": "the bearer token allows everything"});
    Ok(json(StatusCode::CREATED, &review))
}

impl Exchange {
    async fn write(&self, request: Request) -> Result<Response, ApiError> {
        let options = WriteOptions::parse(&self.query, &self.agent)?;
        let has_name = self.target.name.is_some();
        let method = request.method().clone();
        let patch_kind = match method.as_str() {
            "PATCH" => Some(patch_kind(&request)?),
            _ => None,
        };
        let body = body::read(request, patch_kind, &self.app.messages).await?;
        let (verb, dry_run) = match (method.as_str(), has_name) {
            ("POST", true) => (Verb::Bind(body), options.dry_run),
            ("POST", false) => (Verb::Create(body), options.dry_run),
            ("PUT", true) => (Verb::Update(body), options.dry_run),
            ("PATCH", true) => {
                let kind = patch_kind.ok_or_else(store::method_not_allowed)?;
                (Verb::Patch(kind, body), options.dry_run)
            }
            ("DELETE", true) => {
                let delete = DeleteOptions::parse(&body, &self.query)?;
                let dry_run = delete.dry_run;
                (Verb::Delete(delete), dry_run)
            }
            ("DELETE", false) => {
                let delete = DeleteOptions::parse(&body, &self.query)?;
                let dry_run = delete.dry_run;
                (Verb::DeleteCollection(self.selection()?, delete), dry_run)
            }
            _ => return Err(store::method_not_allowed()),
        };
        let call = WriteRequest {
            now: super::now(),
            seed: rand::random(),
            target: self.target.clone(),
            verb,
            options: WriteOptions { dry_run, ..options },
        };
        let reply = self.app.engine.call(call).await?;
        respond::reply(self, &reply)
    }
}

fn patch_kind(request: &Request) -> Result<PatchKind, ApiError> {
    let media_type = body::media_type(request.headers());
    PatchKind::from_media_type(media_type).ok_or_else(|| {
        ApiError::new(
            Reason::UnsupportedMediaType,
            format!(
                "the body of the request was in an unknown format - accepted media types include: \
                 application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml, \
                 application/strategic-merge-patch+json (core kinds); got {media_type:?}"
            ),
        )
    })
}
