//! Steps of a call, counted by the interpreter's interrupts.

use std::cell::Cell;
use std::rc::Rc;

use mlua::{Error, Lua, Result, VmState};

/// Most interrupts of a call: iterations of loops, calls, and steps of a pattern.
pub const MAX_STEPS: u64 = 10_000;
/// Most memory that a call may take beyond the loaded policy and its question, bytes.
pub const MAX_MEMORY: usize = 1 << 20;

/// Count of the steps of the present call, shared with the interpreter.
#[derive(Debug, Clone, Default)]
pub(crate) struct Steps(Rc<Cell<u64>>);

impl Steps {
    /// Counts every interrupt of an interpreter.
    pub(crate) fn count(&self, lua: &Lua) {
        let steps = self.clone();
        lua.set_interrupt(move |_| steps.take(1).map(|()| VmState::Continue));
    }

    pub(crate) fn reset(&self) {
        self.0.set(0);
    }

    pub(crate) fn taken(&self) -> u64 {
        self.0.get()
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.taken() > MAX_STEPS
    }

    /// Counts steps.
    ///
    /// # Errors
    /// The budget is spent. A policy cannot catch the error.
    pub(crate) fn take(&self, steps: u64) -> Result<()> {
        self.0.set(self.taken().saturating_add(steps));
        if self.is_spent() {
            let text = format!("more than {MAX_STEPS} steps");
            return Err(Error::RuntimeError(text));
        }
        Ok(())
    }
}
