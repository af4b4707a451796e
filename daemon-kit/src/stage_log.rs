//! A bounded ring of stage records, which shows where the time of the last resizes went.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use protocol::trace::StageRecord;

/// Bounded, shared list of [`StageRecord`]s; the oldest fall out. Clones share it.
///
/// It uses a lock: writers hold it for one push, and a full ring never grows.
#[derive(Debug, Clone)]
pub struct StageLog {
    capacity: usize,
    ring: Arc<Mutex<VecDeque<StageRecord>>>,
}

impl StageLog {
    /// A ring of at most `capacity` records (at least one).
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            ring: Arc::default(),
        }
    }

    /// Adds a record; a full ring drops its oldest.
    pub fn record(&self, record: StageRecord) {
        let mut ring = self
            .ring
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if ring.len() == self.capacity {
            ring.pop_front();
        }
        ring.push_back(record);
    }

    /// All stored records, oldest first.
    #[must_use]
    pub fn snapshot(&self) -> Vec<StageRecord> {
        self.ring
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .iter()
            .cloned()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use protocol::trace::{Stage, TraceId};

    use super::*;

    #[test]
    fn full_ring_drops_its_oldest_record() {
        let log = StageLog::new(2);
        for revision in 1..=3 {
            log.clone().record(StageRecord {
                trace: TraceId {
                    vm: "default/vm".into(),
                    revision,
                },
                stage: Stage::Patch,
                start_unix_us: 0,
                duration_us: 1,
                change: String::new(),
            });
        }
        let kept: Vec<i64> = log
            .snapshot()
            .iter()
            .map(|record| record.trace.revision)
            .collect();
        assert_eq!(kept, [2, 3]);
    }
}
