//! Which pods were made by a request that arrived a second time.
//!
//! A proxy may send on a request that was answered long ago, and a stalled server may carry one out
//! that its controller has repeated since. Where the pod has gone meanwhile, it makes another one
//! that nobody wants: its controller is right to take it away, whatever its guest does.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::store::Object;

/// Names of pods, and who was made by them.
#[derive(Debug, Default)]
pub(crate) struct PodNames {
    /// Names whose request may arrive twice.
    repeated: BTreeSet<String>,
    /// The first pod of each name: its uid.
    first: BTreeMap<String, String>,
}

impl PodNames {
    /// The request to make this pod may arrive twice.
    pub(crate) fn repeated(&mut self, pod: &Value) {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        self.repeated.insert(name.to_owned());
    }

    /// A pod was made. Whether another one had its name, and no request arrived twice.
    pub(crate) fn is_reused(&mut self, pod: &Object) -> bool {
        let (name, uid) = (pod.meta("name"), pod.meta("uid"));
        let first = self.first.entry(name.to_owned());
        let is_first = first.or_insert_with(|| uid.to_owned()) == uid;
        !is_first && !self.repeated.contains(name)
    }

    /// Whether the pod is not the first of its name.
    pub(crate) fn is_stray(&self, pod: &Object) -> bool {
        let first = self.first.get(pod.meta("name"));
        first.is_some_and(|uid| uid != pod.meta("uid"))
    }
}

#[cfg(test)]
mod tests {
    use protocol::time::WallTime;
    use serde_json::json;

    use super::*;
    use crate::store::{Kind, Store};

    /// A pod of this name, made when the one before it is gone.
    fn made(store: &mut Store, name: &str) -> Object {
        store.remove(Kind::Pod, name);
        let pod = json!({"metadata": {"name": name}});
        store
            .create(Kind::Pod, pod, WallTime(0))
            .expect("there is none")
    }

    #[test]
    fn a_name_is_reused_unless_its_request_arrives_twice() {
        let (mut store, mut names) = (Store::default(), PodNames::default());
        let first = made(&mut store, "a");
        assert!(!names.is_reused(&first) && !names.is_stray(&first));
        assert!(!names.is_reused(&first), "a repetition that finds it there");
        let second = made(&mut store, "a");
        assert!(names.is_reused(&second) && names.is_stray(&second));

        names.repeated(&json!({"metadata": {"name": "b"}}));
        let first = made(&mut store, "b");
        let second = made(&mut store, "b");
        assert!(!names.is_reused(&first) && !names.is_stray(&first));
        assert!(!names.is_reused(&second) && names.is_stray(&second));
    }
}
