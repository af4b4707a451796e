//! A certificate, its issuer and a clock.

use super::*;

/// A course, its objects, and a time that is moved on.
pub(super) struct Scene {
    pub(super) state: CertificateState,
    pub(super) ca: Ca,
    pub(super) at: Moment,
}

impl Scene {
    pub(super) fn new(ca: Ca) -> Self {
        Self {
            state: CertificateState::default(),
            ca,
            at: Moment {
                now: Timestamp(1_000_000),
                wall: wall(),
            },
        }
    }

    pub(super) fn next_step(&self) -> NextStep {
        let vm = sample_vm();
        let next_step = self
            .state
            .next_step(&vm, "tls-neonvm-example", &tls(), self.at);
        next_step.expect("the spec is in order")
    }

    /// Does the next thing; `None` if there is none.
    pub(super) fn step(&mut self) -> Option<Step> {
        let Action::Certificate { step, order } = self.next_step().action? else {
            panic!("another action");
        };
        let facts = self.ca.take(&step, &order, self.at.wall);
        self.state.refresh(&order.wanted, facts, self.at);
        Some(step)
    }

    /// Until nothing is to be done now, or the issuer is waited for in vain.
    pub(super) fn settle(&mut self) -> usize {
        for steps in 0..50 {
            let before = self.ca.facts.clone();
            match self.step() {
                None => return steps,
                Some(Step::Await { .. }) if self.ca.facts == before => return steps,
                Some(_) => {}
            }
        }
        panic!("it never rests: {:?}", self.ca.facts);
    }

    pub(super) fn pass(&mut self, time: Span) {
        self.at.now = self.at.now + time;
        self.at.wall = WallTime(self.at.wall.0 + i64::try_from(time.0).expect("small"));
    }

    pub(super) fn kept(&self) -> Option<&Certificate> {
        match &self.ca.facts.stored {
            Stored::Pair(pair) => Some(pair),
            _ => None,
        }
    }
}
