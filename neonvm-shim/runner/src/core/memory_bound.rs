//! Memory limit of QEMU's cgroup: the VM's permitted size and QEMU's overhead.

use protocol::runner::MemoryState;
use protocol::units::Bytes;

use crate::config::Accel;

/// Overhead in bytes: QEMU itself, disk caches, page cache, page tables, and the guest's network
/// process.
const BESIDE: u64 = 512 << 20;
/// Overhead of TCG in bytes: translated code and its bookkeeping.
const TRANSLATED: u64 = 1536 << 20;

/// The limit in bytes. It follows a growth at once, and a shrink when the memory has left the
/// guest.
#[must_use]
pub fn bound(ordered: Bytes, has: MemoryState, accel: Accel) -> Bytes {
    let plugged = has.plugged.max(has.requested);
    let guest = ordered.0.max(has.base.0.saturating_add(plugged.0));
    let beside = match accel {
        Accel::Kvm => BESIDE,
        Accel::Tcg => BESIDE + TRANSLATED,
    };
    // Page tables and bookkeeping grow with the guest.
    Bytes(guest.saturating_add(guest / 32).saturating_add(beside))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn has(plugged: u64) -> MemoryState {
        MemoryState {
            base: Bytes(GIB),
            plugged: Bytes(plugged),
            requested: Bytes(0),
            guest_total: None,
        }
    }

    #[test]
    fn limit_grows_with_the_order_and_shrinks_with_the_memory() {
        let at = |ordered, plugged| bound(Bytes(ordered), has(plugged), Accel::Kvm).0;
        let beside = |guest: u64| guest + guest / 32 + BESIDE;
        assert_eq!(at(GIB, 0), beside(GIB));
        assert_eq!(at(4 * GIB, 0), beside(4 * GIB), "before the growth");
        assert_eq!(at(GIB, 3 * GIB), beside(4 * GIB), "a shrink is under way");
        assert_eq!(at(GIB, 0), beside(GIB), "it has arrived");
    }

    #[test]
    fn tcg_gets_memory_for_translated_code() {
        let by = |accel| bound(Bytes(GIB), has(0), accel).0;
        assert_eq!(by(Accel::Tcg) - by(Accel::Kvm), TRANSLATED);
    }
}
