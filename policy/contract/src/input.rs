//! The question to a policy. Each member is a function of what the agent's core was fed and of the
//! journal's records, so a recorded question can be built again.

use std::collections::BTreeMap;

use protocol::mode::Mode;
use protocol::policy::Scope;
use serde::{Deserialize, Serialize};

use crate::canonical;
use crate::spec::CONTRACT;

/// The question, without the past `h`, which the worker keeps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Version of the contract, [`CONTRACT`].
    pub v: u32,
    /// What the policy decides about.
    pub scope: Scope,
    /// The policy's own numbers.
    pub params: BTreeMap<String, f64>,
    /// Calendar time, UTC.
    pub time: Time,
    /// The compute unit.
    pub unit: Unit,
    /// The VM whose size is asked for.
    pub vm: Vm,
    /// Goal without a policy.
    pub builtin: Builtin,
    /// Last accepted answer of this policy in the same role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<Old>,
    /// Fresh figures from pages of the guest, by name.
    #[serde(default)]
    pub feeds: BTreeMap<String, Feed>,
    /// Newest refusals within an hour.
    #[serde(default)]
    pub refused: Refused,
    /// Last upscale request of the monitor within an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wish: Option<WishSeen>,
    /// Sources that fail, sorted by kind.
    #[serde(default)]
    pub failing: Vec<Failing>,
    /// Other VMs of the node.
    pub node: NodeLoad,
}

impl Input {
    /// Canonical text: sorted keys, no blanks, numbers as ECMAScript prints them.
    #[must_use]
    pub fn canonical(&self) -> String {
        canonical::text(self)
    }

    /// CRC-32C of [`Self::canonical`].
    #[must_use]
    pub fn checksum(&self) -> u32 {
        crc32c::crc32c(self.canonical().as_bytes())
    }

    /// A question about a VM of one unit that may grow to four. For tests and made-up inputs.
    #[must_use]
    pub fn sample() -> Self {
        Self {
            v: CONTRACT,
            scope: Scope::Vm,
            params: BTreeMap::new(),
            time: Time {
                minute: 0,
                weekday: 1,
            },
            unit: Unit {
                cpu_m: 1000.0,
                mem_bytes: 4_294_967_296.0,
            },
            vm: Vm {
                name: "pg".into(),
                namespace: "default".into(),
                labels: BTreeMap::new(),
                min_cu: 1.0,
                max_cu: 4.0,
                use_cu: 1.0,
                cpu_m: 1000.0,
                mem_bytes: 4_294_967_296.0,
                permit_cu: Some(1.0),
                mode: Mode::Full,
            },
            builtin: Builtin::default(),
            old: None,
            feeds: BTreeMap::new(),
            refused: Refused::default(),
            wish: None,
            failing: Vec::new(),
            node: NodeLoad::default(),
        }
    }
}

/// Calendar time of a question, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Time {
    /// Minute of the day, 0-1439.
    pub minute: u32,
    /// Day of the week, 1 (Monday) to 7.
    pub weekday: u32,
}

impl Time {
    /// Minute and weekday of a time in microseconds since 1970.
    #[must_use]
    pub fn of_unix_micros(micros: u64) -> Self {
        let minutes = micros / 60_000_000;
        // 1970-01-01 was a Thursday.
        let weekday = (minutes / 1440 + 3) % 7 + 1;
        let small = |n: u64| u32::try_from(n).unwrap_or_default();
        Self {
            minute: small(minutes % 1440),
            weekday: small(weekday),
        }
    }
}

/// Size of a compute unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unit {
    /// CPU of a unit, thousandths of a core.
    pub cpu_m: f64,
    /// Memory of a unit, bytes.
    pub mem_bytes: f64,
}

/// The VM. `*_cu` are the larger of both resources over the unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vm {
    /// Name of the VM.
    pub name: String,
    /// Namespace of the VM.
    pub namespace: String,
    /// Labels of the VM, at most 32.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Smallest size of the VM, compute units.
    pub min_cu: f64,
    /// Largest size of the VM, compute units.
    pub max_cu: f64,
    /// Size in use.
    pub use_cu: f64,
    /// CPU in use, thousandths of a core.
    pub cpu_m: f64,
    /// Memory in use, bytes.
    pub mem_bytes: f64,
    /// Size that the scheduler permits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permit_cu: Option<f64>,
    /// Which changes the agent may make.
    pub mode: Mode,
}

/// Goal without a policy.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Builtin {
    /// Goal in compute units.
    pub cu: u32,
    /// Votes behind it.
    #[serde(default)]
    pub votes: Votes,
}

/// Votes of the built-in goal, compute units.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the names of the goal's signals")]
pub struct Votes {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_set: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitor_estimate: Option<f64>,
}

/// Last accepted answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Old {
    /// Size in compute units. `None`: the answer was to hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cu: Option<u32>,
    /// Reason of the answer.
    pub reason: String,
    /// Age of the answer, seconds.
    pub age_s: f64,
}

/// Figure of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Feed {
    /// Value on the page.
    pub value: f64,
    /// Age of the value, seconds.
    pub age_s: f64,
}

/// Refusals within an hour.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refused {
    /// The scheduler permitted less than was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permit: Option<PermitCut>,
    /// The monitor refused a shrink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shrink: Option<ShrinkRefused>,
}

/// Permit below its request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PermitCut {
    /// Size of the request, compute units.
    pub asked_cu: f64,
    /// The request without what was not permitted, compute units. It is below `asked_cu` also
    /// where the other resource was permitted in full.
    pub got_cu: f64,
    /// Age of the answer, seconds.
    pub age_s: f64,
}

/// Shrink that the monitor refused.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShrinkRefused {
    /// Size of the request, compute units.
    pub asked_cu: f64,
    /// Smallest size that the monitor would approve, compute units, where it said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smallest_cu: Option<f64>,
    /// Age of the refusal, seconds.
    pub age_s: f64,
}

/// Upscale request of the monitor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WishSeen {
    /// Reason of the monitor: `threshold`, `psi_some`, `oom_event`, …
    pub reason: String,
    /// Age of the request, seconds.
    pub age_s: f64,
}

/// Source that fails.
#[derive(Debug, Clone, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failing {
    /// `monitor_absent`, `feed_silent:NAME` or `oom`.
    pub kind: String,
    /// Duration of the failure, seconds.
    pub since_s: f64,
}

/// Other VMs of the node.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeLoad {
    /// Number of VMs on the node, this one included.
    pub vms: u32,
    /// Units that other VMs requested within 5 s and were not permitted.
    pub starved_cu: f64,
}

/// Luau types of the question.
pub(crate) const STUBS: &str = include_str!("stubs/input.luau");
/// Luau types of the helpers.
pub(crate) const STUBS_STD: &str = include_str!("stubs/std.luau");

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Input {
        let mut input = Input::sample();
        input.params.insert("headroom".into(), 1.15);
        input.vm.labels.insert("app".into(), "pg".into());
        input.builtin = Builtin {
            cu: 2,
            votes: Votes {
                cpu: Some(1.1),
                memory: Some(1.9),
                working_set: Some(0.5),
                monitor_estimate: Some(0.1),
            },
        };
        input.old = Some(Old {
            cu: Some(2),
            reason: "memory".into(),
            age_s: 5.000_001,
        });
        input.feeds.insert(
            "jobs".into(),
            Feed {
                value: 3.0,
                age_s: 1.0,
            },
        );
        input.refused.permit = Some(PermitCut {
            asked_cu: 3.0,
            got_cu: 2.0,
            age_s: 9.0,
        });
        input.refused.shrink = Some(ShrinkRefused {
            asked_cu: 1.0,
            smallest_cu: Some(2.0),
            age_s: 9.0,
        });
        input.wish = Some(WishSeen {
            reason: "psi_some".into(),
            age_s: 7.0,
        });
        input.failing.push(Failing {
            kind: "oom".into(),
            since_s: 3.0,
        });
        input
    }

    fn names(value: &serde_json::Value, out: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(map) => {
                for (key, member) in map {
                    out.push(key.clone());
                    names(member, out);
                }
            }
            serde_json::Value::Array(items) => items.iter().for_each(|item| names(item, out)),
            _ => {}
        }
    }

    #[test]
    fn question_survives_its_own_text() {
        for input in [Input::sample(), full()] {
            let read: Input = serde_json::from_str(&input.canonical()).expect("a question");
            assert_eq!(read, input);
            assert_eq!(read.checksum(), input.checksum());
        }
        assert_ne!(full().checksum(), Input::sample().checksum());
    }

    #[test]
    fn absent_members_are_left_out() {
        let text = Input::sample().canonical();
        assert!(
            !text.contains("null") && !text.contains("\"old\""),
            "{text}"
        );
        assert!(text.starts_with(r#"{"builtin":{"cu":0,"votes":{}},"failing":[]"#));
    }

    #[test]
    fn stubs_name_every_member() {
        let mut input = full();
        input.params.clear();
        input.vm.labels.clear();
        input.feeds.clear();
        let mut members = Vec::new();
        names(&serde_json::to_value(&input).expect("JSON"), &mut members);
        let stubs = crate::stubs();
        for name in members {
            assert!(stubs.contains(&format!("{name}:")), "{name} in\n{stubs}");
        }
    }

    #[test]
    fn time_is_utc_with_monday_as_first_day() {
        let at = |text: u64| Time::of_unix_micros(text * 1_000_000);
        assert_eq!(
            at(0),
            Time {
                minute: 0,
                weekday: 4
            }
        );
        // 2026-11-29 was a Sunday; 23:59:59.
        assert_eq!(
            at(1_795_996_799),
            Time {
                minute: 1439,
                weekday: 7
            }
        );
        assert_eq!(
            at(1_795_996_800),
            Time {
                minute: 0,
                weekday: 1
            }
        );
    }
}
