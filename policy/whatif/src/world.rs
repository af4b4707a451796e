//! The model: one VM's core, its peers, and a clock that jumps to the next event.

use std::collections::BTreeMap;

use agent::Observer;
use agent::core::actions::VmPatch;
use agent::core::journal::Output;
use agent::core::revision::StampedRevision;
use agent::core::{Action, Core, Event, RequestId, UpscaleRequest, VmInfo, VmUpdate};
use protocol::core::Core as _;
use protocol::journal::{Checkpoint, Size};
use protocol::permit::PluginResponse;
use protocol::revision::{Revision, RevisionWithTime};
use protocol::time::{Span, Timestamp, WallTime};
use protocol::units::Resources;

use crate::adviser::Asking;
use crate::columns::Need;
use crate::history::{Happening, Stretch};
use crate::peers::{REQUEST_FRACTION, Refused, ResizeTimes, downscale, permit};
use crate::trace::{Direction, guest_of};

/// Time of a request to a peer.
const CALL: Span = Span::from_millis(10);
/// Shortest time between two ticks.
const TICK: Span = Span::from_millis(1);
/// Shortest time between two requests of the monitor.
const REQUEST_EVERY: Span = Span::from_secs(1);

enum Pending {
    Reply(Event),
    /// The guest has the size.
    Arrival(Resources, Revision),
}

/// See the module.
pub(crate) struct World<'a> {
    core: Core,
    now: Timestamp,
    times: ResizeTimes,
    is_linked: bool,
    need_bytes: f64,
    limit: Option<Resources>,
    refused: Vec<Refused>,
    requested_at: Option<Timestamp>,
    is_migrating: bool,
    pending: BTreeMap<(Timestamp, u64), Pending>,
    numbered: u64,
    asking: Option<Asking<'a>>,
    observer: &'a mut dyn Observer,
}

/// The checkpoint without requests in flight. With `is_plain` no policy has decided before.
fn settled(checkpoint: &Checkpoint, is_plain: bool) -> Checkpoint {
    let mut settled = checkpoint.clone();
    settled.plugin.ongoing = None;
    settled.patch.ongoing = None;
    settled.patch.uncertain = None;
    settled.patch.version = None;
    settled.patch.seen = None;
    settled.monitor.ongoing = None;
    // The object's versions are those of other sizes.
    settled.obj.version = None;
    let (cpu, slots) = (settled.obj.cpu[2], settled.obj.mem[2]);
    let mem = settled.obj.slot.saturating_mul(u64::from(slots));
    settled.obj.actual = settled.obj.actual.or(Some(Size(cpu, mem)));
    if is_plain {
        settled.policy = Default::default();
    }
    settled
}

/// The core at the begin of a stretch.
pub(crate) fn core_of(stretch: &Stretch, is_plain: bool) -> Core {
    Core::restore(&stretch.settings, &settled(&stretch.checkpoint, is_plain))
}

impl<'a> World<'a> {
    /// The world at the begin of a stretch. Without `asking` the recorded policies decide.
    pub(crate) fn new(
        stretch: &Stretch,
        times: ResizeTimes,
        asking: Option<Asking<'a>>,
        observer: &'a mut dyn Observer,
    ) -> Self {
        let checkpoint = settled(&stretch.checkpoint, asking.is_some());
        observer.begins(&stretch.settings, &checkpoint);
        Self {
            core: Core::restore(&stretch.settings, &checkpoint),
            now: Timestamp(checkpoint.t),
            times,
            is_linked: checkpoint.monitor.approved.is_some(),
            need_bytes: 0.0,
            limit: None,
            refused: Vec::new(),
            requested_at: None,
            is_migrating: checkpoint.obj.migrating,
            pending: BTreeMap::new(),
            numbered: 0,
            asking,
            observer,
        }
    }

    /// Lives through the stretch. Returns what is left to ask with.
    pub(crate) fn run(mut self, stretch: &Stretch) -> Option<Asking<'a>> {
        if let Some(terms) = self.asking.as_ref().map(Asking::terms) {
            self.step(self.now, Event::Bound(Some(terms)));
        }
        let mut happenings = stretch.happenings.iter().peekable();
        loop {
            let pending = self.pending.keys().next().map(|(at, _)| *at);
            let happening = happenings.peek().map(|(at, _)| *at);
            let tick = self.core.poll_deadline().map(|at| at.max(self.now + TICK));
            let question = self.asking.as_ref().and_then(|one| one.due_at(self.now));
            let due = [pending, happening, tick, question].into_iter().flatten();
            let Some(at) = due.min().filter(|at| *at <= stretch.end) else {
                return self.asking;
            };
            if pending == Some(at) {
                self.take_pending();
            } else if happening == Some(at) {
                if let Some((at, happening)) = happenings.next() {
                    self.happens(*at, happening);
                }
            } else if question == Some(at) {
                self.ask(at);
            } else {
                self.step(at, Event::Tick);
            }
        }
    }

    fn ask(&mut self, at: Timestamp) {
        let now = at.max(self.now);
        let Some(asking) = &mut self.asking else {
            return;
        };
        if let Some(advice) = asking.ask(now, &self.core) {
            self.step(now, Event::Advised(advice));
        }
    }

    fn take_pending(&mut self) {
        match self.pending.pop_first() {
            Some(((at, _), Pending::Reply(event))) => self.step(at, event),
            Some(((at, _), Pending::Arrival(size, revision))) => self.arrive(at, size, revision),
            None => {}
        }
    }

    fn happens(&mut self, at: Timestamp, happening: &Happening) {
        match happening {
            Happening::Metrics(event) => {
                self.step(at, event.clone());
                if let Some(need) = Need::of(at, event) {
                    self.need_bytes = need.bytes;
                    self.request_growth(at, UpscaleRequest::default());
                }
            }
            Happening::Linked(is_linked) => {
                self.is_linked = *is_linked;
                let event = if *is_linked {
                    Event::MonitorActive
                } else {
                    self.drop_monitor_replies();
                    Event::MonitorReset
                };
                self.step(at, event);
            }
            Happening::UpscaleRequest(request, had) => {
                let has_request = self
                    .requested_at
                    .is_some_and(|before| at.since(before) < REQUEST_EVERY);
                if guest_of(&self.core).mem <= *had && !has_request {
                    self.requested_at = Some(at);
                    self.step(at, Event::MonitorUpscaleRequested(*request));
                }
            }
            Happening::Object(update) => self.change_object(at, update),
            Happening::Refused(size, refusal) => self.refused.push(Refused {
                at,
                size: *size,
                refusal: *refusal,
                need_bytes: self.need_bytes,
            }),
            Happening::Approved(size) => self.refused.retain(|one| one.size.mem < size.mem),
            Happening::Permits(limit) => self.limit = *limit,
            Happening::Policy(event) => {
                if self.asking.is_none() {
                    self.step(at, event.clone());
                }
            }
        }
    }

    /// The monitor requests growth while the need is over its part of the memory.
    fn request_growth(&mut self, at: Timestamp, request: UpscaleRequest) {
        let most = REQUEST_FRACTION * guest_of(&self.core).mem.0 as f64;
        if self.is_linked && self.need_bytes > most {
            self.requested_at = Some(at);
            self.step(at, Event::MonitorUpscaleRequested(request));
        }
    }

    fn drop_monitor_replies(&mut self) {
        self.pending.retain(|_, pending| {
            !matches!(
                pending,
                Pending::Reply(Event::MonitorUpscaleDone(..) | Event::MonitorDownscaleDone(..))
            )
        });
    }

    fn change_object(&mut self, at: Timestamp, update: &VmUpdate) {
        let own = self.core.vm();
        let mut info = VmInfo {
            current_revision: own.current_revision,
            actual: own.actual,
            last_revision: own.last_revision,
            version: None,
            ..update.info.clone()
        };
        info.set_using(self.core.using());
        self.is_migrating = update.is_pre_migrating;
        self.show_object(at, info, None);
    }

    fn arrive(&mut self, at: Timestamp, size: Resources, revision: Revision) {
        let mut info = self.core.vm().clone();
        info.actual = Some(size);
        info.last_revision = revision.value;
        info.current_revision = Some(RevisionWithTime {
            revision,
            updated_at: WallTime::default(),
        });
        self.show_object(at, info, Some(StampedRevision { revision, at }));
    }

    fn show_object(
        &mut self,
        at: Timestamp,
        info: VmInfo,
        current_revision: Option<StampedRevision>,
    ) {
        let update = VmUpdate {
            info,
            current_revision,
            is_pre_migrating: self.is_migrating,
        };
        self.step(at, Event::VmUpdated(Box::new(update)));
    }

    /// One step of the core. No two have the same time.
    fn step(&mut self, at: Timestamp, event: Event) {
        let now = at.max(self.now + Span(1));
        self.now = now;
        if let Some(asking) = &mut self.asking {
            asking.event(now, &event, &self.core);
        }
        self.observer.event(now, &event, &self.core);
        self.core.handle(now, event);
        let output = Output::of(&mut self.core, now);
        while self.core.poll_observation().is_some() {}
        self.observer.output(now, &output, &self.core);
        for (id, action) in output.started {
            self.respond(id, action);
        }
    }

    fn respond(&mut self, id: RequestId, action: Action) {
        let done_at = self.now + CALL;
        let event = match action {
            Action::Permit(request) => {
                let response = PluginResponse {
                    permit: permit(request.target, self.core.using(), self.limit),
                    migrate: None,
                };
                Event::PermitDone(id, Ok(response))
            }
            Action::VmPatch(request) => {
                self.resize(done_at, &request);
                Event::VmPatchDone(id, Ok(None))
            }
            Action::MonitorUpscale(_) => Event::MonitorUpscaleDone(id, Ok(())),
            Action::MonitorDownscale(request) => {
                let response = downscale(self.now, request.target, self.need_bytes, &self.refused);
                Event::MonitorDownscaleDone(id, Ok(response))
            }
        };
        self.put(done_at, Pending::Reply(event));
    }

    fn resize(&mut self, from: Timestamp, request: &VmPatch) {
        let is_arrival = |pending: &Pending| matches!(pending, Pending::Arrival(..));
        self.pending.retain(|_, pending| !is_arrival(pending));
        let span = match Direction::of(request.current, request.target) {
            Direction::Up => self.times.up,
            Direction::Down => self.times.down,
        };
        let arrival = Pending::Arrival(request.target, request.revision);
        self.put(from + span, arrival);
    }

    fn put(&mut self, at: Timestamp, pending: Pending) {
        self.numbered += 1;
        self.pending.insert((at, self.numbered), pending);
    }
}
