//! GET of one object and of lists.

use std::sync::Arc;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use serde_json::{Value, json};

use super::exchange::Exchange;
use super::output::Shape;
use crate::core::error::{ApiError, Cause, Reason};
use crate::core::object::Object;
use crate::core::request::Selection;
use crate::core::selector::{FieldSelector, LabelSelector};
use crate::core::view::{ObjectKey, View};

/// GET of one object.
pub(super) fn get(exchange: &Exchange) -> Result<Response, ApiError> {
    let name = exchange.target.name.as_deref().unwrap_or_default();
    if !matches!(
        exchange.target.subresource.as_deref(),
        None | Some("status")
    ) {
        return Err(crate::core::store::method_not_allowed());
    }
    let namespace = exchange.target.namespace.as_deref().unwrap_or_default();
    let kind = exchange.form.key();
    let found = exchange
        .app
        .hub
        .with(|view| view.get(&kind, namespace, name).cloned());
    let asked = &exchange.form.asked;
    let object = found.ok_or_else(|| ApiError::not_found(&asked.group, &asked.resource, name))?;
    if exchange.is_plain() {
        let text = object.json.to_string();
        return Ok((
            StatusCode::OK,
            [(header::CONTENT_TYPE, "application/json")],
            text,
        )
            .into_response());
    }
    exchange.encode(StatusCode::OK, &exchange.shaped(&object)?)
}

/// GET of a list.
pub(super) fn list(exchange: &Exchange) -> Result<Response, ApiError> {
    let selection = exchange.selection()?;
    let limit = exchange.query.number("limit")?.filter(|limit| *limit > 0);
    let limit = limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let token = exchange
        .query
        .get("continue")
        .filter(|token| !token.is_empty());
    let token = token.map(Continue::parse).transpose()?;
    let kind = exchange.form.key();
    let page = exchange.app.hub.with(|view| {
        check_revision(exchange, view)?;
        Ok(Page::read(view, &kind, &selection, token.as_ref(), limit))
    })?;
    let mut metadata = json!({"resourceVersion": page.revision.to_string()});
    if let Some(next) = &page.next {
        metadata["continue"] = Value::from(next.encode());
        if selection.labels.is_empty() && selection.fields == FieldSelector::default() {
            metadata["remainingItemCount"] = Value::from(page.remaining);
        }
    }
    if exchange.is_plain() {
        let text = plain_list(exchange, &page.objects, &metadata);
        return Ok((
            StatusCode::OK,
            [(header::CONTENT_TYPE, "application/json")],
            text,
        )
            .into_response());
    }
    let objects: Vec<&Object> = page.objects.iter().map(AsRef::as_ref).collect();
    exchange.encode(StatusCode::OK, &exchange.shaped_list(&objects, &metadata)?)
}

/// A list from the texts the objects already have.
fn plain_list(exchange: &Exchange, objects: &[Arc<Object>], metadata: &Value) -> String {
    let bytes: usize = objects.iter().map(|object| object.json.len() + 1).sum();
    let mut text = String::with_capacity(bytes + 256);
    let kind = Value::from(exchange.form.asked.list_kind.as_str());
    let api_version = Value::from(exchange.form.api_version());
    text.push_str(&format!(
        "{{\"kind\":{kind},\"apiVersion\":{api_version},\"metadata\":{metadata},\"items\":["
    ));
    for (index, object) in objects.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str(&object.json);
    }
    text.push_str("]}");
    text
}

/// `resourceVersion` of a list: any state we have is new enough, but none from the future and no
/// old one exactly.
fn check_revision(exchange: &Exchange, view: &View) -> Result<(), ApiError> {
    let Some(revision) = exchange
        .query
        .number("resourceVersion")?
        .filter(|revision| *revision > 0)
    else {
        return Ok(());
    };
    if revision > view.revision {
        return Err(from_the_future(revision, view.revision));
    }
    let exact = exchange.query.get("resourceVersionMatch") == Some("Exact");
    if exact && revision != view.revision {
        return Err(ApiError::new(
            Reason::Expired,
            format!(
                "The resourceVersion for the provided list is too old: {revision} ({})",
                view.revision
            ),
        ));
    }
    Ok(())
}

/// 504 for a revision that has not been reached.
pub(super) fn from_the_future(wanted: u64, current: u64) -> ApiError {
    let message = format!("Too large resource version: {wanted}, current: {current}");
    let mut error = ApiError::new(Reason::Timeout, message.clone()).about("", "", "");
    if let Some(details) = &mut error.details {
        details.causes = vec![Cause {
            reason: "ResourceVersionTooLarge".to_owned(),
            message: "Too large resource version".to_owned(),
            field: String::new(),
        }];
    }
    error
}

struct Page {
    objects: Vec<Arc<Object>>,
    revision: u64,
    next: Option<Continue>,
    remaining: usize,
}

impl Page {
    fn read(
        view: &View,
        kind: &str,
        selection: &Selection,
        token: Option<&Continue>,
        limit: Option<usize>,
    ) -> Self {
        // All pages carry the revision of the first: a watch from there replays what changed in
        // between.
        let revision = token.map_or(view.revision, |token| token.revision);
        let after = token.map(|token| &token.after);
        let mut selected = view.select(kind, selection, after);
        let limit = limit.unwrap_or(usize::MAX);
        let (mut objects, mut last): (Vec<Arc<Object>>, Option<ObjectKey>) = (Vec::new(), None);
        for (place, object) in selected.by_ref().take(limit) {
            objects.push(Arc::clone(object));
            last = Some(place.clone());
        }
        let remaining = if objects.len() < limit {
            0
        } else {
            selected.count()
        };
        let next = last
            .filter(|_| remaining > 0)
            .map(|after| Continue { revision, after });
        Self {
            objects,
            revision,
            next,
            remaining,
        }
    }
}

/// Where the next page starts.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Continue {
    revision: u64,
    after: ObjectKey,
}

impl Continue {
    fn encode(&self) -> String {
        let text =
            json!({"rv": self.revision, "ns": self.after.0, "name": self.after.1}).to_string();
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text)
    }

    fn parse(token: &str) -> Result<Self, ApiError> {
        let read = || {
            let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD
                .decode(token)
                .ok()?;
            let value: Value = serde_json::from_slice(&bytes).ok()?;
            let text = |name: &str| value[name].as_str().map(str::to_owned);
            Some(Self {
                revision: value["rv"].as_u64()?,
                after: (text("ns")?, text("name")?),
            })
        };
        read().ok_or_else(|| ApiError::bad_request("continue key is not valid"))
    }
}

impl Exchange {
    /// Whether objects are answered just as they are kept.
    fn is_plain(&self) -> bool {
        self.output.shape == Shape::Object && !self.output.yaml && self.form.is_stored_form()
    }

    /// The selectors of a list, watch or deletecollection.
    pub(super) fn selection(&self) -> Result<Selection, ApiError> {
        let bad =
            |error: crate::core::selector::SelectorError| ApiError::bad_request(error.to_string());
        let labels = LabelSelector::parse(self.query.get("labelSelector").unwrap_or_default())
            .map_err(bad)?;
        let fields = self.query.get("fieldSelector").unwrap_or_default();
        let stored = self.form.stored.storage_version();
        let fields = self.form.stored_fields(fields);
        let supported = |path: &str| {
            matches!(path, "metadata.name" | "metadata.namespace")
                || stored.selectable.contains(path)
        };
        let fields = FieldSelector::parse(&fields, supported).map_err(bad)?;
        Ok(Selection {
            namespace: self.target.namespace.clone(),
            labels,
            fields,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_back() {
        let token = Continue {
            revision: 7,
            after: ("ns".to_owned(), "n".to_owned()),
        };
        assert_eq!(Continue::parse(&token.encode()), Ok(token));
        assert!(Continue::parse("junk").is_err());
    }
}
