//! Which VMs a candidate decides about while it is in canary.

use serde_json::Value;

use crate::journal::crc;

/// Share of the VMs where the policy's object names none, percent.
const CANARY_PERCENT: u32 = 25;

/// `spec.gate.canaryPercent` of a `ScalingPolicy`.
#[must_use]
pub fn canary_percent(object: &Value) -> u32 {
    let percent = object["spec"]["gate"]["canaryPercent"].as_u64();
    percent.map_or(CANARY_PERCENT, |one| u32::try_from(one).unwrap_or(100))
}

/// Whether the VM with this UID is among `percent` of all. A VM that is among a share is also among
/// each larger one. Every agent computes the same.
#[must_use]
pub fn is_in_canary(uid: &str, percent: u32) -> bool {
    crc(0, uid.as_bytes()) % 100 < percent
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn share_of_the_vms_is_that_of_the_gate() {
        let uid = |n: u32| format!("6f2c0b1e-7a55-4a0c-9c1d-{n:012}");
        for percent in [0, 1, 25, 99, 100] {
            let uids = (0..10_000).map(uid);
            let count = uids.filter(|uid| is_in_canary(uid, percent)).count();
            let expected = 100 * usize::try_from(percent).expect("it is small");
            assert!(count.abs_diff(expected) < 200, "{percent} %: {count}");
        }
        assert!((0..1000).all(|n| is_in_canary(&uid(n), 100) && !is_in_canary(&uid(n), 0)));
    }

    /// CRC-32C of `123456789` is 0xe3069283, which ends in 55 in decimal digits.
    #[test]
    fn vm_is_in_canary_from_one_share_on() {
        let shares = (0..=100).filter(|percent| is_in_canary("123456789", *percent));
        assert!(shares.eq(56..=100), "{}", crc(0, b"123456789"));
    }

    #[test]
    fn share_is_read_from_the_gate() {
        assert_eq!(canary_percent(&json!({"spec": {}})), 25);
        let object = json!({"spec": {"gate": {"canaryPercent": 5}}});
        assert_eq!(canary_percent(&object), 5);
    }
}
