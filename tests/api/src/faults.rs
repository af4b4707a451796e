//! Faults that a test orders.

use crate::api::{Fault, Rule, TestApi};
use crate::call::Call;

impl TestApi {
    /// Orders what becomes of the next `times` calls whose line begins with `starts`. Earlier
    /// orders come first.
    pub fn order(&self, starts: &str, times: u32, fault: Fault) {
        let mut state = self.inner.state();
        let number = state.rules.last().map_or(1, |last| last.number + 1);
        state.rules.push(Rule {
            number,
            starts: starts.to_owned(),
            times,
            fault,
        });
    }

    /// Orders what becomes of all calls whose line begins with `starts`, until it is taken back.
    pub fn always(&self, starts: &str, fault: Fault) {
        self.order(starts, u32::MAX, fault);
    }

    /// Takes back what was ordered for calls that begin so.
    pub fn take_back(&self, starts: &str) {
        self.inner
            .state()
            .rules
            .retain(|rule| rule.starts != starts);
        self.inner.mark_changed();
    }

    /// Takes back every order.
    pub fn take_all_back(&self) {
        self.inner.state().rules.clear();
        self.inner.mark_changed();
    }

    /// The next fault for a call behind order number `after`, which then is that of the fault. The
    /// order to hold a call is met again until it is taken back.
    pub(crate) fn next_fault(&self, call: &Call, after: &mut u64) -> Option<Fault> {
        let mut state = self.inner.state();
        let rule = state.rules.iter_mut().find(|rule| {
            rule.number > *after
                && rule.times > 0
                && call.line.starts_with(&rule.starts)
                && !matches!(rule.fault, Fault::Mute)
        })?;
        if matches!(rule.fault, Fault::Hold) {
            return Some(Fault::Hold);
        }
        *after = rule.number;
        if rule.times < u32::MAX {
            rule.times -= 1;
        }
        Some(rule.fault.clone())
    }

    pub(crate) fn is_muted(&self, line: &str) -> bool {
        let state = self.inner.state();
        let mut rules = state.rules.iter();
        rules.any(|rule| matches!(rule.fault, Fault::Mute) && line.starts_with(&rule.starts))
    }
}
