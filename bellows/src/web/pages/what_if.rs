//! What if a policy had decided: the form of a report over the past, and the last report.

use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;

use crate::web::app::Shared;
use crate::web::frame::{Frame, missing, show};
use crate::web::paths::path_of;
use crate::web::report::{Job, LIMIT, Report};

/// Times that a report may cover, with their labels.
const SPANS: [(&str, &str); 3] = [
    ("1h", "the last hour"),
    ("24h", "the last day"),
    ("7d", "the last week"),
];

#[derive(Debug, Template)]
#[template(path = "what_if.html", whitespace = "minimize")]
struct WhatIfPage {
    frame: Frame,
    name: String,
    back: String,
    spans: [(&'static str, &'static str); 3],
    limit_s: u64,
    /// Policy and time of the report that is made, and for how many seconds it was.
    running: Option<(String, &'static str, u64)>,
    done: Option<(&'static str, Report)>,
    is_elsewhere: bool,
}

impl WhatIfPage {
    fn new(frame: Frame, name: String, job: Option<Job>) -> Self {
        let (mut running, mut done) = (None, None);
        match job {
            Some(job) if job.report.is_none() => {
                running = Some((job.policy, job.label, job.begun.elapsed().as_secs()));
            }
            Some(job) if job.policy == name => {
                done = job.report.map(|report| (job.label, report));
            }
            _ => {}
        }
        Self {
            back: path_of(&["policies", &name]),
            spans: SPANS,
            limit_s: LIMIT.as_secs(),
            running,
            done,
            is_elsewhere: false,
            name,
            frame,
        }
    }
}

pub(super) fn routes() -> Router<Shared> {
    Router::new().route("/policies/{name}/what-if", get(page).post(begin))
}

async fn page(State(app): State<Shared>, Path(name): Path<String>, uri: Uri) -> Response {
    let state = app.live.snapshot().await;
    if state.policy(&name).is_none() {
        return missing(&state, &format!("Policy {name}"));
    }
    let mut frame = Frame::new(format!("What if: {name}"), "/policies", &state);
    let job = app.reports.last();
    if job.as_ref().is_some_and(|job| job.report.is_none()) {
        frame = frame.live(&app.guard, &uri);
    }
    let page = WhatIfPage {
        is_elsewhere: app.context.asks_cluster(),
        ..WhatIfPage::new(frame, name, job)
    };
    show(StatusCode::OK, &page, &page.frame)
}

/// Begins a report, and leads to its page. It changes nothing, so it is no order.
async fn begin(State(app): State<Shared>, Path(name): Path<String>, body: Bytes) -> Response {
    let state = app.live.snapshot().await;
    if state.policy(&name).is_none() || app.context.asks_cluster() {
        return missing(&state, &format!("Policy {name}"));
    }
    let mut pairs = form_urlencoded::parse(&body);
    let wanted = pairs.find(|(key, _)| key == "since");
    let wanted = wanted.map(|(_, value)| value).unwrap_or_default();
    let span = SPANS.into_iter().find(|(value, _)| *value == wanted);
    let (span, label) = span.unwrap_or(SPANS[1]);
    if app.reports.begin(&name, label) {
        let (app, name) = (Arc::clone(&app), name.clone());
        tokio::spawn(async move { app.reports.make(&app.context, &name, span).await });
    }
    Redirect::to(&path_of(&["policies", &name, "what-if"])).into_response()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn report_is_shown_with_its_policy_alone() {
        let page = |name: &str, report: Option<Report>| {
            let job = Job {
                policy: "db".into(),
                label: SPANS[0].1,
                begun: Instant::now(),
                report,
            };
            let page = WhatIfPage::new(Frame::default(), name.to_owned(), Some(job));
            page.render().expect("a page")
        };
        let under_way = page("web", None);
        assert!(under_way.contains("of policy db"), "{under_way}");
        assert!(!under_way.contains("<form"), "one at a time");
        let report = Report {
            problem: None,
            model: "error 0.1 %".into(),
            recorded: "<script>".into(),
        };
        let done = page("db", Some(report.clone()));
        assert!(done.contains("error 0.1 %") && done.contains("<form"));
        assert!(!done.contains("<script>"));
        assert!(!page("web", Some(report)).contains("error 0.1 %"));
    }
}
