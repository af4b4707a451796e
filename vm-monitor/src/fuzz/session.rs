//! A whole session with the core: frames of any bytes between readings, stalls, slow hooks and new
//! connections.

use std::collections::{BTreeMap, VecDeque};

use protocol::core::Core as _;
use protocol::monitor::{
    AGENT_FRAME_LIMIT_BYTES, AgentBody, AgentFrame, MONITOR_FIRST_ID, MonitorBody, MonitorFrame,
    Version,
};
use protocol::monitor_v2::{
    AgentBodyV2, AgentFrameV2, MonitorBodyV2, MonitorFrameV2, SCHEDULE_LIMIT_BYTES,
};
use protocol::time::{Span, Timestamp};
use protocol::units::Bytes;

use crate::core::cache::{CacheChange, CacheFailure, CacheMode};
use crate::core::decision::{Watched, Weight};
use crate::core::event::Seen;
use crate::core::file_cache::Sizing;
use crate::core::files::{OomCounts, ReadFailure};
use crate::core::hooks::HookVeto;
use crate::core::memory::Rules;
use crate::core::pressure::{Scope, Stall, Stalled};
use crate::core::working_set::Gauge;
use crate::core::{Action, CloseReason, ConnectionId, Event, Monitor, Received, Setup};

/// Time without an agent after which the monitor ends, if it does.
const LONGEST_ALONE: Span = Span::from_secs(30);

/// What may be done at one instant before it is taken for going round in circles.
const ACTIONS_AT_ONCE: usize = 200;
/// Long enough for everything under way to end: growth is waited for the longest, three seconds for
/// each request.
const UNTIL_ALL_ENDS: Span = Span::from_secs(300);
/// Most of a session that is played: what a long one finds, a shorter one does.
const LINES_LIMIT: usize = 40;
/// Longest a session stands still between two lines.
const PAUSE_LIMIT_MS: u64 = 2000;
/// Requests that may be under way: those that wait, and what they wait for.
const WAITING_LIMIT: usize = 35;

/// A session in a few bytes and many lines. The first byte is the setup. A line that begins with
/// `+ = ^ % ! ? ~ # @` changes the world (see [`World::command`]); any other is a frame.
///
/// What holds: each request is answered once and under its id, each unreadable frame by
/// `InvalidMessage`, nothing else is; own ids are odd and rise; growth is asked for no more than
/// once a second; no shrink is approved on memory that could not be read; frames stay short; and
/// whatever was sent, the session goes on.
pub fn session(data: &[u8]) {
    let Some((setup, lines)) = data.split_first() else {
        return;
    };
    let mut world = World::new(*setup);
    world.connect();
    world.pass(Span::from_millis(500));
    for line in lines.split(|byte| *byte == b'\n').take(LINES_LIMIT) {
        match line.split_first() {
            Some((command, rest)) if b"+=^%!?~#@".contains(command) => {
                world.command(*command, number(rest));
            }
            _ => world.frame(line),
        }
    }
    world.end();
}

/// What is owed an answer under an id.
#[derive(Debug, Default, Clone, Copy)]
struct Owed {
    downscales: u32,
    upscales: u32,
    checks: u32,
    names: u32,
    complaints: u32,
    /// Complaints that may come: about schedules that may be too late.
    late_schedules: u32,
}

/// Everything around the core.
struct World {
    core: Monitor,
    watched: Watched,
    version: Version,
    now: Timestamp,
    connection: ConnectionId,
    used: Result<Bytes, ReadFailure>,
    bound: Option<Bytes>,
    seen: Seen,
    some_permille: u16,
    oom: u64,
    is_slow: bool,
    vetoes: bool,
    /// Outcomes that come with the next passing of time.
    later: VecDeque<Event>,
    /// Whether memory could be read when a shrink was last decided.
    was_readable: bool,
    owed: BTreeMap<u64, Owed>,
    /// The newest own id of this connection.
    last_own: Option<u64>,
    asked_at: Option<Timestamp>,
    /// Id of the newest request for a schedule.
    schedule_id: Option<u64>,
    is_ended: bool,
}

impl World {
    fn new(setup: u8) -> Self {
        let has = |bit: u8| setup & (1 << bit) != 0;
        let watched = match (has(1), has(2)) {
            (false, _) => Watched::Cgroup,
            (true, false) => Watched::Machine,
            (true, true) => Watched::Nothing,
        };
        let setup = Setup {
            rules: Rules::default(),
            sizing: Sizing::default(),
            watched,
            file_cache: if has(3) {
                CacheMode::Auto
            } else {
                CacheMode::Off
            },
            hooks: has(4),
            estimates: has(5) && watched == Watched::Cgroup,
            squeezes: has(5) && watched == Watched::Cgroup,
            asks_schedule: has(6),
            exit_when_alone: has(6).then_some(LONGEST_ALONE),
        };
        Self {
            core: Monitor::new(setup),
            watched,
            version: if has(0) { Version::V2 } else { Version::V1 },
            now: Timestamp(7_000_000),
            connection: ConnectionId(0),
            used: Ok(Bytes::mib(100)),
            bound: has(6).then_some(Bytes::mib(500)),
            seen: Seen {
                cpus: Some(2),
                total: Some(Bytes::gib(4)),
            },
            some_permille: 0,
            oom: 0,
            is_slow: has(7),
            vetoes: false,
            later: VecDeque::new(),
            was_readable: true,
            owed: BTreeMap::new(),
            last_own: None,
            asked_at: None,
            schedule_id: None,
            is_ended: false,
        }
    }

    /// `+ms` time passes · `=MiB` in use, 0 for unreadable · `^MiB` the bound, 0 for none ·
    /// `%permille` stalled · `!` hooks and file cache fail or do again · `?` slow or quick · `~` a
    /// stall · `#` out of memory · `@` a new agent.
    fn command(&mut self, command: u8, number: u64) {
        match command {
            b'+' => self.pass(Span::from_millis(number.min(PAUSE_LIMIT_MS))),
            b'=' if number == 0 => self.used = Err(ReadFailure::new("memory.stat", "gone")),
            b'=' => self.used = Ok(Bytes(number.saturating_mul(1 << 20))),
            b'^' => {
                let bytes = Bytes(number.saturating_mul(1 << 20));
                self.bound = (number > 0).then_some(bytes);
            }
            b'%' => self.some_permille = u16::try_from(number).unwrap_or(1000),
            b'!' => self.vetoes = !self.vetoes,
            b'?' => self.is_slow = !self.is_slow,
            b'~' => {
                let stall = if number.is_multiple_of(2) {
                    Stall::Some
                } else {
                    Stall::Full
                };
                self.tell(Event::Stalled(Stalled {
                    scope: Scope::Cgroup,
                    stall,
                    machine: None,
                    refaults: Some(number),
                }));
            }
            b'#' => {
                self.oom = self.oom.saturating_add(number);
                let (oom, oom_kill) = (self.oom, self.oom);
                self.tell(Event::OutOfMemory(OomCounts { oom, oom_kill }));
            }
            _ => {
                self.version = if number.is_multiple_of(2) {
                    Version::V2
                } else {
                    Version::V1
                };
                self.connect();
            }
        }
    }

    fn connect(&mut self) {
        self.connection = ConnectionId(self.connection.0 + 1);
        self.owed.clear();
        self.last_own = None;
        self.schedule_id = None;
        self.is_ended = false;
        let (connection, version) = (self.connection, self.version);
        let machine_total = self.seen.total;
        self.tell(Event::AgentReady {
            connection,
            version,
            machine_total,
        });
    }

    fn frame(&mut self, line: &[u8]) {
        let what = match std::str::from_utf8(line) {
            Ok(text) => {
                self.owe(text);
                Received::Text(text.to_owned())
            }
            Err(_) => {
                self.owed.entry(0).or_default().complaints += 1;
                Received::NotUtf8
            }
        };
        let connection = self.connection;
        self.tell(Event::Received { connection, what });
        let waiting = self.core.snapshot(self.now).waiting;
        assert!(waiting <= WAITING_LIMIT, "{waiting} requests wait");
        if self.is_ended {
            self.tell(Event::AgentGone { connection });
            self.connect();
        }
    }

    /// Notes what a frame is to be answered with.
    fn owe(&mut self, text: &str) {
        let read = if self.version >= Version::V2 {
            AgentFrameV2::decode(text)
        } else {
            AgentFrame::decode(text).map(|AgentFrame { body, id }| AgentFrameV2 {
                body: AgentBodyV2::Plain(body),
                id,
            })
        };
        let id = read
            .as_ref()
            .map_or_else(|error| error.id, |frame| frame.id);
        let owed = self.owed.entry(id).or_default();
        match read.map(|frame| frame.body) {
            Err(_) => owed.complaints += 1,
            Ok(AgentBodyV2::Capabilities { .. }) => owed.names += 1,
            Ok(AgentBodyV2::Schedule(_)) if self.schedule_id == Some(id) => {
                owed.late_schedules += 1;
            }
            Ok(AgentBodyV2::Schedule(_)) => owed.complaints += 1,
            Ok(AgentBodyV2::Plain(body)) => match body {
                AgentBody::DownscaleRequest { .. } => owed.downscales += 1,
                AgentBody::UpscaleNotification { .. } => owed.upscales += 1,
                AgentBody::HealthCheck => owed.checks += 1,
                AgentBody::InvalidMessage { .. } | AgentBody::InternalError { .. } => {}
            },
        }
    }

    fn tell(&mut self, event: Event) {
        self.core.handle(self.now, event);
        self.act();
    }

    fn act(&mut self) {
        let mut done = 0;
        while let Some(action) = self.core.poll_action(self.now) {
            done += 1;
            assert!(done <= ACTIONS_AT_ONCE, "there is no end to {action:?}");
            if let Some(event) = self.do_it(action) {
                self.core.handle(self.now, event);
            }
        }
    }

    fn do_it(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Probe => Some(Event::Probed(self.bound)),
            Action::Sample => Some(Event::Sampled(self.used.clone())),
            Action::Gauge => Some(Event::Gauged(self.bound.map(|current| Gauge {
                current,
                some_us: u64::from(self.some_permille),
            }))),
            Action::Reclaim { bytes } => {
                assert!(bytes.0 > 0 && bytes <= Bytes::mib(32));
                None
            }
            Action::Squeeze { operation, bytes } => {
                assert!(bytes <= Bytes::mib(128));
                if !self.vetoes {
                    self.bound = self
                        .bound
                        .map(|bound| Bytes(bound.0.saturating_sub(bytes.0)));
                }
                let gauge = self.bound.map(|current| Gauge {
                    current,
                    some_us: u64::from(self.some_permille),
                });
                self.now_or_later(Event::Squeezed { operation, gauge })
            }
            Action::Weigh => {
                self.was_readable = self.used.is_ok();
                Some(Event::Weighed(Weight {
                    some_permille: Some(self.some_permille),
                    ..Weight::default()
                }))
            }
            Action::ReadZones => Some(Event::ZonesRead(None)),
            Action::Observe => Some(Event::Observed(self.seen)),
            Action::Measure => Some(Event::Measured(Box::default())),
            Action::RunHooks { operation, .. } => {
                let outcome = if self.vetoes {
                    Err(HookVeto::new("10-no", "no"))
                } else {
                    Ok(())
                };
                self.now_or_later(Event::HooksDone { operation, outcome })
            }
            Action::SetFileCache { operation, size } => {
                let outcome = if self.vetoes {
                    let detail = "connection refused".to_owned();
                    Err(CacheFailure::Unreachable { detail })
                } else {
                    Ok(CacheChange {
                        was: None,
                        now: size,
                    })
                };
                self.now_or_later(Event::CacheSet { operation, outcome })
            }
            Action::Send { connection, frame } => {
                self.sent(connection, &frame);
                None
            }
            Action::SendV2 { connection, frame } => {
                self.sent_v2(connection, &frame);
                None
            }
            Action::WriteSchedule { spec } => {
                assert!(spec.len() <= SCHEDULE_LIMIT_BYTES, "{spec}");
                let is_written = !self.vetoes;
                self.now_or_later(Event::ScheduleWritten { is_written })
            }
            Action::EndAlone { alone } => {
                assert!(alone >= LONGEST_ALONE, "it ended after {alone:?}");
                None
            }
            Action::Close { connection, reason } => {
                match reason {
                    CloseReason::Replaced => assert!(connection < self.connection),
                    CloseReason::NotUtf8 | CloseReason::TooLarge => {
                        assert_eq!(connection, self.connection);
                        self.is_ended = true;
                    }
                }
                None
            }
        }
    }

    fn now_or_later(&mut self, event: Event) -> Option<Event> {
        if self.is_slow {
            self.later.push_back(event);
            return None;
        }
        Some(event)
    }

    fn sent(&mut self, connection: ConnectionId, frame: &MonitorFrame) {
        assert_eq!(connection, self.connection, "{frame:?}");
        self.is_short(&frame.encode());
        let owed = self.owed.entry(frame.id).or_default();
        let debt = match &frame.body {
            MonitorBody::UpscaleRequest => return self.asked(frame.id),
            MonitorBody::DownscaleResult { ok, .. } => {
                let is_blind = self.watched != Watched::Nothing && !self.was_readable;
                assert!(!ok || !is_blind, "approved blindly");
                &mut owed.downscales
            }
            MonitorBody::UpscaleConfirmation => &mut owed.upscales,
            MonitorBody::HealthCheck => &mut owed.checks,
            MonitorBody::InvalidMessage { .. } if owed.complaints > 0 => &mut owed.complaints,
            MonitorBody::InvalidMessage { .. } => &mut owed.late_schedules,
            MonitorBody::InternalError { .. } if owed.downscales > 0 => &mut owed.downscales,
            MonitorBody::InternalError { .. } => &mut owed.upscales,
        };
        *debt = debt
            .checked_sub(1)
            .unwrap_or_else(|| panic!("nobody asked for {frame:?}"));
    }

    fn sent_v2(&mut self, connection: ConnectionId, frame: &MonitorFrameV2) {
        assert_eq!(connection, self.connection, "{frame:?}");
        assert!(self.version >= Version::V2, "{frame:?}");
        self.is_short(&frame.encode());
        let owed = self.owed.entry(frame.id).or_default();
        let debt = match &frame.body {
            MonitorBodyV2::Asked(_) => return self.asked(frame.id),
            MonitorBodyV2::Metrics(_) => return self.own_id(frame.id),
            MonitorBodyV2::ScheduleRequest(_) => {
                self.schedule_id = Some(frame.id);
                return self.own_id(frame.id);
            }
            MonitorBodyV2::Capabilities { .. } => &mut owed.names,
            MonitorBodyV2::Refused(_) => &mut owed.downscales,
            MonitorBodyV2::Confirmed { .. } => &mut owed.upscales,
            MonitorBodyV2::Plain(body) => panic!("{body:?} goes out as version 1"),
        };
        *debt = debt
            .checked_sub(1)
            .unwrap_or_else(|| panic!("nobody asked for {frame:?}"));
    }

    fn is_short(&self, text: &str) {
        assert!(text.len() < AGENT_FRAME_LIMIT_BYTES / 2, "{text}");
    }

    fn asked(&mut self, id: u64) {
        let is_soon = |at: Timestamp| self.now.since(at) < Span::from_secs(1);
        assert!(!self.asked_at.is_some_and(is_soon), "asked twice a second");
        self.asked_at = Some(self.now);
        self.own_id(id);
    }

    fn own_id(&mut self, id: u64) {
        let expected = self.last_own.map_or(MONITOR_FIRST_ID, |last| last + 2);
        assert_eq!(id, expected);
        self.last_own = Some(id);
    }

    /// Time passes: what was due is done, and what was under way ends.
    fn pass(&mut self, span: Span) {
        let end = self.now + span;
        for event in std::mem::take(&mut self.later) {
            self.tell(event);
        }
        while let Some(at) = self.core.poll_deadline().filter(|at| *at <= end) {
            let before = self.now;
            self.now = self.now.max(at);
            self.act();
            let next = self.core.poll_deadline();
            assert!(next.is_none_or(|next| next > before), "time stands still");
        }
        self.now = end;
    }

    /// Everything ends, everything is answered, and a health check is too.
    fn end(mut self) {
        self.is_slow = false;
        let end = self.now + UNTIL_ALL_ENDS;
        while !self.later.is_empty() || self.core.snapshot(self.now).waiting > 0 {
            self.pass(Span::from_millis(3100));
            assert!(self.now < end, "{:?}", self.core.snapshot(self.now));
        }
        for (id, owed) in &self.owed {
            let Owed {
                downscales,
                upscales,
                checks,
                names,
                complaints,
                late_schedules: _,
            } = *owed;
            let unpaid = downscales + upscales + checks + names + complaints;
            assert_eq!(unpaid, 0, "silence under id {id}: {owed:?}");
        }
        let (body, id) = (AgentBody::HealthCheck, 1 << 52);
        self.frame(AgentFrame { body, id }.encode().as_bytes());
        assert_eq!(self.owed.get(&id).map(|owed| owed.checks), Some(0));
        let dump = self.core.snapshot(self.now);
        let dump = serde_json::to_string(&dump).expect("the state encodes");
        assert!(dump.len() < 64 * 1024, "the state has {} bytes", dump.len());
    }
}

/// The digits of a line as a number, 0 for none.
fn number(digits: &[u8]) -> u64 {
    let digits = digits.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0_u64, |number, digit| {
        number
            .saturating_mul(10)
            .saturating_add(u64::from(digit - b'0'))
    })
}
