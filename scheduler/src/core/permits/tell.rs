//! Answers, and what is told beside them.

use protocol::permit::{PermitRefusal, PluginResponse};
use protocol::time::Span;
use protocol::units::Resources;

use super::{Bench, Permits};
use crate::core::decide::{Decision, Limit, Outcome};
use crate::core::event::{Action, Answer, TicketId};
use crate::core::fair::Case;

/// The same denial of the same VM is news again after this long.
const DENIAL_QUIET: Span = Span::from_secs(60);
/// A different denial of the same VM is news after this long.
const DENIAL_GAP: Span = Span::from_secs(10);

impl Permits {
    pub(super) fn permit(&mut self, bench: &mut Bench<'_>, id: TicketId, decision: Box<Decision>) {
        let Some(ticket) = self.tickets.remove(&id) else {
            return;
        };
        self.account(bench, &decision, ticket.request.compute_unit);
        bench.wishes.decided(bench.now, bench.ledger, &decision);
        let granted = decision
            .verdicts
            .any(|verdict| matches!(verdict.outcome, Outcome::Granted | Outcome::Partial(_)));
        let news = self.is_news(bench, &decision) || granted;
        let result = if decision.garbled && decision.is_increase() {
            Err(PermitRefusal::BadPod)
        } else {
            Ok(PluginResponse {
                permit: decision.permit,
                migrate: None,
            })
        };
        let node = Some(decision.node.clone());
        let answer = Answer {
            ticket: id,
            node,
            result,
            decision: Some(decision),
            news,
        };
        bench.out.push_back(Action::Answer(answer));
    }

    /// Lets what is fair rest on what was decided.
    fn account(&mut self, bench: &Bench<'_>, decision: &Decision, unit: Resources) {
        if bench.ledger.rules().fairness.is_off() {
            return;
        }
        let Some(pod) = bench.ledger.pod_named(&decision.pod) else {
            return;
        };
        let case = Case {
            now: bench.now,
            rule: &bench.ledger.rules().fairness,
            node: &decision.node,
            vm: &decision.vm,
            priority: pod.view.priority,
        };
        let factors = bench.ledger.factors(&pod.view, &decision.node);
        self.fair.decided(case, decision, unit, factors);
    }

    /// Whether a denial is to be told, and if so tells it on the VM.
    fn is_news(&mut self, bench: &mut Bench<'_>, decision: &Decision) -> bool {
        let limits: Vec<Limit> = decision
            .limits()
            .into_iter()
            .map(|(_, limit)| limit)
            .collect();
        if limits.is_empty() {
            return false;
        }
        let Some(entry) = bench.ledger.vm(&decision.vm) else {
            return false;
        };
        let uid = entry.view.uid.clone();
        let desk = self.desks.entry(decision.vm.clone()).or_default();
        if let Some((at, told)) = &desk.denied {
            let quiet = if *told == limits {
                DENIAL_QUIET
            } else {
                DENIAL_GAP
            };
            if *at + quiet > bench.now {
                return false;
            }
        }
        desk.denied = Some((bench.now, limits));
        bench.out.push_back(Action::ScaleUpDenied {
            uid,
            decision: Box::new(decision.clone()),
        });
        true
    }

    pub(super) fn refuse(&mut self, bench: &mut Bench<'_>, id: TicketId, refusal: PermitRefusal) {
        let Some(ticket) = self.tickets.remove(&id) else {
            return;
        };
        let pod = bench.ledger.pod_named(&ticket.request.pod);
        let node = pod.and_then(|pod| pod.view.node.clone());
        let answer = Answer {
            ticket: id,
            node,
            result: Err(refusal),
            decision: None,
            news: true,
        };
        bench.out.push_back(Action::Answer(answer));
    }
}
