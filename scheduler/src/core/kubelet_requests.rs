//! The requests of a pod as kubelet and kube-scheduler count them, per resource:
//!
//! ```text
//! max( Σ containers + Σ sidecars                               while the pod runs
//!    , each init container + Σ sidecars started before it )    while the pod starts
//! or spec.resources.requests, if they have the resource
//! + spec.overhead
//! ```
//!
//! A sidecar is an init container with `restartPolicy: Always`. The deployed scheduler counts
//! containers alone (docs/compatibility/scheduler.md §9.2 item 15). It counts a node as emptier
//! than kubelet does.

use protocol::quantity::Quantity;
use protocol::units::Resources;
use serde_json::{Value, json};

use super::amount::Both;
use super::pod_problem::PodProblem;

/// A resource, and the conversion of its quantity to an integer.
#[derive(Clone, Copy)]
struct Counted {
    name: &'static str,
    value: fn(&Quantity) -> i128,
}

/// The requests of a pod. Zero for a resource without requests.
pub(super) fn of_pod(object: &Value) -> Result<Resources, PodProblem> {
    let spec = object.get("spec").unwrap_or(&Value::Null);
    let [cpu, memory] = [
        Counted {
            name: "cpu",
            value: Quantity::milli_value,
        },
        Counted {
            name: "memory",
            value: Quantity::value,
        },
    ];
    let milli = cpu.of_spec(spec)?;
    u32::try_from(milli).map_err(|_| PodProblem::RequestRange(cpu.name))?;
    Ok(Both::new(milli, memory.of_spec(spec)?).to_resources())
}

/// The requests of one container of a pod. `None` without such a container, or if they do not
/// parse.
pub(super) fn of_container(object: &Value, name: &str) -> Option<Resources> {
    let containers = object.pointer("/spec/containers")?.as_array()?;
    let container = containers.iter().find(|it| it["name"] == name)?;
    of_pod(&json!({"spec": {"containers": [container]}})).ok()
}

impl Counted {
    fn of_spec(self, spec: &Value) -> Result<u64, PodProblem> {
        let mut together = 0;
        for container in list(spec, "containers")? {
            together = self.add(together, self.requested(container)?)?;
        }
        let (mut sidecars, mut on_the_way) = (0, 0);
        for container in list(spec, "initContainers")? {
            let running = self.add(sidecars, self.requested(container)?)?;
            on_the_way = running.max(on_the_way);
            if container["restartPolicy"] == "Always" {
                sidecars = running;
            }
        }
        let counted = self.add(together, Some(sidecars))?.max(on_the_way);
        let counted = self.requested(spec)?.unwrap_or(counted);
        self.add(counted, self.amount(spec.get("overhead"))?)
    }

    /// `resources.requests` of a container or of a pod spec.
    fn requested(self, of: &Value) -> Result<Option<u64>, PodProblem> {
        self.amount(of.pointer("/resources/requests"))
    }

    fn amount(self, map: Option<&Value>) -> Result<Option<u64>, PodProblem> {
        let Some(raw) = map.and_then(|map| map.get(self.name)) else {
            return Ok(None);
        };
        let quantity =
            Quantity::from_json(raw).map_err(|error| PodProblem::Spec(error.to_string()))?;
        let amount = u64::try_from((self.value)(&quantity));
        amount
            .map(Some)
            .map_err(|_| PodProblem::RequestRange(self.name))
    }

    fn add(self, sum: u64, more: Option<u64>) -> Result<u64, PodProblem> {
        let sum = sum.checked_add(more.unwrap_or(0));
        sum.ok_or(PodProblem::RequestRange(self.name))
    }
}

fn list<'a>(spec: &'a Value, name: &str) -> Result<&'a [Value], PodProblem> {
    match spec.get(name) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(PodProblem::Spec(format!("{name} is not a list"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(spec: Value) -> Result<Resources, PodProblem> {
        of_pod(&json!({ "spec": spec }))
    }

    fn asks(cpu: u64, mem_gib: u64) -> Value {
        json!({"resources": {"requests": {"cpu": cpu, "memory": format!("{mem_gib}Gi")}}})
    }

    fn sidecar(cpu: u64, mem_gib: u64) -> Value {
        let mut container = asks(cpu, mem_gib);
        container["restartPolicy"] = json!("Always");
        container
    }

    /// CPUs and GiB of each row were counted by hand from the rule in Kubernetes' documentation of
    /// sidecar containers.
    #[test]
    fn pods_are_counted_as_kubelet_counts_them() {
        let table = [
            ("nothing", json!({}), (0, 0)),
            ("one container", json!({"containers": [asks(1, 2)]}), (1, 2)),
            (
                "containers run together",
                json!({"containers": [asks(1, 2), asks(2, 1), {"name": "asks nothing"}]}),
                (3, 3),
            ),
            (
                "init containers run alone, one after the other: the largest, by resource",
                json!({"containers": [asks(2, 2)], "initContainers": [asks(1, 8), asks(4, 1)]}),
                (4, 8),
            ),
            (
                "smaller init containers change nothing",
                json!({"containers": [asks(2, 2)], "initContainers": [asks(1, 1), asks(2, 2)]}),
                (2, 2),
            ),
            (
                "a sidecar stays beside the containers",
                json!({"containers": [asks(2, 2)], "initContainers": [sidecar(1, 1)]}),
                (3, 3),
            ),
            (
                "what runs after a sidecar runs beside it, what ran before does not",
                json!({"containers": [asks(1, 1)],
                    "initContainers": [asks(4, 4), sidecar(1, 1), asks(4, 2), sidecar(2, 2)]}),
                (5, 4),
            ),
            (
                "overhead is added to whatever is larger",
                json!({"containers": [asks(1, 1)], "initContainers": [asks(2, 1)],
                    "overhead": {"cpu": 1, "memory": "1Gi"}}),
                (3, 2),
            ),
            (
                "the pod's own requests stand for its containers', where they name the resource",
                json!({"containers": [asks(1, 4)], "initContainers": [asks(16, 8)],
                    "resources": {"requests": {"cpu": 6}}, "overhead": {"cpu": 1}}),
                (7, 8),
            ),
            (
                "other restart policies make no sidecar, and other resources do not count",
                json!({"containers": [asks(1, 1)], "overhead": {"nvidia.com/gpu": 1},
                    "initContainers": [{"restartPolicy": "Never", "resources": {"requests": {"cpu": 1}}}]}),
                (1, 1),
            ),
        ];
        for (what, spec, (cpu, mem)) in table {
            let expected = Resources::new(cpu * 1000, mem << 30);
            assert_eq!(of(spec), Ok(expected), "{what}");
        }
    }

    #[test]
    fn requests_that_do_not_parse_are_errors() {
        let huge = json!({"resources": {"requests": {"memory": u64::MAX.to_string()}}});
        let minus = json!({"resources": {"requests": {"cpu": "-1"}}});
        let table = [
            json!({"containers": {}}),
            json!({"initContainers": "none"}),
            json!({"initContainers": [minus]}),
            json!({"overhead": {"cpu": "much"}}),
            json!({"overhead": {"memory": "-1"}}),
            json!({"resources": {"requests": {"cpu": "-1"}}}),
            json!({"containers": [huge], "initContainers": [{"restartPolicy": "Always",
                "resources": {"requests": {"memory": 1}}}]}),
            json!({"containers": [huge], "overhead": {"memory": 1}}),
            json!({"containers": [{"resources": {"requests": {"cpu": 5_000_000}}}]}),
        ];
        for spec in table {
            assert!(of(spec.clone()).is_err(), "{spec}");
        }
    }
}
