//! Records of policies: `B`, `P`, and answers that stay the same.

use protocol::journal::{Answered, AnsweredAgain, Bound, MAX_STEPS, Record, Step};
use protocol::policy::Role;
use protocol::time::Timestamp;

use super::Recorder;

impl Recorder {
    /// Records the policies of the VM unless the journal holds the same. Time and number of the VM
    /// are set here.
    pub fn bound(&mut self, now: Timestamp, bound: &Bound, out: &mut Vec<Record>) {
        let is_same = self.bound.as_ref().is_some_and(|last| {
            let timeless = |bound: &Bound| Bound {
                t: 0,
                vm: 0,
                ..bound.clone()
            };
            timeless(last) == timeless(bound)
        });
        if is_same {
            return;
        }
        let record = Bound {
            t: now.0,
            vm: self.vm,
            ..bound.clone()
        };
        self.bound = Some(record.clone());
        out.push(Record::Bound(Box::new(record)));
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
        let last = self.answers.get(&record.role);
        if last.is_some_and(|last| last.says_as(&record)) {
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
        self.answers.insert(record.role, record.clone());
        out.push(Record::Answered(Box::new(record)));
    }
}
