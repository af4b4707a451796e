//! The API server of the world: it carries out the core's actions.

use super::*;

impl World {
    pub(in crate::core::migration::tests) fn carry_out(
        &mut self,
        action: Action,
    ) -> Result<ActionResponse, Refusal> {
        match action {
            Action::WriteVm { patch } => {
                let vm = self.vm.clone().ok_or(Refusal::Gone)?;
                if self.stale(&patch, &vm) {
                    return Err(Refusal::Conflict);
                }
                merge(self.vm.as_mut().expect("it is there"), &patch);
                self.touch_vm();
                Ok(ActionResponse::Vm(Box::new(self.vm())))
            }
            Action::ReadVm => match &self.vm {
                Some(_) => Ok(ActionResponse::Vm(Box::new(self.vm()))),
                None => Err(Refusal::Gone),
            },
            Action::PatchMigration { name, patch } | Action::WriteMigration { name, patch, .. } => {
                let object = self.moves.get(&name).cloned().ok_or(Refusal::Gone)?;
                if self.stale(&patch, &object) {
                    return Err(Refusal::Conflict);
                }
                merge(self.moves.get_mut(&name).expect("it is there"), &patch);
                self.touch_move(&name);
                Ok(ActionResponse::Migration(Box::new(self.migration(&name))))
            }
            Action::ReadMigration { name } => match self.moves.contains_key(&name) {
                true => Ok(ActionResponse::Migration(Box::new(self.migration(&name)))),
                false => Err(Refusal::Gone),
            },
            Action::ReadPod { name } => Ok(self.pod_response(&name)),
            Action::CreatePod {
                name,
                mut pod,
                secret,
            } => {
                assert_eq!(secret.is_some(), self.settings.runners_at_pods);
                let named = self.moves.values();
                let mut named = named.map(|object| &object["status"]["targetPodName"]);
                assert!(
                    named.any(|stored| *stored == name),
                    "the name is stored first"
                );
                pod["metadata"]["uid"] = json!(format!("uid-{name}"));
                self.pods.entry(name.clone()).or_insert(pod);
                self.touch_pod(&name);
                Ok(self.pod_response(&name))
            }
            Action::PatchPod { name, ops } => {
                let Some(pod) = self.pods.get_mut(&name) else {
                    return Ok(ActionResponse::PodGone(name));
                };
                for op in ops {
                    match op {
                        PatchOp::Add { path, value } => {
                            let (parent, key) = path.rsplit_once('/').expect("a pointer");
                            let key = key.replace("~1", "/");
                            pod.pointer_mut(parent).expect("a parent")[key] = value;
                        }
                        PatchOp::Test { path, value } => {
                            assert_eq!(pod.pointer(&path), Some(&value));
                        }
                        PatchOp::Remove { .. } => panic!("nothing is removed here"),
                    }
                }
                if let Some(key) = self.strips {
                    let labels = pod["metadata"]["labels"].as_object_mut();
                    labels.expect("labels").remove(key);
                }
                self.touch_pod(&name);
                Ok(self.pod_response(&name))
            }
            Action::DeletePod { name, .. } => {
                let wall = self.at.wall;
                if let Some(pod) = self.pods.get_mut(&name) {
                    pod["metadata"]["deletionTimestamp"] = json!(wall);
                    self.touch_pod(&name);
                    if let Some(qemu) = self.qemus.get_mut(&name) {
                        qemu.runs = false;
                    }
                }
                Ok(self.pod_response(&name))
            }
            order => self.order(order),
        }
    }

    pub(super) fn stale(&mut self, patch: &Value, object: &Value) -> bool {
        if self.conflicts > 0 {
            self.conflicts -= 1;
            return true;
        }
        patch["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"]
    }

    pub(super) fn pod_response(&self, name: &str) -> ActionResponse {
        match self.pods.contains_key(name) {
            true => ActionResponse::Pod(Box::new(self.pod(name))),
            false => ActionResponse::PodGone(name.to_owned()),
        }
    }
}
