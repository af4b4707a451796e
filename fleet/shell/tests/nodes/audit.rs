//! Compares the journal of a driver with what it did to the API's objects.

use std::collections::BTreeMap;
use std::path::Path;

use daemon_kit::clock::Clock;
use daemon_kit::journal::{ActionChain, Identity, Journal, Limits, files};
use protocol::journal::{Action, Record, scan};
use protocol::units::Resources;
use serde_json::Value;
use test_api::{Call, TestApi};

/// Kinds of lines about objects. The others are orders, or about channels.
const OF_OBJECTS: [&str; 6] = ["lock", "create", "state", "gate", "turn", "end"];

pub(super) fn open(folder: &Path) -> Journal {
    let identity = Identity {
        part: "fleet".into(),
        node: "n".into(),
        build: "test".into(),
        compute_unit: Resources::default(),
        run: 1,
    };
    let journal = Journal::open(
        folder,
        identity,
        Limits::default(),
        Clock::new(),
        Vec::new(),
    );
    journal.expect("a journal")
}

/// Lines of a closed journal.
fn lines(folder: &Path) -> Vec<Action> {
    let mut all = Vec::new();
    for file in files::list(folder).expect("files") {
        let found = scan(&files::read(&file.path).expect("bytes"));
        assert!(found.is_good(), "{:?}", found.damages);
        let records = found.lines.into_iter().filter_map(|line| line.record.ok());
        all.extend(records.filter_map(|record| match record {
            Record::Action(action) => Some(action),
            _ => None,
        }));
    }
    all
}

/// Whether a deployment has ended and the lock is free, by the lines of an open journal.
pub(super) fn has_end(folder: &Path, deployment: &str) -> bool {
    let lines = lines(folder);
    let mut later = lines.iter().skip_while(|line| {
        let on = line.on.as_deref().unwrap_or_default();
        let is_end = on.ends_with(deployment) && line.to.as_deref() == Some("Complete");
        !is_end
    });
    later.any(|line| line.what == "fleet lock" && line.to.as_deref() == Some("free"))
}

/// Values of objects that decisions are about, as calls left them.
#[derive(Default)]
struct Known(BTreeMap<(&'static str, String), String>);

impl Known {
    /// Whether a decision gave an object another value. Values of objects begin empty.
    fn is_new(&mut self, kind: &'static str, on: &str, value: String) -> bool {
        let before = self.0.insert((kind, on.to_owned()), value.clone());
        before.unwrap_or_default() != value
    }
}

/// Decisions that the calls of a driver carry, each with its object.
fn decisions(calls: &[Call]) -> BTreeMap<(String, String), usize> {
    let mut known = Known::default();
    let mut found = BTreeMap::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for call in calls.iter().filter(|call| call.is_done()) {
        let (verb, path) = call.line.split_once(' ').expect("a verb and a path");
        let body = call.json();
        let status = &body["status"];
        let metadata = &body["metadata"];
        let on = format!(
            "{}/{}",
            text(&metadata["namespace"]),
            text(&metadata["name"])
        );
        let is_status = path.ends_with("/status");
        let mut values = Vec::new();
        if path.contains("/fleetenvironments/") && is_status {
            values.push(("lock", text(&status["lock"]["deployment"])));
        } else if path.contains("/fleetdeployments/") && is_status {
            values.push(("state", text(&status["state"])));
            values.push(("gate", text(&status["blockedBy"]["gate"])));
        } else if path.ends_with("/fleetdeployments") && verb == "POST" {
            values.push(("create", text(&body["spec"]["revision"])));
        } else if path.contains("/fleetinstances") && is_status {
            values.push(("end", text(&status["parts"]["agent"]["last"]["token"])));
        } else if path.contains("/fleetinstances") && verb != "GET" {
            values.push(("turn", text(&body["spec"]["parts"]["agent"]["token"])));
        }
        for (kind, value) in values {
            let opens = kind == "gate" && value.is_empty();
            if known.is_new(kind, &on, value) && !opens {
                *found.entry((kind.to_owned(), on.clone())).or_default() += 1;
            }
        }
    }
    found
}

/// Each decision that is in a call is one line, and the other way round.
pub(super) fn compare(api: &TestApi, folder: &Path) {
    let lines = lines(folder);
    let mut chain = ActionChain::of_new_run();
    assert!(lines.iter().all(|line| chain.follows(line)), "a chain");
    let kind = |line: &Action| line.what.trim_start_matches("fleet ").to_owned();
    let done = lines.iter().filter(|line| line.ok == Some(true));
    let mut written: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut orders: BTreeMap<String, usize> = BTreeMap::new();
    for line in done {
        let kind = kind(line);
        if OF_OBJECTS.contains(&kind.as_str()) {
            let on = line.on.clone().unwrap_or_default();
            *written.entry((kind, on)).or_default() += 1;
        } else {
            *orders.entry(kind).or_default() += 1;
        }
    }
    let calls = api.calls();
    assert_eq!(written, decisions(&calls));
    for kind in ["turn", "end", "create", "state", "lock"] {
        assert!(written.keys().any(|(one, _)| one == kind), "{kind}");
    }
    let is_deletion =
        |call: &&Call| call.line.starts_with("DELETE ") && call.line.contains("/pods/");
    let deletions = calls.iter().filter(is_deletion);
    let deleted = deletions.filter(|call| call.is_done()).count();
    let order = |kind: &str| orders.get(kind).copied().unwrap_or_default();
    assert!(
        deleted > 0 && deleted <= order("try") + order("back"),
        "{deleted}: {orders:?}"
    );
    // An order that finds the image in the template already changes nothing.
    let replaces =
        |call: &&Call| call.line.starts_with("PUT ") && call.line.contains("/daemonsets/");
    assert!(calls.iter().any(|call| replaces(&call)) && order("push") > 0);
}
