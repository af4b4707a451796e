//! One permit request, decided: a pure function of the ledger and the request, with its reasons as
//! data.
//!
//! Per resource, independently (docs/compatibility/scheduler.md §2.3, §2.4):
//!
//! ```text
//! shown = the largest of: approved by the VM's object, in use by it, targets of writes under way
//! held  = what the agent says it was permitted, but no more than is shown; at least what is in use when nothing is approved;
//!         at first contact the larger of approved and in use
//! most  = the VM's own largest size; held where that is not known
//! asked <= held : permit = asked
//! asked >  held : permit = held + a grant of what the node has left, up to `most`, unless something forbids any grant
//!                 (`Limit`)
//! approved       = permit, and not less than the VM uses by the version of its object that the write is conditional on
//! ```
//!
//! An agent's word and the object's have to agree: neither a forged request nor a forged annotation
//! is room on the node.

use protocol::permit::{AgentRequest, NamespacedName, PermitRefusal};
use protocol::time::Timestamp;
use protocol::units::Resources;
use serde::Serialize;

use super::amount::{Both, GrantInput, Resource, grant};
use super::fair::{Case, Fair};
use super::ledger::{Ledger, VmEntry};
use super::view::{Noted, PodRole, PodView};

/// What kept an increase from being granted whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The node has no room for it.
    NoRoom,
    /// The node's object is not known, so that its room is not.
    NodeMissing,
    /// The agent says it was permitted more than is approved; it is granted nothing beyond what is.
    Claim,
    /// The VM's own largest size, or that size is not known.
    VmMax,
    /// The VM is being migrated.
    Migrating,
    /// Another scheduler places this pod.
    ForeignScheduler,
    /// The VM is not labelled as autoscaled, or its namespace is ignored.
    NotAutoscaled,
    /// The pod has ended.
    Ended,
    /// The approved annotation does not parse; it is repaired first.
    Garbled,
    /// The compute unit is zero.
    ZeroUnit,
    /// Others on the node want more too, and this is its part of what is left.
    FairShare,
    /// VMs of a higher priority on the node want what is left.
    Priority,
    /// The VM or its node grew as much as it may for now.
    GrowthRate,
}

impl Limit {
    /// The word for metric labels and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoRoom => "no_room",
            Self::NodeMissing => "node_missing",
            Self::Claim => "claim",
            Self::VmMax => "vm_max",
            Self::Migrating => "migrating",
            Self::ForeignScheduler => "foreign_scheduler",
            Self::NotAutoscaled => "not_autoscaled",
            Self::Ended => "ended",
            Self::Garbled => "garbled",
            Self::ZeroUnit => "zero_unit",
            Self::FairShare => "fair_share",
            Self::Priority => "priority",
            Self::GrowthRate => "growth_rate",
        }
    }

    /// Whether more room on the node would help.
    #[must_use]
    pub const fn is_want_of_room(self) -> bool {
        matches!(self, Self::NoRoom | Self::FairShare | Self::Priority)
    }
}

/// What became of the wish for one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Not more than is held.
    Accepted,
    /// An increase, whole.
    Granted,
    /// An increase, in part.
    Partial(Limit),
    /// An increase, not at all.
    Denied(Limit),
}

impl Outcome {
    /// What limited it.
    #[must_use]
    pub const fn limit(self) -> Option<Limit> {
        match self {
            Self::Partial(limit) | Self::Denied(limit) => Some(limit),
            Self::Accepted | Self::Granted => None,
        }
    }
}

/// The decision on one resource. Amounts are thousandths of a core, or bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Verdict {
    /// What was asked.
    pub asked: u64,
    /// What was held before.
    pub held: u64,
    /// What is held from now on.
    pub permit: u64,
    /// The VM's own largest size. No permit is above it.
    pub most: u64,
    /// How far beyond `held` it could have grown.
    pub room: u64,
    /// What became of it.
    pub outcome: Outcome,
}

/// The decision on one request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Decision {
    /// The VM's pod.
    pub pod: NamespacedName,
    /// The VM.
    pub vm: NamespacedName,
    /// The pod's node.
    pub node: String,
    /// Each resource.
    pub verdicts: Both<Verdict>,
    /// The answer.
    pub permit: Resources,
    /// What is to be written as approved: the answer, or what the VM uses where that is more. An
    /// agent lowers its use before it tells, so a request for less than what is used is one that an
    /// agent sent before it ended, and a successor has grown since.
    pub approved: Resources,
    /// The part of `last_permit` that goes beyond what is approved and was asked again.
    pub claim: Option<Resources>,
    /// Whether anything of `last_permit` went beyond what is approved and under way.
    pub overclaimed: bool,
    /// Whether the VM's approved annotation does not parse.
    pub garbled: bool,
    /// Whether the VM's annotations are ours to write.
    pub autoscaled: bool,
}

impl Decision {
    /// Whether anything more than what is held was asked.
    #[must_use]
    pub fn is_increase(&self) -> bool {
        self.verdicts.any(|verdict| verdict.asked > verdict.held)
    }

    /// Whether more than is held was asked, by one that says it was permitted more.
    #[must_use]
    pub fn rests_on_claim(&self) -> bool {
        self.overclaimed && self.is_increase()
    }

    /// What limited it, CPU first.
    #[must_use]
    pub fn limits(&self) -> Vec<(Resource, Limit)> {
        let limits = Resource::ALL.into_iter();
        limits
            .filter_map(|r| Some((r, self.verdicts.get(r).outcome.limit()?)))
            .collect()
    }
}

/// Decides on `request` for `pod`, which is on `node` and runs `vm`, at `now`. Changes nothing.
///
/// # Errors
/// [`PermitRefusal::BadPod`] when what the answer would rest on does not parse.
pub fn decide(
    (ledger, fair, now): (&Ledger, &Fair, Timestamp),
    pod: &PodView,
    node: &str,
    vm: &VmEntry,
    request: &AgentRequest,
) -> Result<Decision, PermitRefusal> {
    if vm.view.problem.is_some() {
        return Err(PermitRefusal::BadPod);
    }
    let ground = Ground::of(vm, request);
    let increase = request.resources.has_field_above(ground.held);
    if increase && pod.size.is_err() {
        return Err(PermitRefusal::BadPod);
    }
    // Most requests tell what is; only an increase needs to know the node.
    let (forbidden, total, others) = if increase {
        let total = ledger.node(node).map(|node| node.total).unwrap_or_default();
        (
            forbidden(ledger, pod, node, vm),
            total,
            ledger.others(pod, node),
        )
    } else {
        (None, Both::default(), Both::default())
    };
    let case = Case {
        now,
        rule: &ledger.rules().fairness,
        node,
        vm: &vm.view.key,
        priority: pod.priority,
    };
    let most = vm.view.most().unwrap_or(ground.held);
    let factors = ledger.factors(pod, node);
    let verdicts = Both::<u64>::from(request.resources).map(|resource, asked| {
        let most = Both::from(most).get(resource);
        let input = GrantInput {
            total: total.get(resource),
            others: others.get(resource),
            held: Both::from(ground.held).get(resource),
            asked: asked.min(most),
            unit: Both::from(request.compute_unit).get(resource),
            overcommit_milli: factors.get(resource),
        };
        let claimed = ground.overclaimed.get(resource).then_some(Limit::Claim);
        let decided = match forbidden.or(claimed) {
            None if input.asked > input.held => {
                verdict(input, most, None, fair.cap(case, resource, &input))
            }
            limit => verdict(input, most, limit, None),
        };
        above_max(decided, asked)
    });
    let permit = verdicts.map(|_, verdict| verdict.permit).to_resources();
    Ok(Decision {
        pod: pod.key.clone(),
        vm: vm.view.key.clone(),
        node: node.to_owned(),
        permit,
        approved: permit.field_max(vm.view.in_use),
        verdicts,
        claim: ground.claim,
        overclaimed: ground.overclaimed.any(|it| it),
        garbled: vm.view.autoscaled && vm.view.approved == Noted::Garbled,
        autoscaled: is_autoscaled(ledger, vm),
    })
}

/// What a request stands on before anything is granted.
struct Ground {
    held: Resources,
    overclaimed: Both<bool>,
    claim: Option<Resources>,
}

impl Ground {
    fn of(vm: &VmEntry, request: &AgentRequest) -> Self {
        let view = &vm.view;
        let (approved, written) = match view.approved {
            Noted::Value(approved) if view.autoscaled => (true, approved),
            _ => (false, view.in_use),
        };
        let Some(last_permit) = request.last_permit else {
            // First contact tells what the VM has already; that is accepted as it is.
            return Self {
                held: written.field_max(view.in_use),
                overclaimed: Both::same(false),
                claim: None,
            };
        };
        let pending = vm
            .holds
            .iter()
            .fold(written, |sum, hold| sum.field_max(hold.target));
        let shown = last_permit.field_min(pending.field_max(view.in_use));
        let held = if approved {
            shown
        } else {
            shown.field_max(written)
        };
        // An agent lowers its use before it tells, so what it asks for bounds what it may be using.
        let used = last_permit.field_min(request.resources);
        let used = view.most().map_or(used, |most| used.field_min(most));
        Self {
            held,
            overclaimed: Both::<u64>::from(last_permit)
                .zip(pending.into())
                .map(|_, (l, p)| l > p),
            claim: used.has_field_above(view.floor()).then_some(used),
        }
    }
}

fn is_autoscaled(ledger: &Ledger, vm: &VmEntry) -> bool {
    vm.view.autoscaled
        && !ledger
            .rules()
            .ignored_namespaces
            .contains(&vm.view.key.namespace)
}

/// What forbids any grant, whatever the room.
fn forbidden(ledger: &Ledger, pod: &PodView, node: &str, vm: &VmEntry) -> Option<Limit> {
    if pod.terminal {
        return Some(Limit::Ended);
    }
    if pod.scheduler_name != ledger.rules().scheduler_name {
        return Some(Limit::ForeignScheduler);
    }
    if !is_autoscaled(ledger, vm) {
        return Some(Limit::NotAutoscaled);
    }
    if vm.view.approved == Noted::Garbled {
        return Some(Limit::Garbled);
    }
    // Both pods of a migrating VM share one approved annotation, and room was looked at on one node
    // only.
    if pod.role != PodRole::Settled || ledger.live_pods_of(&vm.view.key) > 1 {
        return Some(Limit::Migrating);
    }
    ledger.node(node).is_none().then_some(Limit::NodeMissing)
}

/// The verdict on a wish that was cut to the VM's largest size before it was decided.
fn above_max(decided: Verdict, asked: u64) -> Verdict {
    let is_cut = asked > decided.most;
    let outcome = match decided.outcome {
        Outcome::Accepted if is_cut => Outcome::Denied(Limit::VmMax),
        Outcome::Granted if is_cut => Outcome::Partial(Limit::VmMax),
        outcome => outcome,
    };
    Verdict {
        asked,
        outcome,
        ..decided
    }
}

/// `cap`: the most it may grow by whatever the room, and what says so.
fn verdict(
    input: GrantInput,
    most: u64,
    forbidden: Option<Limit>,
    cap: Option<(u64, Limit)>,
) -> Verdict {
    let GrantInput { asked, held, .. } = input;
    let done = |permit: u64, room: u64, outcome: Outcome| Verdict {
        asked,
        held,
        permit,
        most,
        room,
        outcome,
    };
    if asked <= held {
        return done(asked, 0, Outcome::Accepted);
    }
    if let Some(limit) = forbidden {
        return done(held, 0, Outcome::Denied(limit));
    }
    let Ok(got) = grant(input) else {
        return done(held, 0, Outcome::Denied(Limit::ZeroUnit));
    };
    let (granted, limit) = match cap {
        // As far as whole units go.
        Some((cap, why)) if cap < got.granted - held => (held + cap / input.unit * input.unit, why),
        _ => (got.granted, Limit::NoRoom),
    };
    let outcome = if granted == asked {
        Outcome::Granted
    } else if granted == held {
        Outcome::Denied(limit)
    } else {
        Outcome::Partial(limit)
    };
    done(granted, got.room, outcome)
}
