//! A VM's policy in the state that the agent serves: the version that decides, with the one in its
//! shadow as the member `shadow`; or the shadow alone.

use serde_json::{Value, json};

use super::VmPolicy;
use super::active::Active;
use crate::shell::context::Context;
use crate::shell::state::{StateSlot, text_of};

impl VmPolicy {
    /// Shows choice and last answer in the VM's state.
    pub(in crate::shell) fn show(&self, ctx: &Context, slot: &StateSlot) {
        let shown = self.shown(ctx).map(|shown| shown.to_string().into());
        slot.lock().policy = shown;
    }

    fn shown(&self, ctx: &Context) -> Option<Value> {
        if let Some(unknown) = &self.unknown {
            return Some(json!({ "unknown": unknown }));
        }
        let mut all = self.asked.all().map(|active| active.shown(ctx));
        let mut shown = all.next()?;
        if self.is_canary {
            shown["canary"] = true.into();
        }
        if let Some(shadow) = all.next() {
            shown["shadow"] = shadow;
        }
        Some(shown)
    }
}

impl Active {
    fn shown(&self, ctx: &Context) -> Value {
        let mut shown = json!({
            "name": self.policy.name,
            "digest": self.policy.digest.short(),
            "role": self.role,
            "setAside": self.is_set_aside,
        });
        let Some(answer) = &self.last else {
            return shown;
        };
        let last = answer.said();
        let votes: serde_json::Map<String, Value> = last
            .votes
            .iter()
            .map(|(name, vote)| (name.clone(), vote.units().into()))
            .collect();
        shown["answer"] = json!({
            "cu": last.cu,
            "hold": last.hold,
            "fault": last.fault,
            "reason": last.r,
            "votes": votes,
            "note": last.note,
            "at": text_of(&ctx.clock, answer.at),
            "since": text_of(&ctx.clock, answer.since),
        });
        shown
    }
}
