//! Sees the steps of cores: of a replay, or of a model that runs them.

use std::fmt;

use protocol::journal::{Checkpoint, CoreSettings};
use protocol::time::Timestamp;

use crate::core::event::Event;
use crate::core::journal::Output;
use crate::core::machine::Core;

/// Sees the steps of one VM after the other.
pub trait Observer: fmt::Debug {
    /// The following steps are those of this checkpoint's VM. It is called once for each stretch of
    /// records without a gap.
    fn begins(&mut self, _settings: &CoreSettings, _checkpoint: &Checkpoint) {}

    /// The core is about to handle an event.
    fn event(&mut self, now: Timestamp, event: &Event, core: &Core);

    /// The core has computed.
    fn output(&mut self, now: Timestamp, output: &Output, core: &Core);
}
