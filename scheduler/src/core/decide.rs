//! The decision on one permit request: a pure function of the ledger and the request.
//!
//! Each resource is decided on its own (docs/compatibility/scheduler.md §2.3, §2.4):
//!
//! ```text
//! shown    = max( approved on the VM's object, in use by its spec, targets of writes under way )
//! held     = min( last permit of the request, shown ); at least `in use` if nothing is approved;
//!            at least what was permitted last, is approved and is asked for, since that answer may
//!            be on its way; at first contact max( approved, in use )
//! most     = the VM's maximum; `held` if it is unknown
//! asked <= held : permit = asked
//! asked >  held : permit = held + a grant of the node's headroom, up to `most`, unless a `Limit` forbids it
//! approved = max( permit, in use at the version of the object that the write tests )
//! ```
//!
//! The request and the object must agree. Neither a forged request nor a forged annotation gets
//! headroom of the node.

use protocol::permit::PermitRefusal;
use protocol::time::Timestamp;
use protocol::units::Resources;

use super::amount::{Both, GrantInput, grant};
use super::decision::{Limit, Outcome, PermitDecision, ResourceVerdict};
use super::event::PermitRequest;
use super::fair::{Case, Fair};
use super::ledger::{Ledger, VmEntry};
use super::pod_requests::{PodRole, PodView};
use super::view::AnnotationValue;

/// The state that a decision rests on.
#[derive(Debug, Clone, Copy)]
pub struct DecisionInputs<'a> {
    /// The time of the decision.
    pub now: Timestamp,
    /// Nodes, pods and VMs.
    pub ledger: &'a Ledger,
    /// Recent demands and growth of other VMs.
    pub fair: &'a Fair,
}

/// Decides on `request` for `pod`, which is on `node` and runs `vm`. Changes nothing.
///
/// # Errors
/// [`PermitRefusal::BadPod`] if the VM's object does not parse, or for an increase the pod's size.
pub fn decide(
    inputs: DecisionInputs<'_>,
    pod: &PodView,
    node: &str,
    vm: &VmEntry,
    request: &PermitRequest,
) -> Result<PermitDecision, PermitRefusal> {
    let DecisionInputs { now, ledger, fair } = inputs;
    if vm.view.problem.is_some() {
        return Err(PermitRefusal::BadPod);
    }
    let baseline = Baseline::of(vm, request);
    let increase = request.resources.has_field_above(baseline.held);
    if increase && pod.size.is_err() {
        return Err(PermitRefusal::BadPod);
    }
    // Most requests are no increase. Only an increase depends on the node.
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
    let most = vm.view.most().unwrap_or(baseline.held);
    let factors = ledger.factors(pod, node);
    let verdicts = Both::<u64>::from(request.resources).map(|resource, asked| {
        let most = Both::from(most).get(resource);
        let input = GrantInput {
            total: total.get(resource),
            others: others.get(resource),
            held: Both::from(baseline.held).get(resource),
            asked: asked.min(most),
            unit: Both::from(request.compute_unit).get(resource),
            overcommit_milli: factors.get(resource),
        };
        let claimed = baseline.overclaimed.get(resource).then_some(Limit::Claim);
        let decided = match forbidden.or(claimed) {
            None if input.asked > input.held => {
                verdict(input, most, None, fair.cap(case, resource, &input))
            }
            limit => verdict(input, most, limit, None),
        };
        above_max(decided, asked)
    });
    let permit = verdicts.map(|_, verdict| verdict.permit).to_resources();
    Ok(PermitDecision {
        pod: pod.key.clone(),
        vm: vm.view.key.clone(),
        node: node.to_owned(),
        permit,
        approved: permit.field_max(vm.view.in_use),
        verdicts,
        claim: baseline.claim,
        overclaimed: baseline.overclaimed.any(|it| it),
        approved_is_malformed: vm.view.autoscaled && vm.view.approved == AnnotationValue::Malformed,
        autoscaled: is_autoscaled(ledger, vm),
    })
}

/// What the VM holds before anything is granted.
struct Baseline {
    held: Resources,
    overclaimed: Both<bool>,
    claim: Option<Resources>,
}

impl Baseline {
    fn of(vm: &VmEntry, request: &PermitRequest) -> Self {
        let view = &vm.view;
        let (approved, written) = match view.approved {
            AnnotationValue::Value(approved) if view.autoscaled => (true, approved),
            _ => (false, view.in_use),
        };
        let Some(last_permit) = request.last_permit else {
            // At first contact the request states what the VM has. That is accepted.
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
            let answered = vm.permitted.field_min(written);
            shown.field_max(answered.field_min(request.resources))
        } else {
            shown.field_max(written)
        };
        // An agent lowers the size in use before it requests less. The size in use is therefore at
        // most the requested one.
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

/// The limit that forbids any grant, whatever the headroom.
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
    if vm.view.approved == AnnotationValue::Malformed {
        return Some(Limit::Malformed);
    }
    // Both pods of a migrating VM share one approved annotation, but the headroom of only one node
    // is checked.
    if pod.role != PodRole::Settled || ledger.live_pods_of(&vm.view.key) > 1 {
        return Some(Limit::Migrating);
    }
    ledger.node(node).is_none().then_some(Limit::NodeMissing)
}

/// Restores the requested amount after a decision on the amount cut to the VM's maximum.
fn above_max(decided: ResourceVerdict, asked: u64) -> ResourceVerdict {
    let is_cut = asked > decided.most;
    let outcome = match decided.outcome {
        Outcome::Accepted if is_cut => Outcome::Denied(Limit::VmMax),
        Outcome::Granted if is_cut => Outcome::Partial(Limit::VmMax),
        outcome => outcome,
    };
    ResourceVerdict {
        asked,
        outcome,
        ..decided
    }
}

/// Decides one resource. `cap` bounds the growth regardless of headroom, with its reason.
fn verdict(
    input: GrantInput,
    most: u64,
    forbidden: Option<Limit>,
    cap: Option<(u64, Limit)>,
) -> ResourceVerdict {
    let GrantInput { asked, held, .. } = input;
    let done = |permit: u64, room: u64, outcome: Outcome| ResourceVerdict {
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
        // Whole units only.
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
