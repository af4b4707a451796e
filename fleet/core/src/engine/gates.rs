//! The gate of a deployment that waits.

use protocol::fleet::DeploymentStatus;
use protocol::time::WallTime;

use crate::permit::Gate;

/// Adds the time behind a gate that the deadline leaves out.
pub(super) fn leave_gate(status: &mut DeploymentStatus, now: WallTime) {
    let Some(blocked) = status.blocked_by.take() else {
        return;
    };
    let stops = |gate: &&Gate| gate.as_str() == blocked.gate && gate.stops_the_deadline();
    if Gate::ALL.iter().any(|gate| stops(&gate)) {
        let waited = now.0.saturating_sub(blocked.since.0) / 1_000_000;
        status.held_seconds += u64::try_from(waited).unwrap_or(0);
    }
}
