//! Lines between the agent and its worker: one JSON object each, with a line feed at its end.

use std::collections::BTreeMap;

use protocol::journal::Milli;
use protocol::policy::{Fault, Refusal, Scope, Series};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::answer::{Answer, Want};
use crate::history::{Column, Seconds};
use crate::input::Input;
use crate::set_input::SetInput;
use crate::sets::SetAnswer;
use crate::spec::{CONTRACT, Digest};

/// Longest line, bytes, without its line feed.
pub const MAX_LINE_BYTES: usize = 256 << 10;

/// Most policies of a worker at once. A load under a number that is in use replaces that policy.
pub const MAX_POLICIES: u32 = 64;

/// What a worker's program prints of its contract, as part of its version.
#[must_use]
pub fn contract_word() -> String {
    format!("contract {CONTRACT}")
}

/// Contract that the version of a worker's program names. `None` for another program.
#[must_use]
pub fn contract_of(version: &str) -> Option<u32> {
    let (_, after) = version.split_once("contract ")?;
    let digits = after.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// From the agent to the worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum ToWorker {
    /// Load a policy under a number.
    Load {
        /// Number of the policy in later lines.
        id: u32,
        /// Digest of the policy.
        digest: Digest,
        /// What the policy decides about.
        scope: Scope,
        /// Program of the policy, in Lua.
        source: String,
        /// Numbers of the policy.
        params: BTreeMap<String, f64>,
    },
    /// Add samples to the past of a VM.
    Sample {
        /// Number of the VM.
        vm: u32,
        /// Time of the samples.
        t: Seconds,
        /// Values by series.
        s: BTreeMap<String, f64>,
    },
    /// Answer a question.
    Ask {
        /// Number of the question.
        n: u64,
        /// Number of the VM.
        vm: u32,
        /// Number of the policy.
        id: u32,
        /// Time of the question on the clock of the samples.
        t: Seconds,
        /// What the policy is asked.
        i: Box<Input>,
    },
    /// Answer a question about sets.
    AskSets {
        /// Number of the question.
        n: u64,
        /// Number of the past.
        vm: u32,
        /// Number of the policy.
        id: u32,
        /// Time of the question on the clock of the samples.
        t: Seconds,
        /// What the policy is asked.
        i: Box<SetInput>,
    },
    /// Forget the past of a VM.
    Forget {
        /// Number of the VM.
        vm: u32,
    },
    /// Replace one series of a VM's past.
    Fill {
        /// Number of the VM.
        vm: u32,
        /// Name of the series.
        s: Series,
        /// Time of the newest value.
        t: Seconds,
        /// Values by slot up to that of `t`, oldest first.
        v: Vec<Option<f64>>,
    },
}

impl ToWorker {
    /// The line that carries a series.
    #[must_use]
    pub fn fill(vm: u32, column: Column) -> Self {
        Self::Fill {
            vm,
            s: column.series,
            t: column.last_at,
            v: column.values,
        }
    }
}

/// From the worker to the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum FromWorker {
    /// The policy is loaded.
    Loaded {
        /// Number of the policy.
        id: u32,
    },
    /// The policy is refused.
    Bad {
        /// Number of the policy.
        id: u32,
        /// Line of its source, from 1; 0 if there is none.
        line: u32,
        /// What is wrong.
        rule: String,
    },
    /// One series of a VM's past is replaced.
    Filled {
        /// Number of the VM.
        vm: u32,
    },
    /// Answer to a question. [`FromWorker::answer`] reads it.
    Said {
        /// Number of the question.
        n: u64,
        /// Size in compute units; absent for `hold`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cu: Option<u32>,
        /// Whether the size in use is held.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        hold: bool,
        /// Reason of the answer, in the policy's words.
        r: String,
        /// Votes in thousandths.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        votes: BTreeMap<String, Milli>,
        /// Remark of the policy, for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
        /// Interrupts that the call took.
        steps: u64,
    },
    /// Answer to a question about sets. [`SetAnswer::read`] judges it.
    SaidSets {
        /// Number of the question.
        n: u64,
        /// The answer as the policy returned it.
        answer: Value,
        /// Interrupts that the call took.
        steps: u64,
    },
    /// A question without an answer.
    Fault {
        /// Number of the question.
        n: u64,
        /// Kind of the fault.
        kind: Fault,
        /// Details for people.
        text: String,
    },
}

impl FromWorker {
    /// The line that carries an answer.
    #[must_use]
    pub fn said(n: u64, answer: &Answer, steps: u64) -> Self {
        Self::Said {
            n,
            cu: match answer.want {
                Want::Units(units) => Some(units),
                Want::Hold => None,
            },
            hold: answer.want == Want::Hold,
            r: answer.reason.as_str().to_owned(),
            votes: answer
                .votes
                .iter()
                .map(|vote| (vote.name.clone(), vote.value))
                .collect(),
            note: answer.note.as_ref().map(|note| note.as_str().to_owned()),
            steps,
        }
    }

    /// The line that carries an answer about sets.
    #[must_use]
    pub fn said_sets(n: u64, answer: &SetAnswer, steps: u64) -> Self {
        Self::SaidSets {
            n,
            answer: answer.to_value(),
            steps,
        }
    }

    /// The answer that a line of [`Self::Said`] carries, checked by the rules of answers. `None`
    /// for other lines.
    #[must_use]
    pub fn answer(&self) -> Option<Result<Answer, Refusal>> {
        let Self::Said {
            cu,
            hold,
            r,
            votes,
            note,
            ..
        } = self
        else {
            return None;
        };
        let mut map = Map::new();
        if let Some(units) = cu {
            map.insert("cu".into(), (*units).into());
        }
        if *hold {
            map.insert("hold".into(), true.into());
        }
        map.insert("reason".into(), r.as_str().into());
        if !votes.is_empty() {
            let votes = votes.iter();
            let votes: Map<String, Value> = votes
                .map(|(name, value)| (name.clone(), value.units().into()))
                .collect();
            map.insert("votes".into(), votes.into());
        }
        if let Some(note) = note {
            map.insert("note".into(), note.as_str().into());
        }
        Some(Answer::read(&map.into()))
    }
}

/// Why a line is refused.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The line is too long.
    #[error("a line of {length} bytes: at most {max} are read")]
    TooLong {
        /// Length of the line.
        length: usize,
        /// Length of the longest line that is read, bytes.
        max: usize,
    },
    /// The line is malformed.
    #[error("malformed line: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// A message as a line, with its line feed.
///
/// # Errors
/// If the line would be longer than [`MAX_LINE_BYTES`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut line = serde_json::to_vec(message)?;
    let length = line.len();
    if length > MAX_LINE_BYTES {
        let max = MAX_LINE_BYTES;
        return Err(FrameError::TooLong { length, max });
    }
    line.push(b'\n');
    Ok(line)
}

/// Reads a line of at most `max` bytes. A line feed at its end is not counted.
///
/// # Errors
/// If the line is too long or malformed.
pub fn decode<T: DeserializeOwned>(line: &[u8], max: usize) -> Result<T, FrameError> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let length = line.len();
    if length > max {
        return Err(FrameError::TooLong { length, max });
    }
    Ok(serde_json::from_slice(line)?)
}

#[cfg(test)]
#[path = "frames_tests.rs"]
mod tests;
