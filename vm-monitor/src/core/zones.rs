//! How much memory the guest's kernel could give back: the figures of its zones.
//!
//! The hypervisor takes plugged memory back in blocks. From `ZONE_MOVABLE` that works as long as what is in use in a block
//! finds another place, or is page cache and can go; from the kernel's own zones nobody can tell. A guest without a
//! movable zone is therefore not judged by this at all.
//!
//! Everything that might go is counted as going, and only as much is asked for as must go (the guest sees less memory
//! than it has): a shrink is refused for this only where it cannot be done.

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

/// Reads `/proc/zoneinfo`, which anybody may read. None if a zone's figures are missing: a file cut short says nothing.
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
        let zone = pages.zone(page_bytes, name != "Movable")?;
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

    /// Of a guest with 1 GiB at boot and 2 GiB plugged, of which half is in use; shortened to what is told apart.
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
                    _ => (&mut expected.others, free.saturating_sub(high)),
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
    }
}
