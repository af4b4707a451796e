//! All sets, as one core for one driver.

use std::collections::BTreeMap;

use protocol::core::Core;
use protocol::time::Timestamp;

use super::event::{Action, Event};
use super::state::SetCore;
use crate::core::Moment;

/// Namespace and name of a set.
pub type SetKey = (String, String);

/// The cores of all sets. A set has none of its actions before the VMs have been listed.
#[derive(Debug, Default)]
pub struct Sets {
    cores: BTreeMap<SetKey, SetCore>,
    has_vms: bool,
}

impl Sets {
    /// The watch has shown every VM once.
    pub fn listed_vms(&mut self) {
        self.has_vms = true;
    }
}

impl Core for Sets {
    type Time = Moment;
    type Event = (SetKey, Event);
    type Action = (SetKey, Action);

    fn handle(&mut self, now: Moment, (key, event): Self::Event) {
        let core = self.cores.entry(key.clone()).or_default();
        core.handle(now, event);
        if core.is_empty() {
            self.cores.remove(&key);
        }
    }

    fn poll_action(&mut self, now: Moment) -> Option<Self::Action> {
        if !self.has_vms {
            return None;
        }
        let mut cores = self.cores.iter_mut();
        cores.find_map(|(key, core)| Some((key.clone(), core.poll_action(now)?)))
    }

    fn poll_deadline(&self) -> Option<Timestamp> {
        let cores = self.cores.values().filter(|_| self.has_vms);
        cores.filter_map(SetCore::poll_deadline).min()
    }
}
