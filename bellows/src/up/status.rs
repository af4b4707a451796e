//! Status of `bellows up`: `GET /v1/status`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::terminal::{Paint, Tone};

/// Response of `/v1/status`. Members are added, never changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) version: String,
    pub(crate) pid: u32,
    pub(crate) uptime_s: u64,
    /// Name of the Node object.
    pub(crate) node: String,
    /// N of the loopback block 127.N.0.0/16.
    pub(crate) block: u8,
    pub(crate) state_dir: String,
    pub(crate) kubeconfig: String,
    /// Accelerator of guests, and why it was chosen.
    pub(crate) accel: String,
    /// Whether every component is ready.
    pub(crate) ready: bool,
    /// Components in the order in which they start.
    pub(crate) parts: Vec<PartStatus>,
    /// Guests that the node driver leaves alone because the store lacks their pods, as
    /// `namespace/pod`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) orphans: Vec<String>,
    /// Walls between guests and this machine.
    #[serde(default)]
    pub(crate) walls: Vec<WallStatus>,
}

impl Status {
    /// One line of JSON for programs: the status with the member `"event":"ready"`.
    pub(crate) fn ready_line(&self) -> String {
        let mut line = json!(self);
        line["event"] = json!("ready");
        line.to_string()
    }

    /// The addresses of a ready instance and the next commands, for people.
    pub(crate) fn ready_text(&self, paint: Paint) -> Vec<String> {
        let mut lines = vec![format!(
            "{} on node {}",
            paint.paint(Tone::Good, "ready"),
            self.node
        )];
        lines.extend(self.parts.iter().filter_map(|part| {
            part.address
                .as_ref()
                .map(|address| format!("  {:<12} {address}", part.name))
        }));
        lines.push(format!("  {:<12} {}", "kubeconfig", self.kubeconfig));
        lines.extend(orphans_line(self));
        lines.push(
            "next: bellows vm create pg; bellows top; end with bellows down (guests keep running)"
                .into(),
        );
        lines
    }
}

/// Advice about guests without objects. `None` if there are none.
pub(crate) fn orphans_line(status: &Status) -> Option<String> {
    let orphans = &status.orphans;
    (!orphans.is_empty()).then(|| {
        format!(
            "the store has never shown {} of the guests here, which are left alone: {}; bring their objects back with \
             bellows adopt, or let one go with bellows adopt --release NAME",
            orphans.len(),
            orphans.join(", ")
        )
    })
}

/// State of one wall.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WallStatus {
    /// Label in `bellows status`.
    pub(crate) name: String,
    /// Whether it stands for every guest.
    pub(crate) stands: bool,
    /// Number of guests behind it, or why it does not stand.
    pub(crate) note: String,
}

impl WallStatus {
    /// All walls of a state directory.
    pub(crate) fn all(state: &Path) -> Vec<Self> {
        let standing = neonvm_runner::node::standing(state).into_iter();
        standing
            .map(|wall| Self {
                name: wall.name.to_owned(),
                stands: wall.missing.is_empty(),
                note: if wall.missing.is_empty() {
                    format!("guests: {}", wall.guests)
                } else {
                    reasons(&wall.missing)
                },
            })
            .collect()
    }
}

/// Each reason once, with the guests that have it.
fn reasons(missing: &[(Option<String>, String)]) -> String {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (guest, why) in missing {
        by_reason.entry(why).or_default().extend(guest.as_deref());
    }
    let text = |(why, guests): (&str, Vec<&str>)| {
        if guests.is_empty() {
            why.to_owned()
        } else {
            format!("{why} ({})", guests.join(", "))
        }
    };
    by_reason
        .into_iter()
        .map(text)
        .collect::<Vec<_>>()
        .join("; ")
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PartStatus {
    pub(crate) name: String,
    pub(crate) phase: PartPhase,
    /// Address that it listens on, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<String>,
    /// What it waits for, or how it ended.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) note: String,
}

/// Phase of a component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PartPhase {
    /// Runs, but waits for something.
    Starting,
    Ready,
    Ended,
}

impl PartPhase {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Ended => "ended",
        }
    }
}
