//! Records of policies: `B`, `P`, and answers that stay the same.

use protocol::journal::{Answered, AnsweredAgain, Bound, MAX_STEPS, Record, Step};
use protocol::policy::Role;
use protocol::time::Timestamp;
use serde::Serialize;

use super::Recorder;

/// Keeps the newest text. Returns whether it is another one.
fn replace(last: &mut Option<Box<[u8]>>, text: Vec<u8>) -> bool {
    let is_other = last.as_deref() != Some(&*text);
    if is_other {
        *last = Some(text.into());
    }
    is_other
}

fn text_of(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(record).expect("records are JSON")
}

impl Recorder {
    /// Records the policies of the VM unless the journal holds the same. Time and number of the VM
    /// are set here.
    pub fn bound(&mut self, now: Timestamp, bound: &Bound, out: &mut Vec<Record>) {
        let mut record = Bound {
            t: 0,
            vm: self.vm,
            ..bound.clone()
        };
        if replace(&mut self.bound, text_of(&record)) {
            record.t = now.0;
            out.push(Record::Bound(Box::new(record)));
        }
    }

    /// Records values of the feeds that the last `B` names.
    pub fn fed(&mut self, now: Timestamp, values: Vec<Option<f64>>, out: &mut Vec<Record>) {
        if values.iter().any(Option::is_some) {
            self.beside(now.0, Step::Feeds(values), out);
        }
    }

    /// Adds a step that is none of the core.
    fn beside(&mut self, at: u64, step: Step, out: &mut Vec<Record>) {
        self.block.push((at, step));
        // The next step must find room in the block.
        if self.block.len() + 1 >= MAX_STEPS {
            self.flush(out);
        }
    }

    /// Records the answer of a policy. The number of the VM is set here.
    pub fn answered(&mut self, answered: Answered, out: &mut Vec<Record>) {
        let record = Answered {
            vm: self.vm,
            ..answered
        };
        let last = &mut self.answers[record.role as usize];
        if !replace(last, text_of(&record.said())) {
            let again = AnsweredAgain {
                took: record.took,
                starved: record.s.0.unsigned_abs(),
                vms: record.vms,
            };
            let step = match record.role {
                Role::Live => Step::Advised(again),
                Role::Shadow => Step::Shadowed(again),
            };
            self.beside(record.t, step, out);
            return;
        }
        out.push(Record::Answered(Box::new(record)));
    }
}
