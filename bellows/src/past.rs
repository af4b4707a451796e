//! What the agent's journal has about one VM: its decisions with their outcomes, and its need and
//! permit over time.
//!
//! A reader that wants the last hours only names their begin. Each segment begins with a checkpoint
//! of every VM, so reading can begin at any segment.

mod policies;

use std::time::SystemTime;

use daemon_kit::journal::files::{self, SegmentFile};
use protocol::journal::{
    Amount, Decision, FORMAT, Head, OLDEST_FORMAT, Outcome as End, Record, RequestEnd, RequestKind,
    Step, decode,
};
use protocol::units::Resources;
use serde_json::json;

use self::policies::Policies;
use crate::commands::journal::{calendar, of_state, unreadable};
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::view::units::counted;

/// A decision and its outcome until the next decision.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    at: u64,
    wall: u64,
    unit: Resources,
    pub(crate) decision: Decision,
    ends: Vec<End>,
}

impl Entry {
    /// Microseconds since 1970.
    pub(crate) fn unix_us(&self) -> i64 {
        i64::try_from(self.wall.saturating_add(self.at)).unwrap_or(i64::MAX)
    }

    /// Time of the decision, RFC 3339.
    pub(crate) fn time(&self) -> String {
        calendar(self.wall, self.at)
    }

    /// Size that the VM had.
    pub(crate) fn had(&self) -> Resources {
        self.decision.cu.size(self.unit)
    }

    /// What came of the decision. Empty if nothing had to be done.
    pub(crate) fn outcome(&self) -> String {
        let ends: Vec<String> = self.ends.iter().map(end_text).collect();
        ends.join("; ")
    }

    pub(crate) fn size(&self, amount: Amount) -> String {
        amount.size(self.unit).to_string()
    }

    pub(crate) fn target(&self) -> Amount {
        self.decision.to.unwrap_or(self.decision.cu)
    }

    pub(crate) fn votes(&self) -> String {
        let votes: Vec<String> = self
            .decision
            .votes
            .iter()
            .map(|(name, vote)| format!("{name} {:.2}", vote.units()))
            .collect();
        votes.join(", ")
    }

    pub(crate) fn value(&self) -> serde_json::Value {
        json!({
            "at": self.time(),
            "current": self.decision.cu.size(self.unit),
            "target": self.target().size(self.unit),
            "goalUnits": self.decision.want,
            "reason": self.decision.r,
            "votes": self.decision.votes.iter().map(|(name, vote)| (name.clone(), json!(vote.units()))).collect::<serde_json::Map<_, _>>(),
            "boundedBy": self.decision.by,
            "warnings": self.decision.warn,
            "revision": self.decision.rev,
            "outcomes": self.ends,
        })
    }

    pub(crate) fn sentence(&self, name: &str) -> String {
        let decision = &self.decision;
        let bounded = if decision.by.is_empty() {
            String::new()
        } else {
            format!(", bounded by {}", decision.by.join(" and "))
        };
        let votes = if decision.votes.is_empty() {
            "nothing measured".to_owned()
        } else {
            self.votes()
        };
        let ends = self.outcome();
        let ends = if ends.is_empty() {
            "nothing had to be done".to_owned()
        } else {
            ends
        };
        let goal = self.goal();
        format!(
            "At {} {name} had {} and should have {}, because of {} ({votes}; {goal}){bounded}: {ends}.",
            self.time(),
            self.size(decision.cu),
            self.size(self.target()),
            decision.r,
        )
    }

    /// What the votes ask for together. A policy that votes does so in their place.
    fn goal(&self) -> String {
        let units = counted(self.decision.want);
        if self.decision.votes.contains_key("policy") {
            format!("without the policy {units}")
        } else {
            units
        }
    }
}

fn end_text(end: &End) -> String {
    let what = match end.what {
        RequestKind::Permit => "permit",
        RequestKind::Patch => "patch",
        RequestKind::Up => "monitor told",
        RequestKind::Down => "monitor asked",
        RequestKind::Verified => "guest",
    };
    let how = serde_json::to_value(end.end).unwrap_or_default();
    let how = how.as_str().unwrap_or("").replace('_', " ");
    let times: Vec<String> = end
        .ms
        .iter()
        .map(|(stage, ms)| format!("{stage} {ms} ms"))
        .collect();
    let got = end
        .got
        .map_or_else(String::new, |got| format!(" {}", Resources::from(got)));
    let times = if times.is_empty() {
        String::new()
    } else {
        format!(" ({})", times.join(", "))
    };
    format!("{what} {how}{got}{times}")
}

/// Need of a VM as its metrics gave it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Need {
    /// Microseconds since 1970.
    pub(crate) unix_us: i64,
    /// Load average of one minute, of all CPUs.
    pub(crate) load1: f64,
    /// Memory in use, bytes.
    pub(crate) used: f64,
}

/// What the agent's journal has about a VM, oldest first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Past {
    pub(crate) entries: Vec<Entry>,
    pub(crate) policies: Policies,
    pub(crate) needs: Vec<Need>,
    /// Permits, by the time in microseconds since 1970 at which they came.
    pub(crate) permits: Vec<(i64, Resources)>,
    /// Whether records within the wanted time were left out because they are too many.
    pub(crate) is_cut: bool,
}

/// Which segments are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Range {
    All,
    /// Segments with records after a time, but at most this many bytes of files, the newest.
    Since(SystemTime, u64),
}

/// Reads what the journal has about a VM with the key `namespace/name`.
pub(crate) fn past(context: &Context, key: &str, range: Range) -> Outcome<Past> {
    let mut reader = Reader::new(key);
    let (files, is_cut) = within(of_state(context)?, range);
    for file in files {
        match files::read(&file.path) {
            Ok(bytes) => reader.segment(&bytes),
            // Retention may remove a segment after the listing.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && range != Range::All => {}
            Err(error) => return Err(unreadable(&file.path, &error)),
        }
    }
    reader.past.is_cut = is_cut;
    Ok(reader.past)
}

/// As [`past`] of all segments.
///
/// # Errors
///
/// 1 if the journal has no decision about the VM.
pub(crate) fn decided(context: &Context, key: &str) -> Outcome<Past> {
    let past = past(context, key, Range::All)?;
    if past.entries.is_empty() {
        return Err(
            Fail::not_so(format!("the journal has no decision about {key}"))
                .rule("bellows up writes the journal while it runs, and keeps it for a week")
                .fix("look which VMs there are: bellows get vms -A"),
        );
    }
    Ok(past)
}

/// The segments of a range, oldest first, and whether its limit left some out.
fn within(mut all: Vec<SegmentFile>, range: Range) -> (Vec<SegmentFile>, bool) {
    let Range::Since(since, limit) = range else {
        return (all, false);
    };
    all.retain(|file| file.modified >= since);
    let mut bytes = 0_u64;
    let newest = all.iter().rev().take_while(|file| {
        bytes = bytes.saturating_add(file.bytes);
        bytes <= limit
    });
    // The newest segment is read whatever its length.
    let kept = newest.count().max(1).min(all.len());
    let left = all.len() - kept;
    (all.split_off(left), left > 0)
}

/// Collects the records of one VM.
struct Reader<'a> {
    key: &'a str,
    past: Past,
    run: Option<u64>,
    /// Number of the VM in the run.
    number: Option<u32>,
}

impl<'a> Reader<'a> {
    fn new(key: &'a str) -> Self {
        Self {
            key,
            past: Past::default(),
            run: None,
            number: None,
        }
    }

    fn segment(&mut self, bytes: &[u8]) {
        let mut lines = bytes
            .split_inclusive(|byte| *byte == b'\n')
            .filter(|line| line.ends_with(b"\n"));
        let Some(Ok(Record::Head(head))) = lines.next().map(decode) else {
            return;
        };
        if !(OLDEST_FORMAT..=FORMAT).contains(&head.v) {
            return;
        }
        if self.run.replace(head.run) != Some(head.run) {
            self.number = None;
        }
        // Records are in canonical form, so most lines about other VMs need not be decoded.
        let name = format!("\"name\":\"{}\"", self.key);
        let mut number = self.number.map(|number| format!("\"vm\":{number}"));
        for line in lines {
            let Ok(text) = std::str::from_utf8(line) else {
                continue;
            };
            let is_about =
                text.contains(&name) || number.as_ref().is_some_and(|number| text.contains(number));
            if !is_about {
                continue;
            }
            if let Ok(record) = decode(line) {
                self.record(&head, record);
                number = self.number.map(|number| format!("\"vm\":{number}"));
            }
        }
    }

    fn record(&mut self, head: &Head, record: Record) {
        let unix_us = |at: u64| i64::try_from(head.wall.saturating_add(at)).unwrap_or(i64::MAX);
        if let Record::Checkpoint(checkpoint) = &record
            && checkpoint.name == self.key
        {
            self.number = Some(checkpoint.vm);
        }
        if self.number.is_none() || record.vm() != self.number {
            return;
        }
        let past = &mut self.past;
        match record {
            Record::Checkpoint(checkpoint) => {
                let permit = checkpoint.plugin.permit.map(Resources::from);
                let permit = permit.map(|permit| (unix_us(checkpoint.t), permit));
                past.permits.extend(permit);
            }
            Record::Decision(decision) => past.entries.push(Entry {
                at: decision.t,
                wall: head.wall,
                unit: head.cu.into(),
                decision: *decision,
                ends: Vec::new(),
            }),
            Record::Outcome(end) => {
                if end.what == RequestKind::Permit
                    && end.end == RequestEnd::Done
                    && let Some(permit) = end.got
                {
                    past.permits.push((unix_us(end.t), permit.into()));
                }
                if let Some(entry) = past.entries.last_mut() {
                    entry.ends.push(*end);
                }
            }
            Record::Bound(bound) => past.policies.bound(head.run, head.wall, bound),
            Record::Answered(answered) => past.policies.answered(head.run, head.wall, answered),
            Record::Sampled(sampled) => {
                for (at, step) in sampled.block.0 {
                    if let Step::System(sample) = step {
                        past.needs.push(Need {
                            unix_us: unix_us(at),
                            load1: sample.load1,
                            used: sample.usage,
                        });
                    }
                }
            }
            _ => {}
        }
    }
}
