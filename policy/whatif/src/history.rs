//! From the records of a journal to what happened to each VM, apart from what its decider did.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use agent::core::journal::Output;
use agent::core::{Core, DownscaleResponse, Event, Refusal, UpscaleRequest, VmInfo, VmUpdate};
use agent::{Observer, Replay};
use protocol::journal::{Checkpoint, CoreSettings, Record};
use protocol::time::{Span, Timestamp};
use protocol::units::{Bytes, Resources};

use crate::columns::Need;
use crate::peers::{REQUEST_FRACTION, ResizeTimes};
use crate::trace::{Trace, guest_of};

/// How long a monitor's upscale request counts as standing.
const REQUEST_LASTS: Span = Span::from_secs(10);
/// Part of its CPUs from which a guest's load may be held down by them.
const LOAD_CENSORED: f64 = 0.95;

/// Something that the model takes over from the record.
#[derive(Debug, Clone)]
pub(crate) enum Happening {
    /// Metrics reached the agent.
    Metrics(Event),
    /// The link to the monitor came up, or went down.
    Linked(bool),
    /// The monitor requested growth while its guest had this memory.
    UpscaleRequest(UpscaleRequest, Bytes),
    /// Bounds or settings of the VM changed.
    Object(Box<VmUpdate>),
    /// The monitor refused this size.
    Refused(Resources, Refusal),
    /// The monitor approved this size.
    Approved(Resources),
    /// The scheduler permits no more than this; `None` = all.
    Permits(Option<Resources>),
    /// Advice or limits of the policy that decided.
    Policy(Event),
}

/// Records of one VM without a gap.
#[derive(Debug, Clone)]
pub(crate) struct Stretch {
    pub(crate) settings: CoreSettings,
    pub(crate) checkpoint: Checkpoint,
    /// Calendar time of the clock's zero, microseconds since 1970.
    pub(crate) wall: u64,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) happenings: Vec<(Timestamp, Happening)>,
    pub(crate) needs: Vec<Need>,
    /// What the record shows.
    pub(crate) trace: Trace,
    pub(crate) end: Timestamp,
    object: Option<VmInfo>,
    permits: Option<Resources>,
    requested_at: Option<Timestamp>,
    is_migrating: bool,
}

/// What is recorded about one VM.
#[derive(Debug, Clone)]
pub struct History {
    /// `namespace/name` of the VM.
    pub name: String,
    pub(crate) stretches: Vec<Stretch>,
    /// VMs in the journal.
    pub(crate) vms: u32,
    pub(crate) times: ResizeTimes,
}

#[derive(Debug, Default)]
struct Gathered {
    wall: u64,
    labels: BTreeMap<u32, BTreeMap<String, String>>,
    vms: BTreeMap<String, Vec<Stretch>>,
    current: Option<Stretch>,
}

impl Gathered {
    fn close(&mut self) {
        if let Some(stretch) = self.current.take() {
            let name = stretch.checkpoint.name.clone();
            self.vms.entry(name).or_default().push(stretch);
        }
    }
}

#[derive(Debug, Clone, Default)]
struct Gatherer(Rc<RefCell<Gathered>>);

/// Takes the records of a journal in the order of the file.
#[derive(Debug)]
pub struct Reader {
    replay: Replay,
    gatherer: Gatherer,
}

impl Default for Reader {
    fn default() -> Self {
        let gatherer = Gatherer::default();
        Self {
            replay: Replay::new().with_observer(Box::new(gatherer.clone())),
            gatherer,
        }
    }
}

impl Reader {
    /// Takes the next record.
    pub fn take(&mut self, record: Record) {
        match &record {
            Record::Head(head) => {
                let wall = head.wall;
                // With the head of another run, the replay shows the steps of the one before.
                self.replay.take(record);
                self.gatherer.0.borrow_mut().wall = wall;
                return;
            }
            Record::Bound(bound) => {
                let mut gathered = self.gatherer.0.borrow_mut();
                gathered.labels.insert(bound.vm, bound.labels.clone());
            }
            _ => {}
        }
        self.replay.take(record);
    }

    /// The VMs of the records, by name.
    #[must_use]
    pub fn finish(self) -> Vec<History> {
        drop(self.replay.finish());
        let mut gathered = self.gatherer.0.take();
        gathered.close();
        let vms = u32::try_from(gathered.vms.len()).unwrap_or(u32::MAX);
        let of_all = ResizeTimes::of(
            gathered.vms.values().flatten().map(|one| &one.trace),
            ResizeTimes::default(),
        );
        let history = |(name, stretches): (String, Vec<Stretch>)| History {
            times: ResizeTimes::of(stretches.iter().map(|one| &one.trace), of_all),
            name,
            stretches,
            vms,
        };
        gathered.vms.into_iter().map(history).collect()
    }
}

impl Observer for Gatherer {
    fn begins(&mut self, settings: &CoreSettings, checkpoint: &Checkpoint) {
        let mut gathered = self.0.borrow_mut();
        gathered.close();
        let labels = gathered.labels.get(&checkpoint.vm).cloned();
        let stretch = Stretch::new(settings, checkpoint, gathered.wall, labels);
        gathered.current = Some(stretch);
    }

    fn event(&mut self, now: Timestamp, event: &Event, core: &Core) {
        if let Some(stretch) = &mut self.0.borrow_mut().current {
            stretch.event(now, event, core);
        }
    }

    fn output(&mut self, now: Timestamp, output: &Output, core: &Core) {
        if let Some(stretch) = &mut self.0.borrow_mut().current {
            stretch.trace.output(now, output, core);
            stretch.end = now;
        }
    }
}

impl Stretch {
    pub(crate) fn new(
        settings: &CoreSettings,
        checkpoint: &Checkpoint,
        wall: u64,
        labels: Option<BTreeMap<String, String>>,
    ) -> Self {
        let mut trace = Trace::default();
        trace.begins(settings, checkpoint);
        Self {
            settings: *settings,
            wall,
            labels: labels.unwrap_or_default(),
            happenings: Vec::new(),
            needs: Vec::new(),
            trace,
            end: Timestamp(checkpoint.t),
            object: None,
            permits: None,
            requested_at: None,
            is_migrating: checkpoint.obj.migrating,
            checkpoint: checkpoint.clone(),
        }
    }

    fn event(&mut self, now: Timestamp, event: &Event, core: &Core) {
        self.trace.event(now, event, core);
        if let Event::SystemMetrics(_) = event {
            self.need(now, event, core);
        }
        if let Event::MonitorUpscaleRequested(_) = event {
            self.requested_at = Some(now);
        }
        if let Some(happening) = self.happening(event, core) {
            self.happenings.push((now, happening));
        }
    }

    fn need(&mut self, now: Timestamp, event: &Event, core: &Core) {
        let guest = guest_of(core);
        let Some(mut need) = Need::of(now, event) else {
            return;
        };
        let requests = self
            .requested_at
            .is_some_and(|at| now.since(at) < REQUEST_LASTS);
        need.is_censored = requests
            || need.cpus >= LOAD_CENSORED * f64::from(guest.cpu.0) / 1000.0
            || need.bytes > REQUEST_FRACTION * guest.mem.0 as f64;
        self.needs.push(need);
    }

    fn happening(&mut self, event: &Event, core: &Core) -> Option<Happening> {
        Some(match event {
            Event::SystemMetrics(_) | Event::LfcMetrics(_) => Happening::Metrics(event.clone()),
            Event::MonitorActive => Happening::Linked(true),
            Event::MonitorReset => Happening::Linked(false),
            Event::MonitorUpscaleRequested(request) => {
                Happening::UpscaleRequest(*request, guest_of(core).mem)
            }
            Event::VmUpdated(update) => return self.object(update, core),
            Event::MonitorDownscaleDone(_, Ok(DownscaleResponse::Denied(refusal))) => {
                let (_, _, refused) = core.monitor_under_way()?;
                Happening::Refused(refused, *refusal)
            }
            Event::MonitorDownscaleDone(_, Ok(DownscaleResponse::Allowed)) => {
                let (_, _, approved) = core.monitor_under_way()?;
                Happening::Approved(approved)
            }
            Event::PermitDone(_, Ok(response)) => {
                let asked = core.last_request()?;
                let permit = response.permit;
                let permits = permit.has_field_below(asked).then_some(permit);
                if permits == self.permits {
                    return None;
                }
                self.permits = permits;
                Happening::Permits(permits)
            }
            Event::Advised(_) | Event::Bound(_) => Happening::Policy(event.clone()),
            _ => return None,
        })
    }

    /// A change of the object that no decision of the agent made.
    fn object(&mut self, update: &VmUpdate, core: &Core) -> Option<Happening> {
        let before = self.object.as_ref().unwrap_or_else(|| core.vm());
        let bounds = |info: &VmInfo| (info.min(), info.max(), info.mem.slot_size);
        let is_same = bounds(before) == bounds(&update.info)
            && before.config.scaling == update.info.config.scaling
            && self.is_migrating == update.is_pre_migrating;
        self.is_migrating = update.is_pre_migrating;
        self.object = Some(update.info.clone());
        (!is_same).then(|| Happening::Object(Box::new(update.clone())))
    }
}
