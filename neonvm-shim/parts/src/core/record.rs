//! What the daemon remembers of a part: programs, the highest epoch, and the results of tokens.

use std::collections::{BTreeMap, VecDeque};

use protocol::parts::{PartState, REMEMBERED_TOKENS};
use serde::{Deserialize, Serialize};

use super::trial::Slot;

/// A program in a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Release that its sender named.
    pub version: String,
    /// SHA-256 of the file, lower-case hex.
    pub sha256: String,
}

/// A program that was brought and is not kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staged {
    /// Slot in which the order put it.
    pub slot: Slot,
    /// Token of the order that brought it.
    pub token: String,
    /// Whether it has been on trial.
    pub tried: bool,
}

/// Kind of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verb {
    /// `PUT`: bring a program.
    Bring,
    /// `try`: run the program on trial.
    Try,
    /// `keep`: end its trial well.
    Keep,
    /// `back`: run the former program again.
    Back,
}

/// A carried-out order and its response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Token of the order.
    pub token: String,
    /// Kind of the order.
    pub verb: Verb,
    /// State in the response.
    pub state: PartState,
}

/// Record of a part. Its file survives the daemon and a crash of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// Highest epoch of an order.
    pub epoch: u64,
    /// Programs by slot.
    pub programs: BTreeMap<Slot, Program>,
    /// Program that was brought and is not kept.
    pub staged: Option<Staged>,
    /// Token of the last order that was carried out.
    pub token: String,
    /// Orders of the last tokens, oldest first.
    pub done: VecDeque<Done>,
}

impl Record {
    /// Response that this order got when it was carried out.
    #[must_use]
    pub fn repeated(&self, token: &str, verb: Verb) -> Option<&PartState> {
        let same = |done: &&Done| done.token == token && done.verb == verb;
        self.done.iter().find(same).map(|done| &done.state)
    }

    /// Whether an order of this kind was carried out for `token`.
    #[must_use]
    pub fn has(&self, token: &str, verb: Verb) -> bool {
        self.repeated(token, verb).is_some()
    }

    /// Adds a carried-out order, and forgets the oldest token beyond [`REMEMBERED_TOKENS`].
    pub fn remember(&mut self, token: &str, verb: Verb, state: PartState) {
        token.clone_into(&mut self.token);
        self.done
            .retain(|done| done.token != token || done.verb != verb);
        self.done.push_back(Done {
            token: token.to_owned(),
            verb,
            state,
        });
        while self.tokens() > REMEMBERED_TOKENS {
            self.done.pop_front();
        }
    }

    fn tokens(&self) -> usize {
        let tokens = self.done.iter().map(|done| done.token.as_str());
        tokens.collect::<std::collections::BTreeSet<_>>().len()
    }
}
