//! The queue of unwritten lines: bounded, with a fair share for each VM, and a count of dropped
//! lines.
//!
//! Pushing never waits. A line that does not fit is dropped and counted; the next one that fits is
//! preceded by an `X` record that says how many are missing and over what time.

use std::collections::BTreeMap;

use protocol::journal::{Gap, Record, Why, encode};
use protocol::time::{Span, Timestamp};

/// Limits of the queue of unwritten lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// Bytes stored while the disk does not accept them.
    pub ring_bytes: usize,
    /// Bytes that a VM may write at once.
    pub share_burst: u64,
    /// Bytes per second that a VM may write in the long run.
    pub share_rate: u64,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self {
            ring_bytes: 1 << 20,
            // Hours of a VM that resizes all the time; in the long run the rate that fills,
            // compressed four to one, the 5 MiB of a VM in the seven days of retention. So no VM
            // displaces the records of others.
            share_burst: 1 << 20,
            share_rate: 32,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lost {
    lines: u64,
    since: Timestamp,
}

impl Lost {
    fn count(lost: &mut Option<Self>, now: Timestamp) {
        let entry = lost.get_or_insert(Self {
            lines: 0,
            since: now,
        });
        entry.lines += 1;
    }

    fn line(self, now: Timestamp, vm: Option<u32>, why: Why) -> String {
        encode(&Record::Gap(Gap {
            n: self.lines,
            span: now.since(self.since).0,
            t: now.0,
            vm,
            why,
        }))
    }
}

/// A VM's share: a token bucket.
#[derive(Debug, Clone, Copy)]
struct Share {
    bytes: u64,
    at: Timestamp,
    lost: Option<Lost>,
}

impl Share {
    fn fill(&mut self, now: Timestamp, limits: &QueueLimits) {
        let gained = u128::from(now.since(self.at).0) * u128::from(limits.share_rate) / 1_000_000;
        // Less time than for a whole byte stays on the clock, so that frequent lines do not starve
        // the bucket.
        if gained > 0 {
            let gained = u64::try_from(gained).unwrap_or(u64::MAX);
            self.bytes = self.bytes.saturating_add(gained).min(limits.share_burst);
            self.at = now;
        }
    }
}

#[derive(Debug)]
pub(super) struct Queue {
    limits: QueueLimits,
    bytes: Vec<u8>,
    /// Bytes taken by the writer and not written; they count towards the limit.
    in_flight: usize,
    accepted: u64,
    is_urgent: bool,
    lost: Option<Lost>,
    shares: BTreeMap<u32, Share>,
    most_vms: usize,
}

impl Queue {
    pub(super) fn new(limits: QueueLimits) -> Self {
        Self {
            limits,
            bytes: Vec::new(),
            in_flight: 0,
            accepted: 0,
            is_urgent: false,
            lost: None,
            shares: BTreeMap::new(),
            most_vms: 0,
        }
    }

    /// Adds a line. Returns the position behind it, `None` when it was dropped.
    pub(super) fn push(
        &mut self,
        now: Timestamp,
        vm: Option<u32>,
        line: &str,
        is_urgent: bool,
    ) -> Option<u64> {
        let share_gap = self.admit(now, vm, line.len())?;
        let disk_gap = self.lost.map(|lost| lost.line(now, None, Why::Disk));
        let gaps =
            share_gap.as_ref().map_or(0, String::len) + disk_gap.as_ref().map_or(0, String::len);
        // After a loss half the queue must be free again, so that a slow disk leaves one gap and
        // not hundreds.
        let room = if self.lost.is_some() {
            self.limits.ring_bytes / 2
        } else {
            self.limits.ring_bytes
        };
        if self.bytes.len() + self.in_flight + gaps + line.len() > room {
            Lost::count(&mut self.lost, now);
            return None;
        }
        self.lost = None;
        if let Some(share) = vm.and_then(|vm| self.shares.get_mut(&vm)) {
            share.lost = None;
            share.bytes = share.bytes.saturating_sub(line.len() as u64);
        }
        for part in disk_gap.iter().chain(&share_gap) {
            self.put(part);
        }
        self.put(line);
        self.is_urgent |= is_urgent;
        Some(self.accepted)
    }

    fn put(&mut self, line: &str) {
        self.bytes.extend_from_slice(line.as_bytes());
        self.accepted += line.len() as u64;
    }

    /// Whether a VM's share allows a line, and the record of those that it did not allow before.
    fn admit(&mut self, now: Timestamp, vm: Option<u32>, length: usize) -> Option<Option<String>> {
        let Some(number) = vm else {
            return Some(None);
        };
        let limits = self.limits;
        let share = self.shares.entry(number).or_insert(Share {
            bytes: limits.share_burst,
            at: now,
            lost: None,
        });
        share.fill(now, &limits);
        let needed = if share.lost.is_some() {
            limits.share_burst / 4
        } else {
            length as u64
        };
        if share.bytes < needed.max(length as u64) {
            Lost::count(&mut share.lost, now);
            return None;
        }
        let gap = share.lost.map(|lost| lost.line(now, vm, Why::Noisy));
        self.most_vms = self.most_vms.max(self.shares.len());
        Some(gap)
    }

    pub(super) fn take(&mut self) -> Vec<u8> {
        self.is_urgent = false;
        self.in_flight = self.bytes.len();
        std::mem::take(&mut self.bytes)
    }

    /// This number of taken bytes is still unwritten.
    pub(super) fn remaining(&mut self, bytes: usize) {
        self.in_flight = bytes;
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    /// Whether lines were dropped since the last accepted one.
    pub(super) fn is_losing(&self) -> bool {
        self.lost.is_some()
    }

    pub(super) fn forget(&mut self, vm: u32) {
        self.shares.remove(&vm);
    }

    /// Largest number of VMs that wrote at a time.
    pub(super) fn most_vms(&self) -> usize {
        self.most_vms
    }
}

/// Pause of a failed writer before its next attempt.
pub(super) const RETRY: Span = Span::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::journal::decode;

    const LIMITS: QueueLimits = QueueLimits {
        ring_bytes: 1_000,
        share_burst: 400,
        share_rate: 10,
    };

    fn at(secs: u64) -> Timestamp {
        Timestamp(secs * 1_000_000)
    }

    fn gaps(bytes: &[u8]) -> Vec<Gap> {
        let lines = bytes.split_inclusive(|byte| *byte == b'\n');
        let records = lines.filter_map(|line| decode(line).ok());
        records
            .filter_map(|record| match record {
                Record::Gap(gap) => Some(gap),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn dropped_lines_are_counted_and_reported_once_the_queue_has_space() {
        let mut queue = Queue::new(LIMITS);
        let line = "x".repeat(199) + "\n";
        for second in 0..8 {
            let is_in = queue.push(at(second), None, &line, false).is_some();
            assert_eq!(is_in, second < 5, "line {second}");
        }
        assert!(queue.is_losing());
        let taken = queue.take();
        assert_eq!(taken.len(), 1_000);
        assert_eq!(
            queue.push(at(9), None, &line, false),
            None,
            "what is in flight counts"
        );
        queue.remaining(0);
        assert!(queue.push(at(10), None, &line, false).is_some());
        let gap = Gap {
            n: 4,
            span: 5_000_000,
            t: 10_000_000,
            vm: None,
            why: Why::Disk,
        };
        assert_eq!(gaps(&queue.take()), [gap]);
    }

    #[test]
    fn noisy_vm_loses_lines_and_others_do_not() {
        let mut queue = Queue::new(QueueLimits {
            ring_bytes: 10_000,
            ..LIMITS
        });
        let line = "x".repeat(99) + "\n";
        for second in 0..6 {
            let is_in = queue.push(at(0), Some(1), &line, false).is_some();
            assert_eq!(is_in, second < 4);
            assert!(queue.push(at(0), Some(2), "y\n", false).is_some());
        }
        assert_eq!(
            queue.push(at(9), Some(1), &line, false),
            None,
            "90 of 100 bytes"
        );
        assert!(queue.push(at(10), Some(1), &line, false).is_some());
        let gap = Gap {
            n: 3,
            span: 10_000_000,
            t: 10_000_000,
            vm: Some(1),
            why: Why::Noisy,
        };
        assert_eq!(gaps(&queue.take()), [gap]);
        assert_eq!(queue.most_vms(), 2);
    }

    #[test]
    fn positions_count_every_accepted_byte() {
        let mut queue = Queue::new(LIMITS);
        assert_eq!(queue.push(at(0), None, "abc\n", false), Some(4));
        assert!(!queue.is_urgent());
        assert_eq!(queue.push(at(0), None, "de\n", true), Some(7));
        assert!(queue.is_urgent());
        assert_eq!(queue.take(), b"abc\nde\n");
        assert!(!queue.is_urgent());
    }
}
