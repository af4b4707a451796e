//! Watch events and reports of the world.

use super::*;

impl World {
    /// The watches tell of all there is: of pods, those that are marked as a VM's.
    pub(in crate::core::vm::tests) fn show(&mut self) {
        self.show_vm();
        for pod in self.pods.values() {
            let pod: Pod = serde_json::from_value(pod.clone()).expect("a pod");
            if pod.metadata.labels.contains_key(LABEL_VM_NAME) {
                self.core.handle(self.at, Event::Pod(Box::new(pod)));
            }
        }
        self.show_runner();
    }

    pub(super) fn show_vm(&mut self) {
        if self.vm.is_some() {
            let vm = Box::new(self.vm());
            self.core.handle(self.at, Event::Vm(vm));
        }
    }

    pub(in crate::core::vm::tests) fn show_runner(&mut self) {
        let Some(pod) = self.core.link_target().map(str::to_owned) else {
            return;
        };
        let event = match self.runners.get(&pod) {
            Some(state) => Event::Runner {
                pod,
                state: Box::new(state.clone()),
            },
            None => Event::RunnerSilent {
                pod,
                error: "connection refused".into(),
            },
        };
        self.core.handle(self.at, event);
    }

    pub(in crate::core::vm::tests) fn touch_vm(&mut self) {
        self.version += 1;
        if let Some(vm) = self.vm.as_mut() {
            vm["metadata"]["resourceVersion"] = json!(self.version.to_string());
        }
    }

    pub(in crate::core::vm::tests) fn touch_pod(&mut self, name: &str) {
        self.version += 1;
        let pod = self.pods.get_mut(name).expect("the pod is there");
        pod["metadata"]["resourceVersion"] = json!(self.version.to_string());
    }
}
