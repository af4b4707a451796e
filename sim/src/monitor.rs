//! The one place that knows the monitor's core: the shipped one, with the machine's memory watched
//! and no file cache.

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

/// What the monitor wants done.
#[derive(Debug)]
pub enum Wants {
    /// Memory use is to be read.
    Sample,
    /// A frame is to be sent.
    Send(u64, MonitorFrame),
    /// A connection is to be ended.
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

    /// Memory use was read, or not.
    pub fn sampled(&mut self, now: Timestamp, used: Option<u64>) {
        let outcome = used
            .map(Bytes)
            .ok_or_else(|| ReadFailure::new("/proc/meminfo", "unreadable"));
        self.core.handle(now, Event::Sampled(outcome));
    }

    /// The next thing it wants.
    pub fn poll(&mut self, now: Timestamp) -> Option<Wants> {
        loop {
            return Some(match self.core.poll_action(now)? {
                // There is no cheaper figure than the use, so it is read at each look.
                Action::Probe => {
                    self.core.handle(now, Event::Probed(None));
                    continue;
                }
                // Nothing is in swap, and nothing waits for memory.
                Action::Weigh => {
                    self.core.handle(now, Event::Weighed(Weight::default()));
                    continue;
                }
                Action::ReadZones => {
                    self.core.handle(now, Event::ZonesRead(None));
                    continue;
                }
                Action::Sample => Wants::Sample,
                Action::Send { connection, frame } => Wants::Send(connection.0, frame),
                Action::Close { connection, .. } => Wants::Close(connection.0),
                // There is no file cache in these guests, no hook, and nobody speaks version 2.
                Action::SetFileCache { .. }
                | Action::RunHooks { .. }
                | Action::Observe
                | Action::Measure
                | Action::SendV2 { .. }
                | Action::Gauge
                | Action::Squeeze { .. }
                | Action::Reclaim { .. } => continue,
            });
        }
    }

    /// When it wants to be asked though nothing happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        self.core.poll_deadline()
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
