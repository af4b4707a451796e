//! Watches: a stream of JSON lines, one per change.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures::stream;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::exchange::Exchange;
use super::output::Shape;
use super::read::from_the_future;
use crate::core::error::{ApiError, Reason};
use crate::core::object::Object;
use crate::core::request::{Query, Selection};
use crate::core::table;
use crate::core::view::Change;
use crate::shell::hub::{Notice, Watch, WatchRefused};

/// Length of a watch whose client does not say; the real server picks 30 to 60 minutes.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(45 * 60);
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// What a watch's query asks.
struct Wanted {
    bookmarks: bool,
    /// Mark the end of the initial objects.
    mark_end: bool,
    /// Revision to go on from; `None` = the current state first, then what follows.
    since: Option<u64>,
    timeout: Duration,
}

impl Wanted {
    fn parse(query: &Query) -> Result<Self, ApiError> {
        let mark_end = query.flag("sendInitialEvents")?;
        if mark_end && query.get("resourceVersionMatch") != Some("NotOlderThan") {
            return Err(ApiError::unprocessable(
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ));
        }
        let revision = query
            .number("resourceVersion")?
            .filter(|revision| *revision > 0);
        let timeout = query
            .number("timeoutSeconds")?
            .filter(|seconds| *seconds > 0);
        let timeout = timeout.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
        Ok(Self {
            bookmarks: query.flag("allowWatchBookmarks")?,
            mark_end,
            since: revision.filter(|_| !mark_end),
            timeout: timeout.min(MAX_TIMEOUT),
        })
    }
}

/// Starts a watch.
pub(super) fn start(exchange: &Exchange) -> Result<Response, ApiError> {
    let selection = exchange.selection()?;
    let wanted = Wanted::parse(&exchange.query)?;
    let kind = exchange.form.key();
    let started = exchange
        .app
        .hub
        .watch(&kind, wanted.since, |view| match wanted.since {
            Some(_) => Vec::new(),
            None => {
                let selected = view.select(&kind, &selection, None);
                selected.map(|(_, object)| Arc::clone(object)).collect()
            }
        });
    let asked = wanted.since.unwrap_or(0);
    let (watch, initial) = match started {
        Ok(started) => started,
        Err(WatchRefused::Gone(floor)) => return Ok(gone(asked, floor)),
        Err(WatchRefused::Future(current)) => return Err(from_the_future(asked, current)),
        Err(WatchRefused::TooMany) => {
            let why = "too many watches are running";
            return Err(ApiError::new(Reason::InternalError, why));
        }
    };
    let mut writer = LineWriter {
        exchange: exchange.clone_for_stream(),
        selection,
        bookmarks: wanted.bookmarks,
        has_columns: false,
    };
    let first = writer.first(&watch, &initial, wanted.mark_end)?;
    let end = Instant::now() + wanted.timeout;
    let state = Running {
        first: Some(first),
        live: watch.live,
        writer,
        end,
    };
    let lines = stream::unfold(state, |mut state| async move {
        let bytes = state.next().await?;
        Some((Ok::<Bytes, std::convert::Infallible>(bytes), state))
    });
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-cache, private"),
    ];
    Ok((StatusCode::OK, headers, Body::from_stream(lines)).into_response())
}

/// A watch that ends at once with the reason: clients list again then.
fn gone(asked: u64, floor: u64) -> Response {
    let why = format!("too old resource version: {asked} ({floor})");
    let status = ApiError::new(Reason::Expired, why).to_status();
    let line = format!("{}\n", json!({"type": "ERROR", "object": status}));
    (
        StatusCode::OK,
        [(header::CONTENT_TYPE, "application/json")],
        line,
    )
        .into_response()
}

struct Running {
    first: Option<Vec<u8>>,
    live: tokio::sync::mpsc::Receiver<Notice>,
    writer: LineWriter,
    end: Instant,
}

impl Running {
    /// The next lines, as many as are ready; `None` at the end of the watch.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            // Also an empty one: it makes the response's head leave at once.
            return Some(first.into());
        }
        loop {
            let notice = tokio::select! {
                biased;
                () = self.writer.exchange.app.cancel.cancelled() => return None,
                notice = self.live.recv() => notice?,
                () = tokio::time::sleep_until(self.end) => return None,
            };
            let mut lines = Vec::new();
            self.writer.notice(&notice, &mut lines);
            while let Ok(notice) = self.live.try_recv() {
                self.writer.notice(&notice, &mut lines);
            }
            if !lines.is_empty() {
                return Some(lines.into());
            }
        }
    }
}

/// Writes changes as lines in the client's form.
struct LineWriter {
    exchange: Exchange,
    selection: Selection,
    bookmarks: bool,
    /// Column definitions have been sent; later events leave them out.
    has_columns: bool,
}

impl LineWriter {
    fn first(
        &mut self,
        watch: &Watch,
        initial: &[Arc<Object>],
        end_of_list: bool,
    ) -> Result<Vec<u8>, ApiError> {
        // Asked here so that a bad value is refused before the stream starts.
        self.exchange.include_object()?;
        let mut lines = Vec::new();
        for object in initial {
            self.line("ADDED", object, &mut lines);
        }
        for change in &watch.backlog {
            self.change(change, &mut lines);
        }
        if end_of_list {
            let note = json!({"k8s.io/initial-events-end": "true"});
            self.bookmark(watch.revision, Some(note), &mut lines);
        }
        Ok(lines)
    }

    fn notice(&mut self, notice: &Notice, lines: &mut Vec<u8>) {
        match notice {
            Notice::Change(change) => self.change(change, lines),
            Notice::Bookmark(revision) if self.bookmarks => self.bookmark(*revision, None, lines),
            Notice::Bookmark(_) => {}
        }
    }

    /// An object that comes to match a selector is new to the watcher, one that no longer does is
    /// gone for it.
    fn change(&mut self, change: &Change, lines: &mut Vec<u8>) {
        let namespace = &change.place.0;
        let matches = |object: &Object| self.selection.matches_in(namespace, &object.value);
        let before = change.before.as_deref().filter(|before| matches(before));
        let is_match = !change.removed && matches(&change.after);
        match (before, is_match) {
            (None, false) => {}
            (None, true) => self.line("ADDED", &change.after, lines),
            (Some(_), true) => self.line("MODIFIED", &change.after, lines),
            (Some(_), false) if change.removed => self.line("DELETED", &change.after, lines),
            (Some(before), false) => {
                let last = Object::new(before.value.clone(), change.after.revision);
                self.line("DELETED", &last, lines);
            }
        }
    }

    fn line(&mut self, event: &str, object: &Object, lines: &mut Vec<u8>) {
        lines.extend_from_slice(b"{\"type\":\"");
        lines.extend_from_slice(event.as_bytes());
        lines.extend_from_slice(b"\",\"object\":");
        if self.exchange.output.shape == Shape::Object && self.exchange.form.is_stored_form() {
            lines.extend_from_slice(object.json.as_bytes());
        } else {
            let mut value = self.exchange.shaped(object).unwrap_or(Value::Null);
            self.once_columns(&mut value);
            lines.extend_from_slice(value.to_string().as_bytes());
        }
        lines.extend_from_slice(b"}\n");
    }

    fn once_columns(&mut self, value: &mut Value) {
        if self.exchange.output.shape == Shape::Table {
            if self.has_columns {
                value["columnDefinitions"] = Value::Null;
            }
            self.has_columns = true;
        }
    }

    fn bookmark(&mut self, revision: u64, annotations: Option<Value>, lines: &mut Vec<u8>) {
        let mut metadata =
            json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if let Some(annotations) = annotations {
            metadata["annotations"] = annotations;
        }
        let form = &self.exchange.form;
        let object = match self.exchange.output.shape {
            Shape::Table => json!({
                "kind": "Table",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": {"resourceVersion": revision.to_string()},
                "columnDefinitions": if self.has_columns { Value::Null } else { table::definitions(self.exchange.columns()) },
                "rows": [{"cells": [], "object": table::partial(&json!({"metadata": metadata}))}],
            }),
            Shape::Metadata => table::partial(&json!({"metadata": metadata})),
            Shape::Object => {
                json!({"kind": form.asked.kind, "apiVersion": form.api_version(), "metadata": metadata})
            }
        };
        let event = json!({"type": "BOOKMARK", "object": object});
        lines.extend_from_slice(event.to_string().as_bytes());
        lines.push(b'\n');
    }
}

impl Exchange {
    fn clone_for_stream(&self) -> Self {
        Self {
            app: Arc::clone(&self.app),
            target: self.target.clone(),
            form: self.form.clone(),
            query: self.query.clone(),
            agent: String::new(),
            output: self.output,
        }
    }
}
