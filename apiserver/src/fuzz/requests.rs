//! Writes to a store, one after another.

use std::cell::RefCell;

use serde_json::{Value, json};

use super::is_refusal;
use crate::core::body;
use crate::core::object::Object;
use crate::core::request::{DeleteOptions, PatchKind, Query, Target, Verb, WriteOptions, segments};
use crate::core::store::{Store, WriteRequest};
use crate::core::time::WallTime;
use crate::core::view::Change;
use crate::kinds;

/// Between one request and the next.
const BETWEEN: &str = "\n==\n";
/// Most requests of one input.
const MAX_REQUESTS: usize = 16;
/// Most that an object may have of what its request and its state before had, as JSON: what was
/// defaulted, and each member once more in `managedFields`.
const MAX_GROWTH_FACTOR: usize = 16;
/// What an object may have beyond that, bytes: what the server adds to the smallest one.
const GROWTH_MARGIN_BYTES: usize = 8 << 10;
const NOW: WallTime = WallTime(1_700_000_000_000_000);

/// Requests to a store with the built-in kinds, each as `METHOD PATH?QUERY` and its body in the
/// lines after. `APPLY`, `JSON`, `MERGE` and `STRATEGIC` stand for the patches. Each change can be
/// read back from the file and has the next revision, a refusal says why and changes nothing, and
/// all changes can be taken back.
pub fn api_requests(data: &[u8]) {
    thread_local! {
        static STORE: RefCell<Store> = RefCell::new(empty());
    }
    let text = String::from_utf8_lossy(data);
    STORE.with_borrow_mut(|store| {
        let before = seen(store);
        let mut made = Vec::new();
        for request in text.split(BETWEEN).take(MAX_REQUESTS) {
            made.extend(answered(store, request));
        }
        store.rollback(made);
        assert_eq!(seen(store), before, "{text}");
    });
}

/// The built-in kinds, and namespace `default`.
fn empty() -> Store {
    let mut store = Store::new(kinds::builtin().expect("documents are sound"), 0);
    let body = json!({"metadata": {"name": "default"}});
    let call = call(
        "/api/v1/namespaces",
        Verb::Create(body),
        WriteOptions::default(),
    );
    store.apply(call.expect("a path")).expect("created");
    store
}

fn seen(store: &Store) -> (u64, usize, usize) {
    let view = store.view();
    (view.revision, view.total(), view.registry.kinds().count())
}

/// The changes of a request, each checked.
fn answered(store: &mut Store, request: &str) -> Vec<Change> {
    let (head, body) = request.split_once('\n').unwrap_or((request, ""));
    let (method, url) = head.split_once(' ').unwrap_or((head, ""));
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    let query = Query::parse(query);
    let Ok(options) = WriteOptions::parse(&query, "fuzz/1") else {
        return Vec::new();
    };
    let Ok(verb) = verb(method, body, &query) else {
        return Vec::new();
    };
    let Some(call) = call(path, verb, options) else {
        return Vec::new();
    };
    let before = seen(store);
    match store.apply(call) {
        Ok((_, changes)) => {
            for (number, change) in (1..).zip(&changes) {
                assert_eq!(change.after.revision, before.0 + number, "{request}");
                check(change, request);
            }
            changes
        }
        Err(refusal) => {
            is_refusal(&refusal);
            assert_eq!(seen(store), before, "refused: {request}");
            Vec::new()
        }
    }
}

fn call(path: &str, verb: Verb, options: WriteOptions) -> Option<WriteRequest> {
    let names = segments(path).ok()?;
    let (group, version, rest) = match names.as_slice() {
        [api, version, rest @ ..] if api == "api" => ("", version, rest),
        [apis, group, version, rest @ ..] if apis == "apis" => (group.as_str(), version, rest),
        _ => return None,
    };
    Some(WriteRequest {
        now: NOW,
        seed: 7,
        target: Target::parse(group, version, rest)?,
        verb,
        options,
    })
}

fn verb(method: &str, text: &str, query: &Query) -> Result<Verb, ()> {
    let value = match text {
        "" => Value::Null,
        text => body::parse(text.as_bytes(), true).map_err(drop)?,
    };
    Ok(match method {
        "POST" => Verb::Create(value),
        "BIND" => Verb::Bind(value),
        "PUT" => Verb::Update(value),
        "JSON" => Verb::Patch(PatchKind::Json, value),
        "MERGE" => Verb::Patch(PatchKind::Merge, value),
        "STRATEGIC" => Verb::Patch(PatchKind::Strategic, value),
        "APPLY" => Verb::Patch(PatchKind::Apply, value),
        "DELETE" => Verb::Delete(DeleteOptions::parse(&value, query).map_err(drop)?),
        _ => return Err(()),
    })
}

fn check(change: &Change, request: &str) {
    let text = &change.after.json;
    match Object::from_stored(text) {
        Ok(read) => assert_eq!(read.value, change.after.value, "{text}"),
        Err(why) => panic!("cannot be read back: {why}: {text}"),
    }
    let before = change.before.as_ref().map_or(0, |before| before.json.len());
    let bound = (before + request.len()) * MAX_GROWTH_FACTOR + GROWTH_MARGIN_BYTES;
    assert!(text.len() <= bound, "{} bytes: {text}", text.len());
}
