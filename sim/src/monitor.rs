//! The one place that knows the monitor's core: the shipped one, with the machine's memory watched
//! and no file cache.

mod turn;

use protocol::core::Core as _;
use protocol::monitor::{MonitorFrame, Version};
use protocol::time::{Span, Timestamp};
use protocol::units::Bytes;
use vm_monitor::core::cache::CacheMode;
use vm_monitor::core::decision::{Watched, Weight};
use vm_monitor::core::file_cache::Sizing;
use vm_monitor::core::files::ReadFailure;
use vm_monitor::core::memory::Rules;
use vm_monitor::core::{Action, ConnectionId, Event, Monitor, Received, Setup};

/// An action on a connection.
enum LinkAction {
    Send(u64, MonitorFrame),
    Close(u64),
}

/// A monitor in a guest.
#[derive(Debug)]
pub struct GuestMonitor {
    core: Monitor,
    reserve: Bytes,
}

impl GuestMonitor {
    /// A new one that reads memory use once in `interval`.
    #[must_use]
    pub fn new(interval: Span) -> Self {
        let rules = Rules {
            sample_interval: interval,
            ..Rules::default()
        };
        let setup = Setup {
            rules,
            sizing: Sizing::default(),
            watched: Watched::Machine,
            file_cache: CacheMode::Off,
            hooks: false,
            estimates: false,
            squeezes: false,
            asks_schedule: false,
            exit_when_alone: None,
        };
        Self {
            core: Monitor::new(setup),
            reserve: rules.kernel_reserve,
        }
    }

    /// An agent is there; the machine has this much memory.
    pub fn agent_ready(&mut self, now: Timestamp, connection: u64, memory: u64) {
        let machine_total = Some(Bytes(memory.saturating_sub(self.reserve.0)));
        self.core.handle(
            now,
            Event::AgentReady {
                connection: ConnectionId(connection),
                version: Version::V1,
                machine_total,
            },
        );
    }

    /// A connection is gone.
    pub fn agent_gone(&mut self, now: Timestamp, connection: u64) {
        self.core.handle(
            now,
            Event::AgentGone {
                connection: ConnectionId(connection),
            },
        );
    }

    /// A frame came.
    pub fn received(&mut self, now: Timestamp, connection: u64, text: String) {
        let what = Received::Text(text);
        self.core.handle(
            now,
            Event::Received {
                connection: ConnectionId(connection),
                what,
            },
        );
    }

    /// Carries out what needs only the guest, whose use of memory is `used` if it can be read.
    /// Returns what needs a connection.
    fn carry_out(
        &mut self,
        now: Timestamp,
        action: Action,
        used: Option<u64>,
    ) -> Option<LinkAction> {
        let event = match action {
            // There is no cheaper figure than the use, so it is read at each look.
            Action::Probe => Event::Probed(None),
            // Nothing is in swap, and nothing waits for memory.
            Action::Weigh => Event::Weighed(Weight::default()),
            Action::ReadZones => Event::ZonesRead(None),
            Action::Sample => {
                let unreadable = || ReadFailure::new("/proc/meminfo", "unreadable");
                Event::Sampled(used.map(Bytes).ok_or_else(unreadable))
            }
            Action::Send { connection, frame } => {
                return Some(LinkAction::Send(connection.0, frame));
            }
            Action::Close { connection, .. } => return Some(LinkAction::Close(connection.0)),
            // There is no file cache in these guests, no hook, nobody speaks version 2, and these
            // monitors stay.
            Action::SetFileCache { .. }
            | Action::RunHooks { .. }
            | Action::Observe
            | Action::Measure
            | Action::SendV2 { .. }
            | Action::Gauge
            | Action::Squeeze { .. }
            | Action::WriteSchedule { .. }
            | Action::EndAlone { .. }
            | Action::Reclaim { .. } => return None,
        };
        self.core.handle(now, event);
        None
    }

    /// The size of memory it counts on, while it serves an agent.
    #[must_use]
    pub fn counts_on(&self, now: Timestamp) -> Option<Bytes> {
        let dump = self.core.snapshot(now);
        dump.connection
            .and(dump.total)
            .map(|total| Bytes(total.0 + self.reserve.0))
    }
}
