//! The API server of the world: it carries out the core's actions.

use super::*;

impl World {
    pub(in crate::core::vm::tests) fn carry_out(
        &mut self,
        action: &Action,
    ) -> Result<ActionResponse, Refusal> {
        if let Action::PatchVm { what, .. } = action
            && *what == VmEdit::DropFinalizer
        {
            self.pods_have_gone_before();
        }
        match action {
            Action::PatchVm { patch, .. } | Action::WriteStatus { patch, .. } => {
                let vm = self.vm.as_mut().ok_or(Refusal::Gone)?;
                if patch["metadata"]["resourceVersion"] != vm["metadata"]["resourceVersion"] {
                    return Err(Refusal::Conflict);
                }
                merge(vm, patch);
                self.touch_vm();
                Ok(ActionResponse::Vm(Box::new(self.vm())))
            }
            Action::ReadVm if self.vm.is_none() => Err(Refusal::Gone),
            Action::ReadVm => Ok(ActionResponse::Vm(Box::new(self.vm()))),
            Action::ReadPod { name } => Ok(self.pod_response(name)),
            Action::ReadMigration { name, .. } => Ok(ActionResponse::MigrationClaim(self.migrations.get(name).cloned())),
            Action::EnsureSshSecret { .. } | Action::EnsureRunnerSecret { .. } => {
                Ok(ActionResponse::SecretReady)
            }
            Action::CreatePod { pod, .. }
                if !self.admits_privileges && pod.to_string().contains("\"privileged\":true") =>
            {
                Err(Refusal::Failed {
                    message: "pods \"x\" is forbidden: violates PodSecurity \"baseline:latest\": privileged (403)"
                        .into(),
                    permanent: true,
                })
            }
            Action::CreatePod { name, pod } => {
                self.create_pod(name, pod);
                Ok(self.pod_response(name))
            }
            Action::PatchPodMetadata { name, ops } | Action::PatchPodCounted { name, ops } => {
                if self.forbids.is_some_and(|forbids| ops.iter().any(forbids)) {
                    return Err(Refusal::Failed {
                        message: "a policy forbids it (403)".into(),
                        permanent: true,
                    });
                }
                Ok(self.sync_pod(name, ops))
            }
            Action::ResizePod { name, ops } => Ok(self.change_pod(name, |pod| apply(pod, ops))),
            Action::DeletePod { name, .. } => {
                let at = self.at.wall;
                Ok(self.change_pod(name, |pod| pod["metadata"]["deletionTimestamp"] = json!(at)))
            }
            Action::OrphanPod { name, .. } => Ok(self.change_pod(name, |pod| {
                pod["metadata"]
                    .as_object_mut()
                    .expect("an object")
                    .remove("ownerReferences");
            })),
            Action::TakeAddress { .. } => Ok(ActionResponse::Address {
                address: [10, 100, 128, 1].into(),
                mask: [255, 255, 0, 0].into(),
            }),
            Action::ReleaseAddress { .. } => Ok(ActionResponse::AddressReleased),
            Action::Certificate { step, order } => Ok(ActionResponse::Certificate(Box::new(self.ca.take(
                step,
                order,
                self.at.wall,
            )))),
            Action::PlugAhead { pod, cpus } => {
                let state = self.runners.get_mut(pod).expect("it said that it can");
                state.generation += 1;
                state.cpus.ahead = Some(cpus.cpu);
                Ok(ActionResponse::Runner(Box::new(state.clone())))
            }
            Action::SetSize { pod, order, over } => {
                let refused = |message: &str| Refusal::Failed {
                    message: message.into(),
                    permanent: false,
                };
                let state = self.runners.get_mut(pod).ok_or(refused("gone"))?;
                let is_held = state.resize.as_ref().is_some_and(|it| it.order == *order);
                let taken = state.orders.expect("it counts");
                let taken = overtaken::count(taken, *over, is_held);
                state.orders = Some(taken.map_err(|why| refused(&why.to_string()))?);
                state.generation += 1;
                state.cpus.ahead = state.cpus.ahead.and(Some(MilliCpu(0)));
                let plugged = order.memory.0.saturating_sub(state.memory.base.0);
                state.memory.requested = Bytes(plugged);
                let (order, stages) = (order.clone(), vec![]);
                state.resize = Some(ResizeReport {
                    order,
                    done: false,
                    stages,
                    problem: None,
                });
                Ok(ActionResponse::Runner(Box::new(state.clone())))
            }
        }
    }

    pub(super) fn create_pod(&mut self, name: &str, pod: &Value) {
        assert_eq!(self.status().pod_name, name, "the name is stored first");
        let is_free = !self.pods.contains_key(name) && !self.foreign.contains_key(name);
        if is_free {
            let mut pod = pod.clone();
            pod["metadata"]["uid"] = json!(format!("uid-{name}"));
            pod["metadata"]["creationTimestamp"] = json!(self.at.wall);
            self.pods.insert(name.to_owned(), pod);
            self.created.push(name.to_owned());
            let size = self.vm().spec.guest.in_use();
            self.boots.insert(name.to_owned(), size);
            self.touch_pod(name);
        }
        let alive = self
            .pods
            .keys()
            .filter(|name| !self.pod(name).is_terminal())
            .count();
        self.most_pods = self.most_pods.max(alive);
    }

    /// As a server that lets somebody have a say does it. What changes nothing makes no new
    /// version.
    pub(super) fn sync_pod(&mut self, name: &str, ops: &[PatchOp]) -> ActionResponse {
        self.is_its_own(name);
        let Some(before) = self.pods.get(name).cloned() else {
            return self.pod_response(name);
        };
        let mut after = before.clone();
        apply(&mut after, ops);
        if let Some(changes) = self.changes {
            changes(&mut after, self.log.len());
        }
        if after != before {
            self.pods.insert(name.to_owned(), after);
            self.touch_pod(name);
        }
        self.pod_response(name)
    }

    pub(super) fn is_its_own(&self, name: &str) {
        let is_foreign = self.foreign.contains_key(name);
        assert!(!is_foreign, "pod {name} belongs to somebody else");
    }

    pub(super) fn change_pod(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) -> ActionResponse {
        self.is_its_own(name);
        if let Some(pod) = self.pods.get_mut(name) {
            change(pod);
            self.touch_pod(name);
        }
        self.pod_response(name)
    }

    pub(super) fn pod_response(&self, name: &str) -> ActionResponse {
        if self.pods.contains_key(name) {
            ActionResponse::Pod(Box::new(self.pod(name)))
        } else if let Some(pod) = self.foreign.get(name) {
            let pod = serde_json::from_value(pod.clone()).expect("a pod");
            ActionResponse::Pod(Box::new(pod))
        } else {
            ActionResponse::PodGone(name.to_owned())
        }
    }

    /// Somebody deletes the VM.
    pub(in crate::core::vm::tests) fn delete_vm(&mut self) {
        let wall = self.at.wall;
        if let Some(vm) = self.vm.as_mut() {
            vm["metadata"]["deletionTimestamp"] = json!(wall);
        }
        self.touch_vm();
        self.show_vm();
    }

    pub(in crate::core::vm::tests) fn has_finalizer(&self) -> bool {
        self.vm()
            .metadata
            .finalizers
            .iter()
            .any(|name| name == FINALIZER)
    }
}
