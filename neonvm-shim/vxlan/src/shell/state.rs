//! State for the pages of the admin server.

use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde_json::{Value, json};

use crate::core::{Seen, Wanted};

/// Result of the last look.
#[derive(Debug, Clone, Default, Serialize)]
struct Snapshot {
    wanted: Option<Wanted>,
    seen: Option<Seen>,
    problem: Option<String>,
    nodes: usize,
    nodes_without_ipv4: usize,
}

/// State shared by the driver and the admin server.
#[derive(Debug, Clone, Default)]
pub struct StateHandle(Arc<Mutex<Snapshot>>);

impl StateHandle {
    fn with<T>(&self, take: impl FnOnce(&mut Snapshot) -> T) -> T {
        take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Complete state as JSON, for `/debug/state`.
    #[must_use]
    pub fn dump(&self) -> Value {
        self.with(|shown| json!(shown))
    }

    /// Whether the node is a part of the overlay.
    ///
    /// # Errors
    /// The reason why it is not.
    pub fn ready(&self) -> Result<(), String> {
        self.with(|shown| match (&shown.problem, &shown.wanted) {
            (Some(problem), _) => Err(problem.clone()),
            (None, Some(Wanted { peers: Some(_), .. })) => Ok(()),
            (None, _) => Err("the nodes are not known".to_owned()),
        })
    }

    pub(super) fn done(&self, wanted: Wanted, seen: Seen, nodes: (usize, usize)) {
        self.with(|shown| {
            *shown = Snapshot {
                wanted: Some(wanted),
                seen: Some(seen),
                problem: None,
                nodes: nodes.0,
                nodes_without_ipv4: nodes.1,
            };
        });
    }

    pub(super) fn failed(&self, problem: String) {
        self.with(|shown| shown.problem = Some(problem));
    }
}
