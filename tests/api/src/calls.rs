//! The calls that programs under test have made.

use crate::api::{DEADLINE, TestApi};
use crate::call::Call;

impl TestApi {
    /// All calls so far, in their order.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.inner.state().calls.clone()
    }

    /// Lines of the calls so far.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let state = self.inner.state();
        state.calls.iter().map(|call| call.line.clone()).collect()
    }

    /// Number of calls so far whose line begins with `starts` and that `is` holds for.
    pub fn count(&self, starts: &str, is: impl Fn(&Call) -> bool) -> usize {
        let state = self.inner.state();
        let found = state
            .calls
            .iter()
            .filter(|call| call.line.starts_with(starts));
        found.filter(|call| is(call)).count()
    }

    /// Waits for the `count`th call.
    ///
    /// # Panics
    /// When it does not come in time.
    pub async fn wait_calls(&self, count: usize) {
        let mut called = self.inner.called.subscribe();
        let wait = tokio::time::timeout(DEADLINE, called.wait_for(|called| *called >= count));
        let called = wait.await.expect("the call came in time");
        called.expect("the server stands");
    }

    /// Takes a call down and returns its number.
    pub(crate) fn record(&self, call: &Call) -> usize {
        let mut state = self.inner.state();
        state.calls.push(call.clone());
        self.inner.called.send_replace(state.calls.len());
        state.calls.len() - 1
    }

    pub(crate) fn record_status(&self, number: usize, status: u16) {
        if let Some(call) = self.inner.state().calls.get_mut(number) {
            call.status = Some(status);
        }
    }
}
