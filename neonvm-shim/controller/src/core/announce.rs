//! Which VM events become Kubernetes events. A repeated event is counted, and no VM can flood the
//! log.

use std::collections::BTreeMap;

use protocol::time::{Span, Timestamp, WallTime};
use serde_json::{Value, json};

use super::moment::Moment;
use super::vm_event::VmEvent;

/// Events a VM may cause at once.
const BURST: u32 = 25;
/// One more becomes possible after this long.
const REFILL: Span = Span::from_secs(10);
/// The same reason and text within this time is the same event.
const SAME_WITHIN: Span = Span::from_secs(600);
/// Events remembered of a VM; the one silent for longest is forgotten.
const REMEMBERED: usize = 32;
/// Longest message of an event, bytes: the API server's limit.
const MESSAGE_LIMIT: usize = 1024;

/// Write of one Kubernetes event.
#[derive(Debug, Clone, PartialEq)]
pub enum Announcement {
    /// Creates an event object.
    New(Value),
    /// One more of an event object.
    Again {
        /// Name of the event object that the first announcement created.
        name: String,
        /// Merge patch with count and time.
        patch: Value,
    },
}

/// The VM events are about.
#[derive(Debug, Clone, Copy)]
pub struct About<'a> {
    /// Namespace of the VM; its events are written there too.
    pub namespace: &'a str,
    /// Name of the VM; the names of its events begin with it.
    pub name: &'a str,
    /// Uid of the VM. Events of another VM with the same name are not counted together with its
    /// own.
    pub uid: &'a str,
}

#[derive(Debug, Clone)]
struct Announced {
    name: String,
    last: Timestamp,
    count: u32,
}

/// Merges repeated events of one VM.
#[derive(Debug, Clone)]
pub struct Announcer {
    tokens: u32,
    refilled: Timestamp,
    announced: BTreeMap<(String, &'static str, String), Announced>,
    serial: u32,
}

impl Default for Announcer {
    fn default() -> Self {
        Self {
            tokens: BURST,
            refilled: Timestamp(0),
            announced: BTreeMap::new(),
            serial: 0,
        }
    }
}

impl Announcer {
    /// Returns the write for an event, or `None` if the VM has used up its events.
    pub fn announce(
        &mut self,
        event: &VmEvent,
        about: About<'_>,
        at: Moment,
    ) -> Option<Announcement> {
        self.refill(at.now);
        self.tokens = self.tokens.checked_sub(1)?;
        let mut message = event.to_string();
        while message.len() > MESSAGE_LIMIT {
            message.pop();
        }
        let key = (about.uid.to_owned(), event.reason(), message);
        if let Some(announced) = self.announced.get_mut(&key)
            && at.now.since(announced.last) < SAME_WITHIN
        {
            announced.last = at.now;
            announced.count = announced.count.saturating_add(1);
            return Some(Announcement::Again {
                name: announced.name.clone(),
                patch: json!({"count": announced.count, "lastTimestamp": at.wall}),
            });
        }
        self.serial = self.serial.wrapping_add(1);
        let name = format!("{}.{:x}{:04x}", about.name, at.wall.0, self.serial & 0xffff);
        let object = event_object(&name, event, &key.2, about, at.wall);
        self.remember(
            key,
            Announced {
                name,
                last: at.now,
                count: 1,
            },
        );
        Some(Announcement::New(object))
    }

    fn refill(&mut self, now: Timestamp) {
        let periods = now.since(self.refilled).0 / REFILL.0;
        if periods > 0 {
            let more = u32::try_from(periods).unwrap_or(BURST);
            self.tokens = self.tokens.saturating_add(more).min(BURST);
            self.refilled = now;
        }
    }

    fn remember(&mut self, key: (String, &'static str, String), announced: Announced) {
        if self.announced.len() >= REMEMBERED {
            let oldest = self
                .announced
                .iter()
                .min_by_key(|(_, announced)| announced.last);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.announced.remove(&oldest);
            }
        }
        self.announced.insert(key, announced);
    }
}

fn event_object(
    name: &str,
    event: &VmEvent,
    message: &str,
    about: About<'_>,
    wall: WallTime,
) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": about.namespace},
        "involvedObject": {
            "apiVersion": protocol::vm::API_VERSION,
            "kind": "VirtualMachine",
            "namespace": about.namespace,
            "name": about.name,
            "uid": about.uid,
        },
        "type": if event.is_warning() { "Warning" } else { "Normal" },
        "reason": event.reason(),
        "message": message,
        "count": 1,
        "firstTimestamp": wall,
        "lastTimestamp": wall,
        "source": {"component": "neonvm-controller"},
        "reportingComponent": "neonvm-controller",
        "reportingInstance": "",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::problem::Problem;

    const VM: About<'static> = About {
        namespace: "default",
        name: "example",
        uid: "u",
    };

    fn at(seconds: u64) -> Moment {
        let us = i64::try_from(seconds * 1_000_000).expect("small");
        Moment {
            now: Timestamp(1_000_000 * (seconds + 1)),
            wall: WallTime(us),
        }
    }

    fn slot(bytes: u64) -> VmEvent {
        VmEvent::Problem {
            problem: Problem::SlotSize { bytes },
        }
    }

    #[test]
    fn repeated_event_is_counted_and_other_text_is_new_event() {
        let mut announcer = Announcer::default();
        let Some(Announcement::New(first)) = announcer.announce(&slot(1), VM, at(1)) else {
            panic!("a first event is new")
        };
        assert_eq!(
            (first["type"].as_str(), first["reason"].as_str()),
            (Some("Warning"), Some("Degraded"))
        );
        let again = announcer.announce(&slot(1), VM, at(2));
        let name = first["metadata"]["name"]
            .as_str()
            .expect("a name")
            .to_owned();
        assert_eq!(
            again,
            Some(Announcement::Again {
                name: name.clone(),
                patch: json!({"count": 2, "lastTimestamp": "1970-01-01T00:00:02Z"}),
            })
        );
        let Some(Announcement::New(other)) = announcer.announce(&slot(2), VM, at(2)) else {
            panic!("another text is another event")
        };
        assert_ne!(other["metadata"]["name"], name);
        let later = announcer.announce(&slot(1), VM, at(2 + 601));
        assert!(
            matches!(later, Some(Announcement::New(_))),
            "old enough to be news"
        );
    }

    #[test]
    fn flood_of_events_is_cut_and_recovers() {
        let mut announcer = Announcer::default();
        let announced = (0..100)
            .filter(|n| announcer.announce(&slot(*n), VM, at(1)).is_some())
            .count();
        assert_eq!(announced, 25);
        assert!(announcer.announced.len() <= REMEMBERED);
        let announced = (0..100)
            .filter(|n| announcer.announce(&slot(*n), VM, at(31)).is_some())
            .count();
        assert_eq!(announced, 3);
    }
}
