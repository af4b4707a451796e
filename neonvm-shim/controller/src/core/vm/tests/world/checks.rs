//! What must hold in each state of the world.

use super::*;

impl World {
    /// Goes on until an order is given, with an API server that resizes no pods; what was asked
    /// for.
    pub(in crate::core::vm::tests) fn order_without_resizing_pods(&mut self) -> Vec<Kind> {
        let mut kinds = Vec::new();
        for _ in 0..200 {
            while let Some(action) = self.core.poll_action(self.at) {
                let kind = action.kind();
                kinds.push(kind);
                let result = match kind {
                    Kind::ResizePod => Err(Refusal::Failed {
                        message: "the server could not find the requested resource (404)".into(),
                        permanent: true,
                    }),
                    _ => self.carry_out(&action),
                };
                self.is_done(kind, self.at, result);
            }
            if kinds.contains(&Kind::SetSize) {
                break;
            }
            self.pass(Span::from_millis(100));
        }
        kinds
    }

    /// No order is for more than what its pod says, by its requests or its metadata.
    pub(super) fn is_on_pod(&self, action: &Action) {
        let Action::SetSize { pod, order, .. } = action else {
            return;
        };
        let requests = &self.pods[pod]["spec"]["containers"][0]["resources"]["requests"];
        let usage = &self.pod(pod).metadata.annotations[ANNOTATION_VM_USAGE];
        let said: VmUsage = serde_json::from_str(usage).expect("the controller wrote it");
        let requested = serde_json::from_value(requests.clone()).ok();
        let is_said = [Some(said), requested]
            .iter()
            .flatten()
            .any(|said: &VmUsage| {
                said.cpu >= Quantity::from_milli(u64::from(order.cpu.0))
                    && said.memory >= Quantity::from_bytes(order.memory.0)
            });
        assert!(
            is_said,
            "{order:?} while the pod says {usage} and requests {requests}"
        );
    }

    /// The largest of spec, status, annotation and requests covers what the guest has.
    pub(super) fn is_covered(&self, after: &Action) {
        let Some(status) = self.vm.as_ref().map(|_| self.status()) else {
            return;
        };
        let (pod, runner) = (&status.pod_name, self.runners.get(&status.pod_name));
        let (Some(object), Some(state)) = (self.pods.get(pod), runner) else {
            return;
        };
        let told = status_size(&status);
        let said = annotated_size(&self.pod(pod).metadata).unwrap_or_default();
        let requests = &object["spec"]["containers"][0]["resources"]["requests"];
        let requests: Option<VmUsage> = serde_json::from_value(requests.clone()).ok();
        let requested = requests.and_then(|requests| requests.size());
        let requested = requested.unwrap_or_default();
        let wanted = self.vm().spec.guest.in_use();
        let counted = [told, said, requested];
        let counted = counted.into_iter().fold(wanted, Resources::field_max);
        let has = size_of(state);
        assert!(
            !has.has_field_above(counted),
            "{has} in use while {wanted} is wanted, the status says {told}, pod {pod} {said}, after {after:?}"
        );
    }

    /// An action has ended, now.
    pub(in crate::core::vm::tests) fn is_done(
        &mut self,
        kind: Kind,
        began: Moment,
        result: Result<ActionResponse, Refusal>,
    ) {
        self.core.handle(
            self.at,
            Event::Done {
                kind,
                began,
                result,
            },
        );
    }

    /// An issuer that takes its time leaves the question under way.
    pub(super) fn is_pondered(&self, action: &Action) -> bool {
        let step = match action {
            Action::Certificate { step, .. } => step,
            _ => return false,
        };
        matches!(step, Step::Await { .. }) && self.ca.manner == Manner::Ponders
    }
}
