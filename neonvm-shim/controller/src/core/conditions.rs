//! The conditions of a VM.

use protocol::time::WallTime;
use protocol::vm::Condition;

/// Condition that is true while the guest runs.
pub const AVAILABLE: &str = "Available";
/// Condition that is true while a problem is known. The message names it.
pub const DEGRADED: &str = "Degraded";
/// Condition of a VM that has no pod because of its power state.
pub const STOPPED: &str = "Stopped";
/// Condition of a member of a set whose guest's daemon has responded since the last start.
pub const BOOTED: &str = "Booted";
/// The one reason ever written.
const REASON: &str = "Reconciling";

/// Sets a condition; the time changes only when the status does.
pub fn set(list: &mut Vec<Condition>, kind: &str, status: &str, message: &str, wall: WallTime) {
    match list.iter_mut().find(|condition| condition.kind == kind) {
        Some(found) => {
            if found.status != status {
                found.last_transition_time = Some(whole_seconds(wall));
                status.clone_into(&mut found.status);
            }
            message.clone_into(&mut found.message);
            REASON.clone_into(&mut found.reason);
        }
        None => list.push(Condition {
            kind: kind.into(),
            status: status.into(),
            reason: REASON.into(),
            message: message.into(),
            last_transition_time: Some(whole_seconds(wall)),
            observed_generation: None,
        }),
    }
}

/// Turns a True condition False; one that is not there stays away.
pub fn clear(list: &mut [Condition], kind: &str, wall: WallTime) {
    let found = list
        .iter_mut()
        .find(|found| found.kind == kind && found.status == "True");
    if let Some(found) = found {
        "False".clone_into(&mut found.status);
        found.message.clear();
        found.last_transition_time = Some(whole_seconds(wall));
    }
}

/// The wire keeps whole seconds; keeping more in memory would make an object differ from its own
/// copy.
#[must_use]
pub fn whole_seconds(wall: WallTime) -> WallTime {
    WallTime(wall.0 - wall.0.rem_euclid(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transition_time_changes_only_with_status() {
        let mut list = Vec::new();
        set(&mut list, AVAILABLE, "Unknown", "a", WallTime(1_500_000));
        set(&mut list, AVAILABLE, "Unknown", "b", WallTime(9_000_000));
        assert_eq!(list[0].last_transition_time, Some(WallTime(1_000_000)));
        assert_eq!(
            (list[0].message.as_str(), list[0].reason.as_str()),
            ("b", "Reconciling")
        );
        set(&mut list, AVAILABLE, "True", "b", WallTime(9_000_000));
        assert_eq!(list[0].last_transition_time, Some(WallTime(9_000_000)));
        clear(&mut list, DEGRADED, WallTime(10_000_000));
        assert_eq!(list.len(), 1, "nothing to clear");
        clear(&mut list, AVAILABLE, WallTime(10_000_000));
        assert_eq!(
            (list[0].status.as_str(), list[0].message.as_str()),
            ("False", "")
        );
    }
}
