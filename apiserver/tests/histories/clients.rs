//! Clients that use a server and write down what they see.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use rand::Rng as _;
use serde_json::{Value, json};

use super::history::{
    Event, Instant, Key, Kind, List, Operation, OperationRecord, Outcome, Token, Uid, Version,
    Watch,
};
use super::server::Server;
use crate::support;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Label of the objects of the history.
const LABEL: &str = "history=yes";
/// How long a call is waited for: longer than any fault.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause of a client whose server is away.
const PAUSE: Duration = Duration::from_millis(10);

/// What a client believes of a name.
#[derive(Debug, Clone, Copy)]
enum Belief {
    Is(u64),
    Absent,
}

/// What all clients share.
pub(crate) struct World {
    pub(crate) server: Arc<dyn Server>,
    client: reqwest::Client,
    token: String,
    began: std::time::Instant,
    tokens: AtomicU64,
    /// Calls so far.
    pub(crate) calls: AtomicU64,
    pub(crate) is_over: AtomicBool,
}

impl World {
    pub(crate) fn new(server: Arc<dyn Server>) -> Self {
        let token = std::fs::read_to_string(server.dir().join("pki/token")).expect("a token");
        Self {
            client: support::client(&server.dir().join("pki/ca.crt")),
            token: token.trim().to_owned(),
            server,
            began: std::time::Instant::now(),
            tokens: AtomicU64::new(1),
            calls: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        }
    }

    fn now(&self) -> Instant {
        u64::try_from(self.began.elapsed().as_micros()).expect("short")
    }

    /// A value that no other write has.
    pub(crate) fn token(&self) -> Token {
        self.tokens.fetch_add(1, Ordering::SeqCst)
    }

    fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let url = format!("{}{path}", self.server.base());
        let method = method.parse().expect("a method");
        self.client.request(method, url).bearer_auth(&self.token)
    }

    async fn ask(&self, request: reqwest::RequestBuilder) -> Option<(u16, Value)> {
        let answer = request.timeout(PATIENCE).send().await.ok()?;
        Some((answer.status().as_u16(), answer.json().await.ok()?))
    }

    /// Random calls on random objects until all calls are made.
    pub(crate) async fn use_it(&self, keys: usize, most: u64) -> (Vec<OperationRecord>, Vec<List>) {
        let (mut calls, mut lists) = (Vec::new(), Vec::new());
        let mut known: BTreeMap<Key, Belief> = BTreeMap::new();
        while self.calls.fetch_add(1, Ordering::SeqCst) < most {
            let key = rand::rng().random_range(0..keys);
            let Some(asked) = self.any(known.get(&key)) else {
                lists.extend(self.list().await);
                continue;
            };
            let call = self.call(key, asked).await;
            match call.answer {
                Outcome::Is(version) => {
                    known.insert(key, Belief::Is(version.revision));
                }
                Outcome::Removed(_) | Outcome::Absent => {
                    known.insert(key, Belief::Absent);
                }
                Outcome::Exists | Outcome::Conflict => {
                    known.remove(&key);
                }
                Outcome::Refused => {}
                Outcome::Lost => tokio::time::sleep(PAUSE).await,
            }
            calls.push(call);
        }
        (calls, lists)
    }

    /// A call for what a client believes, or `None` for a list.
    fn any(&self, belief: Option<&Belief>) -> Option<Operation> {
        let asked = match (rand::rng().random_range(0..20), belief) {
            (0, _) => return None,
            (1..=10, Some(Belief::Absent)) => Operation::Create(self.token()),
            (1..=7, _) => Operation::Get,
            (8..=13, Some(Belief::Is(revision))) => Operation::Replace(self.token(), *revision),
            (14, Some(Belief::Is(revision))) => Operation::Remove(Some(*revision)),
            (15, _) => Operation::Remove(None),
            (16, _) => Operation::Create(self.token()),
            (17.., _) => Operation::Patch(self.token()),
            _ => Operation::Get,
        };
        Some(asked)
    }

    /// Makes a call, and writes down what came of it.
    pub(crate) async fn call(&self, key: Key, asked: Operation) -> OperationRecord {
        let path = format!("{MAPS}/o{key}");
        let began = self.now();
        let request = match asked {
            Operation::Get => self.request("GET", &path),
            Operation::Create(token) => self.request("POST", MAPS).json(&body(key, token, None)),
            Operation::Replace(token, revision) => {
                self.request("PUT", &path)
                    .json(&body(key, token, Some(revision)))
            }
            Operation::Patch(token) => {
                let patch = json!({"data": {"token": token.to_string()}}).to_string();
                let request = self.request("PATCH", &path).body(patch);
                request.header("content-type", "application/merge-patch+json")
            }
            Operation::Remove(None) => self.request("DELETE", &path),
            Operation::Remove(Some(revision)) => {
                let preconditions = json!({"resourceVersion": revision.to_string()});
                self.request("DELETE", &path)
                    .json(&json!({"preconditions": preconditions}))
            }
        };
        let answer = self.ask(request).await;
        OperationRecord {
            key,
            asked,
            answer: answered(asked, answer),
            began,
            ended: self.now(),
        }
    }

    pub(crate) async fn list(&self) -> Option<List> {
        let began = self.now();
        let request = self.request("GET", &format!("{MAPS}?labelSelector={LABEL}"));
        let (_, list) = self.ask(request).await.filter(|(code, _)| *code == 200)?;
        let items = list["items"].as_array().expect("items");
        Some(List {
            revision: revision(&list)?,
            objects: items.iter().filter_map(version).collect(),
            began,
            ended: self.now(),
        })
    }

    /// Watches from lists on, until all is over. Each connection is a watch of its own.
    pub(crate) async fn watch(&self) -> Vec<Watch> {
        let mut watches = Vec::new();
        while !self.is_over.load(Ordering::SeqCst) {
            let Some(list) = self.list().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let events = Vec::new();
            let mut watch = Watch { list, events };
            self.follow(&mut watch).await;
            watches.push(watch);
        }
        watches
    }

    async fn follow(&self, watch: &mut Watch) {
        let path = format!(
            "{MAPS}?watch=true&labelSelector={LABEL}&resourceVersion={}",
            watch.list.revision
        );
        let Ok(answer) = self.request("GET", &path).send().await else {
            return;
        };
        if answer.status().as_u16() != 200 {
            return;
        }
        let (mut stream, mut rest) = (answer.bytes_stream(), Vec::new());
        while !self.is_over.load(Ordering::SeqCst) {
            match tokio::time::timeout(PAUSE * 20, stream.next()).await {
                Err(_) => continue,
                Ok(Some(Ok(bytes))) => rest.extend_from_slice(&bytes),
                Ok(_) => return,
            }
            while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=at).collect();
                let event: Value = serde_json::from_slice(&line).expect("an event");
                let kind = match event["type"].as_str() {
                    Some("ADDED") => Kind::Added,
                    Some("MODIFIED") => Kind::Modified,
                    Some("DELETED") => Kind::Deleted,
                    // The history from there is no longer held, or the watcher was too slow.
                    Some("ERROR") => return,
                    other => {
                        assert_eq!(other, Some("BOOKMARK"), "{event}");
                        continue;
                    }
                };
                let of = |(key, version)| Event { kind, key, version };
                watch.events.extend(version(&event["object"]).map(of));
            }
        }
    }
}

fn answered(asked: Operation, answer: Option<(u16, Value)>) -> Outcome {
    match (asked, answer) {
        // What went wrong inside may have happened.
        (_, None | Some((500, _))) => Outcome::Lost,
        (Operation::Remove(_), Some((200, status))) => {
            Outcome::Removed(uid(&status["details"]["uid"]).expect("the uid of what is gone"))
        }
        (_, Some((200 | 201, object))) => Outcome::Is(version(&object).expect("an object").1),
        (_, Some((404, _))) => Outcome::Absent,
        (Operation::Create(_), Some((409, _))) => Outcome::Exists,
        (_, Some((409, _))) => Outcome::Conflict,
        (_, Some((507, _))) => Outcome::Refused,
        (_, Some((code, status))) => panic!("{asked:?}: {code} {status}"),
    }
}

fn body(key: Key, token: Token, revision: Option<u64>) -> Value {
    let mut body = json!({
        "metadata": {"name": format!("o{key}"), "labels": {"history": "yes"}},
        "data": {"token": token.to_string()},
    });
    if let Some(revision) = revision {
        body["metadata"]["resourceVersion"] = revision.to_string().into();
    }
    body
}

fn revision(object: &Value) -> Option<u64> {
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

/// A uid without its hyphens, as the number that it is.
fn uid(text: &Value) -> Option<Uid> {
    Uid::from_str_radix(&text.as_str()?.replace('-', ""), 16).ok()
}

fn version(object: &Value) -> Option<(Key, Version)> {
    let name = object["metadata"]["name"].as_str()?;
    let key = name.strip_prefix('o')?.parse().ok()?;
    let token = object["data"]["token"].as_str()?.parse().ok()?;
    let version = Version {
        revision: revision(object)?,
        token,
        uid: uid(&object["metadata"]["uid"])?,
    };
    Some((key, version))
}
