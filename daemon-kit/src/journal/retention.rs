//! Chooses the segments to delete. Source of the numbers: the journal's specification.

use std::time::{Duration, SystemTime};

use super::files::SegmentFile;

/// Limits of a journal's stored segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Longest age of a segment.
    pub age: Duration,
    /// Most bytes per VM of the node.
    pub bytes_per_vm: u64,
    /// Most bytes of all segments.
    pub bytes: u64,
    /// Age below which a segment is never deleted.
    pub never: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            age: Duration::from_secs(7 * 86_400),
            bytes_per_vm: 5 << 20,
            bytes: 4 << 30,
            never: Duration::from_secs(2 * 3_600),
        }
    }
}

impl Retention {
    /// Segments to delete, oldest first. `vms` is the number of VMs that write here; the newest
    /// segment is in use and stays.
    #[must_use]
    pub fn surplus<'a>(
        &self,
        files: &'a [SegmentFile],
        now: SystemTime,
        vms: usize,
    ) -> Vec<&'a SegmentFile> {
        let budget = self
            .bytes_per_vm
            .saturating_mul(vms.max(1) as u64)
            .min(self.bytes);
        let mut total: u64 = files.iter().map(|file| file.bytes).sum();
        let mut surplus = Vec::new();
        let finished = files.split_last().map_or(&[][..], |(_, rest)| rest);
        for file in finished {
            // A time in the future means that the clock was set back: the file counts as new.
            let age = now.duration_since(file.modified).unwrap_or_default();
            if age <= self.never || (age <= self.age && total <= budget) {
                break;
            }
            total -= file.bytes;
            surplus.push(file);
        }
        surplus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600;

    fn files(sizes_and_ages: &[(u64, u64)]) -> (Vec<SegmentFile>, SystemTime) {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 * HOUR);
        let files = sizes_and_ages
            .iter()
            .zip(1..)
            .map(|((mib, hours), seq)| SegmentFile {
                seq,
                path: format!("{seq}").into(),
                is_packed: true,
                bytes: mib << 20,
                modified: now - Duration::from_secs(hours * HOUR),
            });
        (files.collect(), now)
    }

    fn gone(sizes_and_ages: &[(u64, u64)], vms: usize) -> Vec<u64> {
        let (files, now) = files(sizes_and_ages);
        let surplus = Retention::default().surplus(&files, now, vms);
        surplus.iter().map(|file| file.seq).collect()
    }

    #[test]
    fn oldest_segments_are_deleted_until_the_rest_fits() {
        assert_eq!(gone(&[(4, 30), (4, 20), (4, 10), (1, 0)], 1), [1, 2]);
        assert_eq!(gone(&[(4, 30), (4, 20), (4, 10), (1, 0)], 3), [0_u64; 0]);
    }

    #[test]
    fn segments_older_than_a_week_are_deleted() {
        assert_eq!(gone(&[(1, 169), (1, 169), (1, 167), (1, 0)], 100), [1, 2]);
    }

    #[test]
    fn newest_two_hours_and_the_open_segment_stay() {
        assert_eq!(gone(&[(9_000, 1), (9_000, 1), (9_000, 0)], 1), [0_u64; 0]);
        assert_eq!(gone(&[(9_000, 900)], 1), [0_u64; 0]);
    }

    #[test]
    fn node_keeps_four_gib_for_any_number_of_vms() {
        assert_eq!(gone(&[(3_000, 30), (3_000, 20), (16, 0)], 5_000), [1]);
    }
}
