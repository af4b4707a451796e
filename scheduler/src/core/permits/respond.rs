//! Responses to permit requests, and the reports beside them.

use protocol::permit::PermitRefusal;
use protocol::time::Span;
use protocol::units::Resources;

use super::Permits;
use crate::core::decision::{Limit, Outcome, PermitDecision};
use crate::core::event::{Action, Permit, PermitResponse, RequestId};
use crate::core::fair::Case;
use crate::core::step::StepContext;

/// Pause before the same denial of the same VM is reported again.
const DENIAL_QUIET: Span = Span::from_secs(60);
/// Pause before another denial of the same VM is reported.
const DENIAL_GAP: Span = Span::from_secs(10);

impl Permits {
    pub(super) fn permit(
        &mut self,
        context: &mut StepContext<'_>,
        id: RequestId,
        decision: Box<PermitDecision>,
    ) {
        let Some(pending) = self.requests.remove(&id) else {
            return;
        };
        context.ledger.set_permitted(&decision.vm, decision.permit);
        self.record_fairness(context, &decision, pending.request.compute_unit);
        context
            .denied_increases
            .decided(context.now, context.ledger, &decision);
        let granted = decision
            .verdicts
            .any(|verdict| matches!(verdict.outcome, Outcome::Granted | Outcome::Partial(_)));
        let is_notable = self.report_denial(context, &decision) || granted;
        let result = if decision.approved_is_malformed && decision.is_increase() {
            Err(PermitRefusal::BadPod)
        } else {
            Ok(Permit {
                permit: decision.permit,
                migrate: None,
            })
        };
        let node = Some(decision.node.clone());
        let response = PermitResponse {
            request_id: id,
            node,
            result,
            decision: Some(decision),
            is_notable,
        };
        context.out.push_back(Action::RespondPermit(response));
    }

    /// Records growth and unmet demand for later decisions on other VMs.
    fn record_fairness(
        &mut self,
        context: &StepContext<'_>,
        decision: &PermitDecision,
        unit: Resources,
    ) {
        if context.ledger.rules().fairness.is_off() {
            return;
        }
        let Some(pod) = context.ledger.pod_named(&decision.pod) else {
            return;
        };
        let case = Case {
            now: context.now,
            rule: &context.ledger.rules().fairness,
            node: &decision.node,
            vm: &decision.vm,
            priority: pod.view.priority,
        };
        let factors = context.ledger.factors(&pod.view, &decision.node);
        self.fair.decided(case, decision, unit, factors);
    }

    /// Reports a denial on the VM, unless one was reported lately. Returns whether it did.
    fn report_denial(&mut self, context: &mut StepContext<'_>, decision: &PermitDecision) -> bool {
        let limits: Vec<Limit> = decision
            .limits()
            .into_iter()
            .map(|(_, limit)| limit)
            .collect();
        if limits.is_empty() {
            return false;
        }
        let Some(entry) = context.ledger.vm(&decision.vm) else {
            return false;
        };
        let uid = entry.view.uid.clone();
        let queue = self.queues.entry(decision.vm.clone()).or_default();
        if let Some((at, reported)) = &queue.denied {
            let quiet = if *reported == limits {
                DENIAL_QUIET
            } else {
                DENIAL_GAP
            };
            if *at + quiet > context.now {
                return false;
            }
        }
        queue.denied = Some((context.now, limits));
        context.out.push_back(Action::ScaleUpDenied {
            uid,
            decision: Box::new(decision.clone()),
        });
        true
    }

    pub(super) fn refuse(
        &mut self,
        context: &mut StepContext<'_>,
        id: RequestId,
        refusal: PermitRefusal,
    ) {
        let Some(pending) = self.requests.remove(&id) else {
            return;
        };
        let pod = context.ledger.pod_named(&pending.request.pod);
        let node = pod.and_then(|pod| pod.view.node.clone());
        let response = PermitResponse {
            request_id: id,
            node,
            result: Err(refusal),
            decision: None,
            is_notable: true,
        };
        context.out.push_back(Action::RespondPermit(response));
    }
}
