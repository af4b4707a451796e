//! What holds for any request, as bodies for the coverage-guided fuzzer of `fuzz/` and for the
//! property tests beside them.
//!
//! | body | reads |
//! |---|---|
//! | [`api_body`] | JSON, YAML and protobuf bodies |
//! | [`api_patch`] | the three patches of a document |
//! | [`api_query`] | paths, query strings and selectors |
//! | [`api_requests`] | writes to a store with the built-in kinds |

#![expect(
    clippy::missing_panics_doc,
    reason = "to panic is what these are for: a panic is a finding"
)]

use serde_json::Value;

use crate::core::body;
use crate::core::error::ApiError;
use crate::core::patch::{self, PatchError};
use crate::core::request::{DeleteOptions, Query, Target, WriteOptions, segments};
use crate::core::schema::Schema;
use crate::core::selector::{FieldSelector, LabelSelector};
use crate::kinds;

mod requests;

pub use requests::api_requests;

/// Most that a value may have of the bytes it was read from, as JSON. Aliases of YAML repeat what
/// they name.
const MAX_BODY_FACTOR: usize = 64;
/// What a value may have beyond that, bytes: a short body may repeat a short text many times.
const BODY_MARGIN_BYTES: usize = 4 << 10;
/// Field paths that selectors may name here.
const FIELDS: [&str; 3] = ["metadata.name", "metadata.namespace", "spec.nodeName"];

/// A request body. The first byte says in which form it is read. What is read can be stored: it
/// prints as JSON, and that text reads as the same value.
pub fn api_body(data: &[u8]) {
    let Some((form, bytes)) = data.split_first() else {
        return;
    };
    let read = match form % 3 {
        0 => body::parse(bytes, false),
        1 => body::parse(bytes, true),
        _ => protobuf(bytes),
    };
    match read {
        Ok(value) => {
            let text = reads_again(&value);
            let bound = bytes.len() * MAX_BODY_FACTOR + BODY_MARGIN_BYTES;
            assert!(
                text.len() <= bound,
                "{} bytes of {}",
                text.len(),
                bytes.len()
            );
        }
        Err(error) => is_refusal(&error),
    }
}

fn protobuf(bytes: &[u8]) -> Result<Value, ApiError> {
    thread_local! {
        static MESSAGES: crate::core::protobuf::Messages = kinds::protobuf().expect("documents are sound");
    }
    let enveloped = [b"k8s\0", bytes].concat();
    MESSAGES.with(|messages| {
        let read = messages.decode(&enveloped);
        read.map_err(|error| ApiError::bad_request(error.to_string()))
    })
}

/// A patch of a document: a byte for its kind, then both as JSON, a line each. A patch that applies
/// leaves a document that can be stored. A merge patch leaves the same document when it is applied
/// again.
pub fn api_patch(data: &[u8]) {
    let Some((kind, text)) = data.split_first() else {
        return;
    };
    let Some(at) = text.iter().position(|byte| *byte == b'\n') else {
        return;
    };
    let (document, patch) = (&text[..at], &text[at + 1..]);
    let (Ok(mut document), Ok(patch)) = (body::parse(document, false), body::parse(patch, false))
    else {
        return;
    };
    let applied = match kind % 3 {
        0 => patch::json::apply(&mut document, &patch),
        1 => {
            patch::merge::apply(&mut document, &patch);
            let once = document.clone();
            patch::merge::apply(&mut document, &patch);
            assert_eq!(document, once, "merged twice");
            Ok(())
        }
        _ => strategic(&mut document, &patch),
    };
    match applied {
        Ok(()) => drop(reads_again(&document)),
        Err(error) => assert!(!error.to_string().is_empty(), "{error:?}"),
    }
}

/// The patch as kind Pod takes it, whose schema merges lists.
fn strategic(document: &mut Value, patch: &Value) -> Result<(), PatchError> {
    thread_local! {
        static SCHEMA: std::sync::Arc<Schema> = {
            let registry = kinds::builtin().expect("documents are sound");
            let pods = registry.kind("", "pods").expect("a built-in kind");
            std::sync::Arc::clone(&pods.storage_version().schema)
        };
    }
    SCHEMA.with(|schema| patch::strategic::apply(document, patch, schema))
}

/// The head of a request: a line each for the path, the query and the user agent. A path that names
/// something can be written from what it names. A selector prints as a text that reads as the same
/// selector. A refusal names the parameter.
pub fn api_query(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.splitn(3, '\n');
    let mut line = || lines.next().unwrap_or_default();
    path(line());
    let query = Query::parse(line());
    match WriteOptions::parse(&query, line()) {
        Ok(options) => {
            let length = options.manager.chars().count();
            assert!((1..=128).contains(&length), "{options:?}");
        }
        Err(error) => names_one(
            &error,
            &["dryRun", "fieldValidation", "fieldManager", "force"],
        ),
    }
    if let Err(error) = DeleteOptions::parse(&Value::Null, &query) {
        let names = [
            "gracePeriodSeconds",
            "propagationPolicy",
            "orphanDependents",
        ];
        names_one(&error, &names);
    }
    for name in ["watch", "limit"] {
        let refused = [query.flag(name).err(), query.number(name).err()];
        refused
            .into_iter()
            .flatten()
            .for_each(|error| names_one(&error, &[name]));
    }
    if let Ok(labels) = LabelSelector::parse(query.get("labelSelector").unwrap_or_default()) {
        assert_eq!(LabelSelector::parse(&labels.to_string()), Ok(labels));
    }
    let fields = |text: &str| FieldSelector::parse(text, |path| FIELDS.contains(&path));
    if let Ok(selector) = fields(query.get("fieldSelector").unwrap_or_default()) {
        assert_eq!(fields(&selector.to_string()), Ok(selector));
    }
}

fn path(text: &str) {
    let Ok(names) = segments(text) else { return };
    let Some(target) = Target::parse("", "v1", &names) else {
        return;
    };
    let mut again = Vec::new();
    if let Some(namespace) = &target.namespace {
        again.extend(["namespaces".to_owned(), namespace.clone()]);
    }
    again.push(target.resource.clone());
    again.extend(target.name.clone());
    again.extend(target.subresource.clone());
    assert_eq!(Target::parse("", "v1", &again), Some(target));
}

/// The value as it would be stored, read back.
fn reads_again(value: &Value) -> String {
    let text = value.to_string();
    match serde_json::from_str::<Value>(&text) {
        Ok(read) => assert_eq!(&read, value, "{text}"),
        Err(error) => panic!("{error}: {text}"),
    }
    text
}

/// The request is refused for what it is, and says why.
fn is_refusal(error: &ApiError) {
    assert!((400..500).contains(&error.code()), "{error:?}");
    assert!(!error.message.is_empty(), "{error:?}");
    let causes = error.details.iter().flat_map(|details| &details.causes);
    for cause in causes {
        assert!(!cause.field.is_empty(), "{error:?}");
    }
}

fn names_one(error: &ApiError, names: &[&str]) {
    is_refusal(error);
    assert!(
        names.iter().any(|name| error.message.contains(name)),
        "{error:?}"
    );
}

#[cfg(test)]
mod tests;
