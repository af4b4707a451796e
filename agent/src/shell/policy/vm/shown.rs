//! A VM's policy in the state that the agent serves.

use protocol::time::Timestamp;
use serde_json::{Value, json};

use super::VmPolicy;
use crate::shell::driver::Context;
use crate::shell::state::{StateSlot, text_of};

impl VmPolicy {
    /// Shows choice and last answer in the VM's state.
    pub(in crate::shell) fn show(&self, ctx: &Context, slot: &StateSlot) {
        let shown = self.shown(ctx);
        slot.lock().policy = shown;
    }

    fn shown(&self, ctx: &Context) -> Option<Value> {
        if let Some(unknown) = &self.unknown {
            return Some(json!({ "unknown": unknown }));
        }
        let active = self.active.as_ref()?;
        let policy = &active.policy;
        let mut shown = json!({
            "name": policy.name,
            "digest": policy.digest.short(),
            "role": active.role,
            "setAside": active.is_set_aside,
        });
        if let Some((last, since)) = &active.last {
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
                "at": text_of(&ctx.clock, Timestamp(last.t)),
                "since": text_of(&ctx.clock, *since),
            });
        }
        Some(shown)
    }
}
