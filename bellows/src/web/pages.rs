//! The pages that show something. A page is made from one snapshot by a pure function, and
//! filled into its template.

mod machines;
mod node;
mod overview;
mod policy;
mod sets;
mod vm;
mod vms;
mod what_if;

use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use axum::routing::get;
use protocol::policy::{REVISION_NAMESPACE, ScalingPolicyStatus, members_name, revision_name};
use serde::Deserialize;

use super::app::{App, Shared};
use super::frame::{Frame, missing, show};
use crate::api::Kind;
use crate::commands::people::{self, Done};
use crate::fail::{Fail, Outcome};

pub(super) use machines::MachinesPage;
pub(super) use node::{NodePage, NodesPage};
pub(super) use overview::Overview;
pub(super) use policy::PoliciesPage;
pub(super) use policy::PolicyPage;
pub(super) use sets::{SetPage, SetsPage};
#[cfg(test)]
pub(super) use vm::{VmJournal, WINDOWS};
pub(super) use vm::{VmPage, Window};
pub(super) use vms::{VmsPage, VmsQuery};

/// Most actions of people on a page.
const ACTIONS: usize = 200;

/// What people did, newest first.
#[derive(Debug, Template)]
#[template(path = "actions.html")]
struct Actions {
    frame: Frame,
    sentences: Vec<String>,
    problem: Option<String>,
    left_out: usize,
    /// Whether another log has them.
    is_elsewhere: bool,
}

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/", get(overview_page))
        .route("/vms", get(vms_page))
        .route("/vms/{namespace}/{name}", get(vm_page))
        .route("/machines", get(machines_page))
        .route("/nodes", get(nodes_page))
        .route("/nodes/{name}", get(node_page))
        .route("/sets", get(sets_page))
        .route("/sets/{namespace}/{name}", get(set_page))
        .route("/policies", get(policies_page))
        .route("/policies/{name}", get(policy_page))
        .route("/actions", get(actions_page))
        .merge(what_if::routes())
}

pub(super) async fn not_found(State(app): State<Shared>) -> Response {
    let state = app.live.snapshot().await;
    missing(&state, "This page")
}

async fn overview_page(State(app): State<Shared>, uri: Uri) -> Response {
    let state = app.live.snapshot().await;
    let frame = Frame::new("Overview", "/", &state).live(&app.guard, &uri);
    let page = Overview::new(frame, &state);
    show(StatusCode::OK, &page, &page.frame)
}

async fn vms_page(State(app): State<Shared>, Query(query): Query<VmsQuery>, uri: Uri) -> Response {
    let state = app.live.snapshot().await;
    let mut frame = Frame::new("VMs", "/vms", &state).live(&app.guard, &uri);
    // A refresh would empty a form that is being filled in.
    if query.search.is_some() {
        frame.refreshes = None;
    }
    let page = VmsPage::new(frame, &state, &query);
    show(StatusCode::OK, &page, &page.frame)
}

#[derive(Debug, Deserialize)]
struct WindowQuery {
    #[serde(default)]
    window: String,
}

async fn vm_page(
    State(app): State<Shared>,
    Path((namespace, name)): Path<(String, String)>,
    Query(query): Query<WindowQuery>,
    uri: Uri,
) -> Response {
    let state = app.live.snapshot().await;
    let key = format!("{namespace}/{name}");
    let Some(vm) = state.vm(&key).cloned() else {
        return missing(&state, &format!("VM {key}"));
    };
    let window = Window::of(&query.window, vm.age_s);
    let past = blocking(&app, move |app| {
        vm::VmJournal::read(&app.context, &key, window)
    })
    .await;
    let frame = Frame::new(vm.name.clone(), "/vms", &state).live(&app.guard, &uri);
    let page = VmPage::new(frame, &state, &vm, past, window);
    show(StatusCode::OK, &page, &page.frame)
}

async fn machines_page(State(app): State<Shared>, uri: Uri) -> Response {
    let state = app.live.snapshot().await;
    let frame = Frame::new("Machines", "/nodes", &state).live(&app.guard, &uri);
    let page = MachinesPage::new(frame, &state);
    show(StatusCode::OK, &page, &page.frame)
}

async fn nodes_page(State(app): State<Shared>, uri: Uri) -> Response {
    let state = app.live.snapshot().await;
    let frame = Frame::new("Nodes", "/nodes", &state).live(&app.guard, &uri);
    let page = NodesPage::new(frame, &state);
    show(StatusCode::OK, &page, &page.frame)
}

async fn node_page(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Query(query): Query<VmsQuery>,
    uri: Uri,
) -> Response {
    let state = app.live.snapshot().await;
    let frame = Frame::new(name.clone(), "/nodes", &state).live(&app.guard, &uri);
    match NodePage::new(frame, &state, &name, &query) {
        Some(page) => show(StatusCode::OK, &page, &page.frame),
        None => missing(&state, &format!("Node {name}")),
    }
}

async fn sets_page(State(app): State<Shared>, uri: Uri) -> Response {
    let state = app.live.snapshot().await;
    let frame = Frame::new("Sets", "/sets", &state).live(&app.guard, &uri);
    let page = SetsPage::new(frame, &state);
    show(StatusCode::OK, &page, &page.frame)
}

async fn set_page(
    State(app): State<Shared>,
    Path((namespace, name)): Path<(String, String)>,
    uri: Uri,
) -> Response {
    let state = app.live.snapshot().await;
    let key = format!("{namespace}/{name}");
    let Some(set) = state.set(&key) else {
        return missing(&state, &format!("Set {key}"));
    };
    let file = members_file(&app, &namespace, &name).await;
    let frame = Frame::new(name, "/sets", &state).live(&app.guard, &uri);
    let page = SetPage::new(frame, set, file);
    show(StatusCode::OK, &page, &page.frame)
}

/// The file that guests of a set read.
async fn members_file(app: &App, namespace: &str, set: &str) -> Outcome<String> {
    let api = app.context.api().await?;
    let name = members_name(set);
    let map = api.get(Kind::ConfigMap, namespace, &name).await?;
    let file = map["data"]["members"].as_str();
    Ok(file.unwrap_or_default().to_owned())
}

async fn policies_page(State(app): State<Shared>, uri: Uri) -> Response {
    let state = app.live.snapshot().await;
    let frame = Frame::new("Policies", "/policies", &state).live(&app.guard, &uri);
    let page = PoliciesPage::new(frame, &state);
    show(StatusCode::OK, &page, &page.frame)
}

async fn policy_page(State(app): State<Shared>, Path(name): Path<String>, uri: Uri) -> Response {
    let state = app.live.snapshot().await;
    let Some(object) = state.policy(&name) else {
        return missing(&state, &format!("Policy {name}"));
    };
    let status = ScalingPolicyStatus::of_object(object).unwrap_or_default();
    let live = match &status.live {
        Some(live) => live_source(&app, &name, &live.digest).await.map(Some),
        None => Ok(None),
    };
    let frame = Frame::new(name.clone(), "/policies", &state).live(&app.guard, &uri);
    let page = PolicyPage::new(frame, &state, object, live);
    show(StatusCode::OK, &page, &page.frame)
}

/// Source of the version that decides, as it was kept.
async fn live_source(app: &App, policy: &str, digest: &str) -> Outcome<String> {
    let api = app.context.api().await?;
    let name = revision_name(policy, digest);
    let revision = api.get(Kind::Revision, REVISION_NAMESPACE, &name).await?;
    let source = revision["data"]["source"].as_str();
    Ok(source.unwrap_or_default().to_owned())
}

async fn actions_page(State(app): State<Shared>, uri: Uri) -> Response {
    let state = app.live.snapshot().await;
    let frame = Frame::new("Actions", "/actions", &state).live(&app.guard, &uri);
    let is_elsewhere = app.context.asks_cluster();
    let all = blocking(&app, move |app| {
        if is_elsewhere {
            Ok(Vec::new())
        } else {
            people::all(&app.context)
        }
    });
    let page = Actions {
        is_elsewhere,
        ..actions(frame, all.await)
    };
    show(StatusCode::OK, &page, &page.frame)
}

fn actions(frame: Frame, all: Outcome<Vec<Done>>) -> Actions {
    let (all, problem) = match all {
        Ok(all) => (all, None),
        Err(fail) => (Vec::new(), Some(fail.what().to_owned())),
    };
    let newest = all.iter().rev().take(ACTIONS).map(Done::sentence);
    Actions {
        sentences: newest.collect(),
        left_out: all.len().saturating_sub(ACTIONS),
        problem,
        is_elsewhere: false,
        frame,
    }
}

/// Reads files without holding up other requests.
async fn blocking<T: Send + 'static>(
    app: &Shared,
    read: impl FnOnce(&App) -> Outcome<T> + Send + 'static,
) -> Outcome<T> {
    let app = Arc::clone(app);
    let read = tokio::task::spawn_blocking(move || read(&app)).await;
    read.unwrap_or_else(|error| Err(Fail::bug(error.to_string())))
}
