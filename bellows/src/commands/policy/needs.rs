//! What commands of policies need.

use crate::context::Context;
use crate::fail::{Fail, Outcome};

/// Refuses a command that reads the journal where the agents of a cluster are addressed.
pub(super) fn journal(context: &Context, command: &str) -> Outcome {
    if !context.asks_cluster() {
        return Ok(());
    }
    let what = format!("policy {command} reads a journal on this machine");
    Err(Fail::missing(what)
        .rule("agents of a cluster keep their journals on the nodes")
        .fix(format!(
            "copy them: kubectl bellows journal fetch DIR; then: bellows --state-dir DIR/NODE policy {command} NAME"
        )))
}
