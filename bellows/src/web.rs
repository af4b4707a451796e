//! `bellows web`: pages that show sizes, votes, reasons, policies and nodes, and take orders.
//!
//! The server runs as the person who may reach the instance's private sockets, and shows what the
//! commands show: the same functions read the same sources. It serves plain HTTP, so it listens on
//! a loopback address only. [`guard`] says who gets an answer.
//!
//! ```text
//! browser ── cookie ──▶ guard ──▶ pages ── reads ──▶ live: one reader of the instance for all pages
//!                          └────▶ orders ─ A record, act, A record ─▶ API server
//! ```

mod app;
mod attention;
mod forms;
mod frame;
mod guard;
mod live;
mod orders;
mod pages;
mod paths;
mod picture;
mod report;
mod snapshot;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use clap::Args;
use daemon_kit::connections::http::{self, Limits};
use daemon_kit::connections::{Bounds, ServerCounters};
use hyper::http::Method;
use tokio::net::TcpListener;

use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::terminal::out;
use app::{App, Shared};
use forms::Forms;
use frame::refusal;
use guard::{Guard, HEADERS};
use live::Live;
use paths::is_own;
use report::Reports;

const STYLE: &str = include_str!("../templates/style.css");
const ICON: &str = include_str!("../templates/icon.svg");

/// Serve a page about all VMs, with orders, to the browser of one person.
///
/// Prints a link that works once, and serves until Ctrl-C. The first to open the link may do what
/// this user may: see everything, promote policies, set bounds and modes. Each order has a reason,
/// and is in the journal before it is carried out.
#[derive(Debug, Clone, Args)]
pub(crate) struct WebArgs {
    /// Loopback address to listen on; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    listen: SocketAddr,
}

pub(crate) async fn run(context: Context, args: &WebArgs) -> Outcome {
    if !args.listen.ip().is_loopback() {
        return Err(Fail::usage(format!("{} is no loopback address", args.listen))
            .rule("the pages are served without encryption, to this machine only")
            .fix("from another machine: ssh -L PORT:127.0.0.1:PORT, with the port that bellows web prints"));
    }
    if !context.asks_cluster() {
        context.admin(Method::GET, "/v1/status", None).await?;
    }
    let refused = |error: std::io::Error| {
        Fail::try_again(format!("{} cannot be listened on: {error}", args.listen))
            .fix("choose another port, or 0 for a free one: --listen 127.0.0.1:0")
    };
    let listener = TcpListener::bind(args.listen).await.map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    let (guard, link) = Guard::new(address);
    let app = Arc::new(App {
        live: Live::start(context.clone()),
        context,
        guard,
        forms: Forms::default(),
        reports: Reports::default(),
        turn: tokio::sync::Mutex::default(),
    });
    out(&format!("open it once: http://{address}/enter/{link}"));
    out("serves until Ctrl-C");
    let broken = |error: std::io::Error| Fail::bug(format!("no signal can be waited for: {error}"));
    let cancel = daemon_kit::shutdown::on_signal().map_err(broken)?;
    let bounds = (Bounds::pages(), Limits::PAGES);
    let counters = ServerCounters::unregistered();
    http::serve(listener, router(Arc::clone(&app)), bounds, counters, cancel).await;
    app.reports.stop();
    Ok(())
}

fn router(app: Shared) -> Router {
    let behind_cookie = pages::routes()
        .merge(orders::routes())
        .route("/refresh", post(set_refresh))
        .fallback(pages::not_found)
        .layer(middleware::from_fn_with_state(app.clone(), admit));
    Router::new()
        .route("/enter/{link}", get(enter))
        .route("/style.css", get(async || of_type("text/css", STYLE)))
        .route("/icon.svg", get(async || of_type("image/svg+xml", ICON)))
        .merge(behind_cookie)
        .layer(middleware::from_fn_with_state(app.clone(), wall))
        .with_state(app)
}

fn of_type(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// Exchanges the link for the cookie.
async fn enter(State(app): State<Shared>, method: Method, Path(link): Path<String>) -> Response {
    // A `HEAD` must not use the link up.
    let cookie = (method == Method::GET).then(|| app.guard.enter(&link));
    match cookie.flatten() {
        Some(cookie) => ([(header::SET_COOKIE, cookie)], Redirect::to("/")).into_response(),
        None => refusal(
            StatusCode::UNAUTHORIZED,
            "This link does not work",
            "A link works once. If you have not used it, somebody else on this machine may have: \
             end bellows web by Ctrl-C, and start it again for a new link.",
        ),
    }
}

/// Refuses foreign hosts, and adds the headers of every answer.
async fn wall(State(app): State<Shared>, request: Request, next: Next) -> Response {
    let mut response = if app.guard.is_own_host(request.headers()) {
        next.run(request).await
    } else {
        refusal(
            StatusCode::MISDIRECTED_REQUEST,
            "This is another address",
            "The pages are served under the address that bellows web has printed, and no other.",
        )
    };
    for (name, value) in HEADERS {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

/// Lets the person with the cookie through.
async fn admit(State(app): State<Shared>, request: Request, next: Next) -> Response {
    if !app.guard.has_session(request.headers()) {
        return refusal(
            StatusCode::UNAUTHORIZED,
            "Open the link first",
            "These pages are for the browser that opened the link of bellows web. If you have just \
             opened it from another page, load this page again.",
        );
    }
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if !is_read && !app.guard.is_own_page(request.headers()) {
        return refusal(
            StatusCode::FORBIDDEN,
            "Another page has sent this",
            "Orders are taken from the forms of these pages only. Nothing was done.",
        );
    }
    next.run(request).await
}

/// `POST /refresh`: starts or stops the refresh of pages for this person.
async fn set_refresh(State(app): State<Shared>, body: Bytes) -> Response {
    let value = |name: &str| {
        let mut pairs = form_urlencoded::parse(&body);
        pairs.find(|(key, _)| key == name).map(|(_, value)| value)
    };
    let is_still = value("refresh").is_some_and(|wanted| wanted == "off");
    app.guard.set_still(is_still);
    let back = value("back").filter(|back| is_own(back));
    Redirect::to(back.as_deref().unwrap_or("/")).into_response()
}
