//! What surrounds the content of every page, and pages of sentences.

use askama::Template;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Response};

use super::guard::Guard;
use super::snapshot::Snapshot;
use crate::fail::Fail;
use crate::output::age;
use crate::view::units::seconds_between;

/// Seconds between two loads of a page by itself.
const REFRESH_S: u32 = 5;
/// Age of the state from which a page says that it is old.
const OLD_S: u64 = 15;

/// Sections of the navigation, with their paths.
const SECTIONS: [(&str, &str); 6] = [
    ("Overview", "/"),
    ("VMs", "/vms"),
    ("Sets", "/sets"),
    ("Nodes", "/nodes"),
    ("Policies", "/policies"),
    ("Actions", "/actions"),
];

/// What surrounds the content of every page.
#[derive(Debug, Clone, Default)]
pub(super) struct Frame {
    pub(super) title: String,
    /// Path of the section that the page belongs to.
    pub(super) section: &'static str,
    /// Name of this machine's node. Empty in a cluster.
    pub(super) node: String,
    pub(super) version: &'static str,
    /// Time of the state.
    pub(super) at: String,
    /// Why the state is not of now.
    pub(super) problem: Option<String>,
    /// Path of this page, to come back to it.
    pub(super) path: String,
    /// Whether the page loads itself again. `None`: it never does.
    pub(super) refreshes: Option<bool>,
}

impl Frame {
    pub(super) fn sections(&self) -> [(&'static str, &'static str); 6] {
        SECTIONS
    }

    pub(super) fn period(&self) -> u32 {
        REFRESH_S
    }

    pub(super) fn new(title: impl Into<String>, section: &'static str, state: &Snapshot) -> Self {
        let node = state.status.as_ref().map(|status| status.node.clone());
        let problem = state.problem.as_ref().map(|problem| {
            let now = daemon_kit::clock::Clock::new().wall();
            let old = seconds_between(state.at.0, now);
            let since = if state.at.0 == 0 {
                String::new()
            } else if old < OLD_S {
                " The page shows the last state.".to_owned()
            } else {
                format!(" The page shows the state of {} ago.", age(old))
            };
            format!("{}.{since}", problem.what())
        });
        Self {
            title: title.into(),
            section,
            node: node.unwrap_or_default(),
            version: env!("CARGO_PKG_VERSION"),
            at: if state.at.0 == 0 {
                "never".to_owned()
            } else {
                state.at.to_string()
            },
            problem,
            path: "/".into(),
            refreshes: None,
        }
    }

    /// The frame of a page that loads itself again, unless the person has stopped that.
    pub(super) fn live(mut self, guard: &Guard, uri: &Uri) -> Self {
        self.path = uri.to_string();
        self.refreshes = Some(!guard.is_still());
        self
    }
}

/// A page about a refusal, or about nothing being there.
#[derive(Debug, Template)]
#[template(path = "message.html")]
pub(super) struct Message {
    pub(super) frame: Frame,
    pub(super) lines: Vec<String>,
    /// Name and path of where to go on.
    pub(super) next: Option<(String, String)>,
}

/// Fills a template in. A page that refreshes itself says so in a header.
pub(super) fn show(status: StatusCode, page: &impl Template, frame: &Frame) -> Response {
    let mut response = match page.render() {
        Ok(text) => (status, Html(text)).into_response(),
        Err(error) => {
            let text = format!("the page cannot be made: {error}\n");
            return (StatusCode::INTERNAL_SERVER_ERROR, text).into_response();
        }
    };
    if frame.refreshes == Some(true) {
        let every = HeaderValue::from(REFRESH_S);
        response.headers_mut().insert(header::REFRESH, every);
    }
    response
}

/// A page without any state of the instance, for a request that is refused.
pub(super) fn refusal(status: StatusCode, title: &str, text: &str) -> Response {
    let frame = Frame {
        title: title.to_owned(),
        ..Frame::default()
    };
    let lines = vec![text.to_owned()];
    message(status, frame, lines, None)
}

/// A page of sentences.
pub(super) fn message(
    status: StatusCode,
    frame: Frame,
    lines: Vec<String>,
    next: Option<(String, String)>,
) -> Response {
    let page = Message { frame, lines, next };
    show(status, &page, &page.frame)
}

/// Sentences of a failure: what, rule, fix.
pub(super) fn fail_lines(fail: &Fail) -> Vec<String> {
    fail.to_string()
        .lines()
        .map(|line| {
            let line = line.trim();
            line.strip_prefix("error: ").unwrap_or(line).to_owned()
        })
        .collect()
}

/// 404 for something that is not there.
pub(super) fn missing(state: &Snapshot, what: &str) -> Response {
    let frame = Frame::new("Not found", "", state);
    let text = format!("{what} is not there, or not any more.");
    message(StatusCode::NOT_FOUND, frame, vec![text], None)
}
