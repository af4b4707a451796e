//! The scheduler's core: sums per node, permits, placement of pods, and migrations.
//!
//! The core is synchronous and deterministic, as [`protocol::core`] says. After a restart the
//! objects of the API rebuild its state, which no other place holds.
//!
//! ```text
//! Nodes, Pods, VMs (watch) ──► ledger ──► sums per node
//!                                │  ▲
//! permit request ──► decide ─────┘  │ holds     the response follows the durable write
//!        └──► write of the VM ──────┘
//! unbound pod ──► fit, score ──► bind hold ──► binding
//! denials, sums ──► pressure ──► choice ──► migration
//! kube-scheduler ──► filter, score, preempt; bind ──► bind hold ──► binding
//! ```
//!
//! Cold start: until nodes, pods and VMs are listed, permits are refused with 503 and no pod is
//! placed. Writes of an earlier process must have ended before the lists begin (see `shell`). A
//! standby replica may cache its watches and take over from a leader that hands over, without lists
//! ([`standby`]).
//!
//! Invariants (docs/compatibility/scheduler.md §6), all checked after every step of both tests in
//! `tests/interleavings.rs` (`n06_n08_never_overcommits_under_any_interleaving`,
//! `n13_n16_n26_long_runs_reach_every_kind_of_trouble`):
//! * I1: no decision of ours takes a node's granted sum past its total;
//! * I2: a permit is durable before the response;
//! * I3: a decrease frees headroom only after its write was observed;
//! * I4: use ≤ last permit ≤ counted amount, per VM, across restarts.

pub mod amount;
pub mod decide;
pub mod decision;
mod digest;
pub mod event;
pub mod extend;
pub mod fair;
#[cfg(test)]
mod fixtures;
mod kubelet_requests;
pub mod ledger;
pub mod migrate;
mod node_view;
mod object;
mod observe;
pub mod overcommit;
mod permits;
mod placement;
mod pod_problem;
mod pod_requests;
pub mod pod_warnings;
pub mod pressure;
pub mod rules;
pub mod score;
pub mod standby;
mod status;
mod step;
mod terms;
pub mod view;

pub use leader_election::core::{elect, lease};

use std::collections::VecDeque;

use protocol::permit::PermitRefusal;
use protocol::time::Timestamp;

pub use event::NO_ROOM_MESSAGE;
use event::{
    Action, BindOutcome, CallId, CallOutcome, Event, ExtenderResponse, ObjectKind, PermitResponse,
    RequestId, WatchProgress,
};
use extend::Extender;
use lease::{Lead, LeaseRule};
use ledger::Ledger;
use migrate::{Migrate, MigrationRule};
use permits::Permits;
pub use permits::{MAX_CONFLICTS, MAX_UNCLEAR, MAX_WAITING, PermitAnomalies, Timing};
use placement::Placement;
use pod_warnings::PodWarnings;
use pressure::DeniedIncreases;
use rules::Rules;
use standby::{NewestVersions, StandbyCache, VersionMarks};
use step::StepContext;

/// Largest number of pods in a state dump, and of VMs. Building the dump takes the driver's time.
pub const MAX_SHOWN: usize = 5000;

/// Settings of a core for its lifetime.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Rules by which the ledger counts.
    pub rules: Rules,
    /// Bounds on permit requests and calls.
    pub timing: Timing,
    /// When and how many VMs are migrated.
    pub migration: MigrationRule,
    /// Whether the scheduler places pods itself, for one machine without kube-scheduler.
    pub places_pods: bool,
    /// The rule of the Lease that elects a leader. `None`: there are no other replicas.
    pub lease: Option<LeaseRule>,
    /// Whether this replica lists and watches while another leads. It can then take over without
    /// lists from a leader that hands over.
    pub caches_on_standby: bool,
}

/// The kinds that have been listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
struct Synced {
    nodes: bool,
    pods: bool,
    vms: bool,
}

/// The state machine of one scheduler.
#[derive(Debug, Clone)]
pub struct Core {
    ledger: Ledger,
    permits: Permits,
    placement: Placement,
    denied_increases: DeniedIncreases,
    migrate: Migrate,
    extender: Extender,
    pod_warnings: PodWarnings,
    synced: Synced,
    lead: Option<Lead>,
    caches_on_standby: bool,
    /// Receives lists and watch events until a term makes it the state.
    standby_cache: Option<StandbyCache>,
    /// The marks that a term after a hand-over waits for, and the deadline.
    awaited: Option<(VersionMarks, Timestamp)>,
    /// The marks for the next leader.
    newest: NewestVersions,
    out: VecDeque<Action>,
}

/// The parts that use a [`StepContext`].
struct Parts<'a> {
    permits: &'a mut Permits,
    placement: &'a mut Placement,
    extender: &'a mut Extender,
    migrate: &'a mut Migrate,
}

impl Core {
    /// A core with empty state.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let caches_on_standby = settings.caches_on_standby && settings.lease.is_some();
        Self {
            ledger: Ledger::new(settings.rules),
            permits: Permits::new(settings.timing),
            placement: Placement::new(settings.places_pods),
            denied_increases: DeniedIncreases::default(),
            migrate: Migrate::new(settings.migration),
            extender: Extender::new(!settings.places_pods),
            pod_warnings: PodWarnings::new(settings.places_pods),
            synced: Synced::default(),
            lead: settings.lease.map(Lead::new),
            caches_on_standby,
            standby_cache: caches_on_standby.then(StandbyCache::default),
            awaited: None,
            newest: NewestVersions::default(),
            out: caches_on_standby
                .then_some(Action::List)
                .into_iter()
                .collect(),
        }
    }
}

impl protocol::core::Core for Core {
    type Time = Timestamp;
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Timestamp, event: Event) {
        match event {
            Event::Lease(seen) => self.lead.handle(now, seen),
            Event::PermitRequest(request_id, _) if !self.may_permit(now) => {
                self.refuse_permit(request_id)
            }
            Event::PermitRequest(request_id, request) => {
                self.with_permits(now, |permits, context| {
                    permits.request(context, request_id, request)
                });
            }
            Event::ExtenderRequest(request_id, _) if !self.may_permit(now) => {
                self.refuse_extender(request_id)
            }
            Event::ExtenderRequest(request_id, request) => {
                self.with(now, |parts, context| {
                    parts.extender.request(context, request_id, request)
                });
            }
            Event::PodRead(id, outcome) => {
                self.with(now, |parts, context| {
                    parts.extender.pod_read(context, id, outcome);
                });
            }
            Event::WriteDone(id, outcome) | Event::ReadDone(id, outcome) => {
                if let CallOutcome::Done(vm) = &outcome {
                    self.newest.record(ObjectKind::VirtualMachines, vm.version);
                }
                self.with_permits(now, |permits, context| {
                    permits.call_done(context, id, outcome)
                });
            }
            Event::BindDone(id, outcome) => {
                self.bind_done(now, id, &outcome);
            }
            Event::MigrationDone(id, outcome) => {
                self.with(now, |parts, context| {
                    parts.migrate.call_done(context, id, &outcome)
                });
            }
            Event::WatchProgress(kind, progress) => self.watch_progressed(kind, progress),
            update => match &mut self.standby_cache {
                Some(cache) => cache.observe(update),
                // The watch began before this term's lists, which are newer.
                None if self.lead.as_ref().is_some_and(|lead| !lead.is_open()) => {}
                None => self.observe(now, update),
            },
        }
    }

    fn poll_action(&mut self, now: Timestamp) -> Option<Action> {
        self.follow_lead(now);
        if self.out.is_empty() && self.is_ready() {
            self.denied_increases.expire(now);
            self.with(now, |parts, context| {
                parts.permits.tick(context);
                parts.placement.tick(context);
                parts.extender.tick(context);
                parts.migrate.tick(context);
            });
        }
        self.out.pop_front()
    }

    fn poll_deadline(&self) -> Option<Timestamp> {
        let lead = self.lead.poll_deadline();
        let catch_up = self.awaited.map(|(_, until)| until);
        let work = [
            self.permits.poll_deadline(),
            self.placement.poll_deadline(),
            // Until migrations are listed, the end of a denied increase has no effect.
            self.denied_increases
                .poll_deadline()
                .filter(|_| self.migrate.is_listed()),
            self.migrate.poll_deadline(),
            self.extender.poll_deadline(),
        ];
        let work_deadlines = work.into_iter().flatten().filter(|_| self.is_ready());
        work_deadlines.chain(lead).chain(catch_up).min()
    }
}

impl Core {
    fn watch_progressed(&mut self, kind: ObjectKind, progress: Option<WatchProgress>) {
        match &mut self.standby_cache {
            Some(cache) => cache.progress(kind, progress),
            None => self.newest.progress(kind, progress),
        }
    }

    fn bind_done(&mut self, now: Timestamp, id: CallId, outcome: &BindOutcome) {
        self.with(now, |parts, context| {
            if !parts.extender.bind_done(context, id, outcome) {
                parts.placement.bind_done(context, id, outcome);
            }
        });
    }

    fn refuse_extender(&mut self, request_id: RequestId) {
        let response = ExtenderResponse::NotReady;
        self.out.push_back(Action::RespondExtender {
            request_id,
            response,
        });
    }

    fn refuse_permit(&mut self, request_id: RequestId) {
        self.out.push_back(Action::RespondPermit(PermitResponse {
            request_id,
            node: None,
            result: Err(PermitRefusal::NotReady),
            decision: None,
            is_notable: false,
        }));
    }

    fn with_permits(&mut self, now: Timestamp, f: impl FnOnce(&mut Permits, &mut StepContext<'_>)) {
        self.with(now, |parts, context| f(parts.permits, context));
    }

    fn with(&mut self, now: Timestamp, f: impl FnOnce(Parts<'_>, &mut StepContext<'_>)) {
        let mut context = StepContext {
            now,
            ledger: &mut self.ledger,
            denied_increases: &mut self.denied_increases,
            out: &mut self.out,
        };
        let parts = Parts {
            permits: &mut self.permits,
            placement: &mut self.placement,
            extender: &mut self.extender,
            migrate: &mut self.migrate,
        };
        f(parts, &mut context);
    }
}
