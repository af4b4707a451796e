//! How far the data of a report reaches.

use protocol::time::WallTime;

/// Times of the data, microseconds since 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Coverage {
    /// Times of the first and the last answer.
    answers: Option<(i64, i64)>,
    /// Time of the newest record.
    journal: Option<i64>,
}

impl Coverage {
    pub(super) fn answer(&mut self, at: i64) {
        let (first, last) = self.answers.unwrap_or((at, at));
        self.answers = Some((first.min(at), last.max(at)));
    }

    pub(super) fn record(&mut self, at: i64) {
        self.journal = self.journal.max(Some(at));
    }

    /// First answer, last answer and newest record, RFC 3339.
    pub(super) fn texts(self) -> [Option<String>; 3] {
        let (first, last) = self.answers.unzip();
        [first, last, self.journal].map(|at| Some(WallTime(at?).to_micro_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coverage_has_first_and_last_answer_and_the_newest_record() {
        let mut coverage = Coverage::default();
        assert_eq!(coverage.texts(), [None, None, None]);
        coverage.record(9_000_000);
        for at in [5_000_000, 3_000_000, 4_000_000] {
            coverage.answer(at);
        }
        coverage.record(8_000_000);
        let at = |second| Some(format!("1970-01-01T00:00:0{second}.000000Z"));
        assert_eq!(coverage.texts(), [at(3), at(5), at(9)]);
    }
}
