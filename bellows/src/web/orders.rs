//! Orders: a page with a form, and the `POST` that carries it out.
//!
//! An order is carried out by the function of its command, between two records of the journal's
//! part `people`. One order at a time is carried out. The answer of an order has an address of its
//! own, so a page that is loaded again sends nothing again.

mod body;
mod page;
mod set;
mod target;

use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use daemon_kit::exit::Exit;
use protocol::journal::Action;

use super::app::{App, Shared};
use super::forms::{OrderOutcome, Sent};
use super::frame::{Frame, fail_lines, message, missing, show};
use super::paths::path_of;
use crate::actions;
use crate::commands::policy::stage::{self, StageOrder};
use crate::commands::vmset::orders::{self as set_orders, SetOrder};
use crate::fail::Fail;
use crate::node_orders::{drain, undrain};
use crate::vm_orders::{VmOrder, set_bounds, set_mode};
use body::Body;
pub(super) use page::OrderPage;
pub(super) use set::OrderQuery;
pub(super) use target::Target;
use target::{Drain, SetStep, Setting, Staged};

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/policies/{name}/{order}", get(form).post(to_the_end))
        .route("/nodes/{name}/{order}", get(form).post(to_the_end))
        .route(
            "/vms/{namespace}/{name}/{order}",
            get(form).post(to_the_end),
        )
        .route(
            "/sets/{namespace}/{name}/{order}",
            get(form).post(to_the_end),
        )
        .route("/answers/{key}", get(answer_page))
}

async fn form(State(app): State<Shared>, Query(query): Query<OrderQuery>, uri: Uri) -> Response {
    let state = app.live.snapshot().await;
    let Some(target) = Target::of(uri.path()) else {
        return missing(&state, "This page");
    };
    if !target.is_in(&state) {
        return missing(&state, &target.shown());
    }
    let fields = app.forms.make(uri.path());
    let page = OrderPage::new(&state, &target, (uri.path().to_owned(), &query), fields);
    show(StatusCode::OK, &page, &page.frame)
}

/// Carries an order out in a task of its own: a browser that hangs up does not stop it halfway.
async fn to_the_end(State(app): State<Shared>, uri: Uri, body: Bytes) -> Response {
    let order = async move { carry_out(&app, uri.path(), &body).await };
    let done = tokio::spawn(order).await;
    done.unwrap_or_else(|error| {
        let text = format!("the order may be half done: {error}\n");
        (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
    })
}

/// Carries an order out, unless it was before, and leads to its answer.
async fn carry_out(app: &App, path: &str, body: &Bytes) -> Response {
    let Some(target) = &Target::of(path) else {
        let state = app.live.snapshot().await;
        return missing(&state, "This page");
    };
    let body = Body::read(body);
    let fields = body.fields();
    let _turn = app.turn.lock().await;
    match app.forms.sent(path, &fields, Instant::now()) {
        Sent::Again(_) => {}
        Sent::Stale => return stale(app, target, &body).await,
        Sent::First => {
            let state = app.live.snapshot().await;
            let answer = if target.is_in(&state) {
                act(app, target, &body).await
            } else {
                Err(Fail::not_so(format!(
                    "{} is not there any more",
                    target.shown()
                )))
            };
            app.forms.answered(&fields.key, &answer);
            app.live.ordered();
        }
    }
    Redirect::to(&path_of(&["answers", &fields.key])).into_response()
}

/// Refuses an order that no form of this server can have sent, and records that.
async fn stale(app: &App, target: &Target, body: &Body) -> Response {
    let fail =
        Fail::not_so("the form is too old, or not one of this server").fix("open the form again");
    let action = Action {
        what: "web order refused".into(),
        on: Some(target.key()),
        why: actions::reason(body.get("reason")).ok(),
        ..Action::default()
    };
    let refused = std::future::ready(Err::<(), Fail>(fail.clone()));
    let recorded = actions::recorded(&app.context, action, refused).await;
    let fail = recorded.err().unwrap_or(fail);
    let state = app.live.snapshot().await;
    let frame = Frame::new("Not done", "", &state);
    let next = Some((target.shown(), target.page()));
    message(StatusCode::FORBIDDEN, frame, fail_lines(&fail), next)
}

async fn act(app: &App, target: &Target, body: &Body) -> OrderOutcome {
    let (context, reason) = (&app.context, body.reason()?);
    match target {
        Target::Policy { name, order } => {
            let seen = body.get("seen");
            let staged = StageOrder {
                policy: name,
                reason: Some(reason),
                seen: (!seen.is_empty()).then_some(seen),
            };
            match order {
                Staged::Promote => stage::promote(context, &staged).await,
                Staged::Demote => stage::demote(context, &staged).await,
                Staged::Pause => stage::pause(context, &staged).await,
                Staged::Resume => stage::resume(context, &staged).await,
            }
        }
        Target::Node { name, order } => match order {
            Drain::Begin => drain(context, name, reason).await,
            Drain::End => undrain(context, name, reason).await,
        },
        Target::Vm {
            namespace,
            name,
            setting,
        } => {
            let order = VmOrder {
                namespace,
                name,
                reason,
            };
            match setting {
                Setting::Bounds => set_bounds(context, order, body.bounds()?).await,
                Setting::Mode => set_mode(context, order, body.mode()?).await,
            }
        }
        Target::Set {
            namespace,
            name,
            step,
        } => {
            let order = SetOrder {
                namespace,
                name,
                reason: Some(reason),
                seen: body.count("shown").ok(),
            };
            match step {
                SetStep::Scale => set_orders::scale(context, &order, body.count("count")?).await,
                SetStep::Upgrade => set_orders::upgrade(context, &order).await,
                SetStep::Undo => set_orders::undo(context, &order).await,
            }
        }
    }
}

/// The answer to an order that was carried out.
async fn answer_page(State(app): State<Shared>, Path(key): Path<String>) -> Response {
    let answer = app.forms.answer(&key);
    let state = app.live.snapshot().await;
    let (status, title, lines, page) = match answer {
        None => return missing(&state, "This answer"),
        Some((path, Ok(lines))) => (StatusCode::OK, "Done", lines, path),
        Some((path, Err(fail))) => {
            let status = if fail.exit() == Exit::Config {
                StatusCode::UNPROCESSABLE_ENTITY
            } else {
                StatusCode::CONFLICT
            };
            (status, "Not done", fail_lines(&fail), path)
        }
    };
    let page = page.rsplit_once('/').map_or("/", |(page, _)| page);
    let frame = Frame::new(title, "", &state);
    let next = Some(("Go on".to_owned(), page.to_owned()));
    message(status, frame, lines, next)
}
