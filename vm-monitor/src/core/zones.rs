//! How much memory the guest's kernel could give back: the figures of its zones.
//!
//! The hypervisor takes plugged memory back in blocks. From `ZONE_MOVABLE` that works as long as
//! what is in use in a block finds another place, or is page cache and can go; from the kernel's
//! own zones nobody can tell. A guest without a movable zone is therefore not judged by this at
//! all.
//!
//! Everything that might go is counted as going, and only as much is asked for as must go (the
//! guest sees less memory than it has): a shrink is refused for this only where it cannot be done.

use protocol::time::{Span, Timestamp};
use protocol::units::Bytes;
use serde::Serialize;

/// What some zones hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Zone {
    /// All of their memory.
    pub managed: Bytes,
    /// What of it is free; of the kernel's own zones only what is above their high watermark.
    pub free: Bytes,
    /// What of it is page cache.
    pub cache: Bytes,
}

/// The zones of a machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Zones {
    /// The movable ones of all nodes.
    pub movable: Zone,
    /// The kernel's own.
    pub others: Zone,
    /// What the kernel keeps of its own zones: their high watermarks.
    pub reserve: Bytes,
}

impl Zones {
    /// The most that could be given back now; none where there is no movable zone to say.
    #[must_use]
    pub fn can_give(&self) -> Option<Bytes> {
        if self.movable.managed.0 == 0 {
            return None;
        }
        let places =
            [self.movable, self.others].map(|zone| zone.free.0.saturating_add(zone.cache.0));
        let room = places[0].saturating_add(places[1]);
        Some(Bytes(room.min(self.movable.managed.0)))
    }
}

/// What of the zones is the same for as long as the machine has the same memory.
///
/// The kernel needs tens of microseconds to write `/proc/zoneinfo`, which has every zone and CPU.
/// With these sizes remembered, free memory and page cache of the whole machine are enough to
/// tell that a shrink can be done. That it cannot is told by the zones alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZoneSizes {
    total: Bytes,
    movable: Bytes,
    reserve: Bytes,
    read_at: Timestamp,
}

/// The kernel raises a high watermark for a while, to 2.5 times its value at most
/// (`watermark_boost_factor`), so this many times the remembered ones are left alone.
const RESERVES: u64 = 3;
/// Sizes are remembered for this long: an operator may change `vm.min_free_kbytes`.
const REMEMBERED: Span = Span::from_secs(60);

impl ZoneSizes {
    /// The sizes of zones that were read on a machine with this much memory.
    #[must_use]
    pub const fn new(now: Timestamp, zones: &Zones, total: Bytes) -> Self {
        Self {
            total,
            movable: zones.movable.managed,
            reserve: zones.reserve,
            read_at: now,
        }
    }

    /// Whether a machine with `total` memory, `idle` of it free or page cache, can give `by` back
    /// for certain. `false` says that its zones have to be read.
    #[must_use]
    pub fn can_give(&self, now: Timestamp, by: Bytes, total: Bytes, idle: Bytes) -> bool {
        if total != self.total || now.since(self.read_at) > REMEMBERED {
            return false;
        }
        // Without a movable zone a shrink is not judged by the zones.
        if self.movable.0 == 0 {
            return true;
        }
        let kept = self.reserve.0.saturating_mul(RESERVES);
        by.0 <= idle.0.saturating_sub(kept).min(self.movable.0)
    }
}

/// What is read of one zone, pages.
#[derive(Debug, Default)]
struct Pages {
    free: Option<u64>,
    high: Option<u64>,
    managed: Option<u64>,
    inactive_file: Option<u64>,
    active_file: Option<u64>,
}

impl Pages {
    /// Takes in a line of the zone; the first of its name counts.
    fn note(&mut self, line: &str) {
        let mut words = line.split_ascii_whitespace();
        let slot = match (words.next(), words.next()) {
            (Some("pages"), Some("free")) => &mut self.free,
            (Some(name), Some(number)) => {
                let slot = match name {
                    "high" => &mut self.high,
                    "managed" => &mut self.managed,
                    "nr_zone_inactive_file" => &mut self.inactive_file,
                    "nr_zone_active_file" => &mut self.active_file,
                    _ => return,
                };
                *slot = slot.or_else(|| number.parse().ok());
                return;
            }
            _ => return,
        };
        *slot = slot.or_else(|| words.next()?.parse().ok());
    }

    /// The figures, if all are there. A zone without memory has no page cache to tell of.
    fn zone(&self, page_bytes: u64, keeps_reserve: bool) -> Option<Zone> {
        let bytes = |pages: u64| Bytes(pages.saturating_mul(page_bytes));
        let reserve = if keeps_reserve { self.high? } else { 0 };
        let cache = self
            .inactive_file
            .unwrap_or(0)
            .saturating_add(self.active_file.unwrap_or(0));
        Some(Zone {
            managed: bytes(self.managed?),
            free: bytes(self.free?.saturating_sub(reserve)),
            cache: bytes(cache),
        })
    }
}

/// Reads `/proc/zoneinfo`, which anybody may read. None if a zone's figures are missing: a file cut
/// short says nothing.
#[must_use]
pub fn zones(text: &str, page_bytes: u64) -> Option<Zones> {
    let mut found = Zones::default();
    let mut current: Option<(&str, Pages)> = None;
    let mut add = |(name, pages): (&str, Pages)| {
        let sum = match name {
            "Movable" => &mut found.movable,
            // Memory of devices is nobody's to give.
            "Device" => return Some(()),
            _ => &mut found.others,
        };
        let is_own = name != "Movable";
        let zone = pages.zone(page_bytes, is_own)?;
        if is_own {
            let high = pages.high?.saturating_mul(page_bytes);
            found.reserve.0 = found.reserve.0.saturating_add(high);
        }
        sum.managed.0 = sum.managed.0.saturating_add(zone.managed.0);
        sum.free.0 = sum.free.0.saturating_add(zone.free.0);
        sum.cache.0 = sum.cache.0.saturating_add(zone.cache.0);
        Some(())
    };
    for line in text.lines() {
        if let Some(name) = zone_name(line) {
            if let Some(done) = current.replace((name, Pages::default())) {
                add(done)?;
            }
        } else if let Some((_, pages)) = current.as_mut() {
            pages.note(line);
        }
    }
    add(current?)?;
    Some(found)
}

/// The name in `Node 0, zone  Movable`.
fn zone_name(line: &str) -> Option<&str> {
    let (_, name) = line.strip_prefix("Node ")?.split_once(", zone ")?;
    Some(name.trim())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Of a guest with 1 GiB at boot and 2 GiB plugged, of which half is in use; shortened to what
    /// is told apart.
    const GUEST: &str = include_str!("../../testdata/zoneinfo");
    const PAGE: u64 = 4096;

    fn pages(pages: u64) -> Bytes {
        Bytes(pages * PAGE)
    }

    #[test]
    fn n27_the_zones_of_a_guest_are_read() {
        let zones = zones(GUEST, PAGE).expect("whole");
        let movable = Zone {
            managed: pages(524_288),
            free: pages(200_000),
            cache: pages(62_144),
        };
        assert_eq!(zones.movable, movable);
        let others = Zone {
            managed: pages(3840 + 240_000),
            free: pages(3840 - 32 + 40_000 - 7000),
            cache: pages(20_000),
        };
        assert_eq!(zones.others, others);
        assert_eq!(zones.reserve, pages(32 + 7000));
        let all = 200_000 + 62_144 + 3808 + 33_000 + 20_000;
        assert_eq!(zones.can_give(), Some(pages(all)));
    }

    #[test]
    fn what_is_cut_short_says_nothing() {
        let end = GUEST.find("nr_zone_active_file 42144").expect("there");
        let managed = GUEST.find("managed  524288").expect("there");
        assert!(
            zones(&GUEST[..end], PAGE).is_some(),
            "page cache may be missing"
        );
        assert_eq!(zones(&GUEST[..managed], PAGE), None);
        for text in [
            "",
            "\n",
            "Node 0, zone Movable\n",
            "pages free 1\nmanaged 2\n",
        ] {
            assert_eq!(zones(text, PAGE), None, "{text:?}");
        }
    }

    #[test]
    fn n27_a_guest_without_a_movable_zone_is_not_judged() {
        let (text, _) = GUEST
            .split_once("Node 0, zone  Movable")
            .expect("it has one");
        let none = zones(text, PAGE).expect("whole");
        assert_eq!(none.can_give(), None);
        let empty = format!("{text}Node 0, zone  Movable\n  pages free 0\n high 0\n managed 0\n");
        assert_eq!(zones(&empty, PAGE).expect("whole").can_give(), None);
    }

    #[test]
    fn this_machine_is_readable() {
        let text = std::fs::read_to_string("/proc/zoneinfo").expect("Linux");
        let zones = zones(&text, PAGE).expect("Linux");
        assert!(zones.others.managed > zones.others.free);
    }

    proptest! {
        /// What was put down as zones reads as their sums, whatever stands between.
        #[test]
        fn n27_zones_add_up(
            figures in prop::collection::vec(
                (0_usize..4, 0_u64..1 << 30, 0_u64..1 << 20, 0_u64..1 << 30, 0_u64..1 << 20),
                1..8,
            ),
            noise in "[a-z_]{1,12} [0-9]{1,6}",
        ) {
            let (mut text, mut expected) = (String::new(), Zones::default());
            for (kind, free, high, managed, cache) in figures {
                let name = ["DMA32", "Normal", "Movable", "Device"][kind];
                text += &format!(
                    "Node 0, zone {name:>8}\n      {noise}\n  pages free     {free}\n        high     {high}\n        managed  {managed}\n      nr_zone_inactive_file {cache}\n      nr_zone_active_file 1\n  pagesets\n    cpu: 0\n              high:  9\n"
                );
                let (sum, free) = match kind {
                    2 => (&mut expected.movable, free),
                    3 => continue,
                    _ => {
                        expected.reserve.0 += high;
                        (&mut expected.others, free.saturating_sub(high))
                    }
                };
                sum.managed.0 += managed;
                sum.free.0 += free;
                sum.cache.0 += cache + 1;
            }
            // The noise may by chance be a line of a zone's own.
            prop_assume!(!["high", "managed", "nr_zone_inactive_file", "nr_zone_active_file"].iter().any(|own| noise.starts_with(own)));
            let read = zones(&text, 1).expect("whole");
            prop_assert_eq!(read, expected);
            if let Some(bytes) = read.can_give() {
                prop_assert!(bytes <= read.movable.managed);
            }
        }

        /// Requirement: N27. Remembered sizes with new figures of the whole machine never approve
        /// what new figures of the zones would refuse, boosted watermarks included.
        #[test]
        fn remembered_sizes_of_zones_never_promise_more_than_the_zones_have(
            sizes in prop::collection::vec((0_usize..3, 0_u64..1 << 16, 0_u64..1 << 20), 1..8),
            now in prop::collection::vec((0_u64..1 << 20, 0_u64..1 << 20, 0_u64..150), 8),
            by in 0_u64..1 << 22,
        ) {
            let text = |is_now: bool| {
                sizes.iter().zip(&now).map(|(&(kind, high, managed), &(free, cache, boost))| {
                    let name = ["DMA32", "Normal", "Movable"][kind];
                    let (free, cache) = if is_now { (free, cache) } else { (0, 0) };
                    let high = if is_now { high + high * boost / 100 } else { high };
                    format!("Node 0, zone {name}\n pages free {free}\n high {high}\n managed {managed}\n nr_zone_active_file {cache}\n")
                }).collect::<String>()
            };
            let total = Bytes(1 << 30);
            let before = zones(&text(false), 1).expect("whole");
            let after = zones(&text(true), 1).expect("whole");
            let of_zones = now.iter().take(sizes.len());
            let idle = Bytes(of_zones.map(|(free, cache, _)| free + cache).sum());
            let remembered = ZoneSizes::new(Timestamp(0), &before, total);
            if remembered.can_give(Timestamp(0), Bytes(by), total, idle) {
                prop_assert!(after.can_give().is_none_or(|most| by <= most.0));
            }
        }
    }

    #[test]
    fn sizes_of_zones_are_forgotten_with_the_size_of_the_machine_and_with_time() {
        let zones = zones(GUEST, PAGE).expect("whole");
        let (total, idle, by) = (Bytes::gib(3), Bytes::gib(1), Bytes::mib(500));
        let sizes = ZoneSizes::new(Timestamp(0), &zones, total);
        let soon = Timestamp(0) + REMEMBERED;
        assert!(sizes.can_give(soon, by, total, idle));
        assert!(!sizes.can_give(soon + Span(1), by, total, idle));
        assert!(!sizes.can_give(soon, by, Bytes::gib(4), idle));
        assert!(!sizes.can_give(soon, by, total, by), "the reserve");
    }
}
