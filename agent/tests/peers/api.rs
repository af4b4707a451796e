//! The API server of the agent's tests, and what they ask of it besides: that only the agent's own
//! patch comes, that the test's controller carries it out, and faults of patches and watches.

use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};
use test_api::{Call, Fault, TestApi};

use super::{Seen, Trace};

const VMS: &str = "virtualmachines";
const VM_PATCHES: &str = "PATCH /apis/vm.neon.tech/v1/namespaces/default/virtualmachines/";
const VM_WATCHES: &str = "WATCH /apis/vm.neon.tech/v1/virtualmachines";
const VM_LISTS: &str = "GET /apis/vm.neon.tech/v1/virtualmachines";
const NAMESPACES: &str = "/api/v1/namespaces";
const POLICIES: &str = "/apis/policy.bellows.dev/v1alpha1/scalingpolicies";
const REVISIONS: &str = "/apis/apps/v1/namespaces/kube-system/controllerrevisions/";
const SCHEDULERS: &str = "/api/v1/namespaces/kube-system/pods";

/// How patches are met.
#[derive(Default)]
struct Manners {
    fail_patches: (u32, u16),
    hold_patches: bool,
    ignore_patches: bool,
    is_without_controller: bool,
    hides_namespaces: bool,
    hides_policies: bool,
}

#[derive(Clone)]
pub struct Api {
    pub url: String,
    server: TestApi,
    manners: Arc<Mutex<Manners>>,
    trace: Trace,
}

/// A VM of this node at one unit of 1 to 4.
pub fn vm(name: &str, ip: &str) -> Value {
    json!({
        "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
        "metadata": {
            "name": name, "namespace": "default", "uid": format!("uid-{name}"),
            "labels": {"autoscaling.neon.tech/enabled": "true"},
        },
        "spec": {
            "schedulerName": "autoscale-scheduler",
            "guest": {
                "cpus": {"min": "250m", "max": 1, "use": "250m"},
                "memorySlotSize": "1Gi",
                "memorySlots": {"min": 1, "max": 4, "use": 1},
                "rootDisk": {"image": "x"},
            },
        },
        "status": {"phase": "Running", "node": "node-1", "podName": format!("{name}-pod"), "podIP": ip},
    })
}

impl Api {
    pub async fn start(trace: Trace) -> Self {
        let server = TestApi::start().await;
        let api = Self {
            url: server.url(),
            server: server.clone(),
            manners: Arc::default(),
            trace,
        };
        let judge = api.clone();
        let judge = Fault::answer(move |_, call| judge.judge(call));
        server.always("", judge);
        let controller = api.clone();
        server.after_writes(move |_, call| controller.carry_out(call));
        api
    }

    fn manners(&self) -> MutexGuard<'_, Manners> {
        self.manners.lock().expect("no test panics here")
    }

    /// What a call is answered instead of being carried out.
    fn judge(&self, call: &Call) -> Option<(u16, Value)> {
        let (method, path) = call.line.split_once(' ')?;
        let selector = || call.option("labelSelector").unwrap_or_default();
        match (method, path) {
            ("GET" | "WATCH", NAMESPACES) => {
                let selector = selector().replace("%2F", "/");
                let keys = ["autoscaling.neon.tech/mode", "autoscaling.neon.tech/policy"];
                assert!(keys.contains(&selector.as_str()), "{selector}");
                let is_hidden = self.manners().hides_namespaces;
                is_hidden.then(|| refuse(403, "namespaces is forbidden"))
            }
            ("GET" | "WATCH", path) if path == POLICIES || path.starts_with(REVISIONS) => {
                let is_hidden = self.manners().hides_policies;
                is_hidden.then(|| refuse(503, "policies cannot be read"))
            }
            ("GET" | "WATCH", SCHEDULERS) => {
                let selector = selector().replace("%3D", "=");
                assert_eq!(selector, "name=autoscale-scheduler");
                None
            }
            ("PATCH", _) if call.line.starts_with(VM_PATCHES) => self.judge_patch(call),
            _ => None,
        }
    }

    fn judge_patch(&self, call: &Call) -> Option<(u16, Value)> {
        if let Err(why) = agents_patch(call) {
            return Some(refuse(422, &why));
        }
        let mut manners = self.manners();
        let (left, status) = manners.fail_patches;
        if left > 0 {
            manners.fail_patches.0 -= 1;
            return Some(refuse(status, "told to fail"));
        }
        if manners.ignore_patches {
            self.trace.push(Seen::PatchIgnored);
            return Some((200, self.get_vm(call.name())));
        }
        if manners.hold_patches {
            self.trace.push(Seen::PatchHeld);
        }
        None
    }

    /// Notes a patch that was carried out, then does what the controller does: copies the revision
    /// to the status.
    fn carry_out(&self, call: &Call) {
        if !call.line.starts_with(VM_PATCHES) {
            return;
        }
        let (cpu, slots, revision) = agents_patch(call).expect("it was judged before");
        self.trace.push(Seen::Patch(
            cpu,
            slots,
            revision["revision"]["value"]
                .as_i64()
                .expect("has a revision"),
        ));
        if !self.manners().is_without_controller {
            self.change_vm(call.name(), |vm| {
                vm["status"]["currentRevision"] = revision.clone();
            });
        }
    }

    /// The watch of VMs tells nothing more of what happens, but for what it is told to.
    pub fn watch_is_late(&self) {
        self.server.always(VM_WATCHES, Fault::Mute);
    }

    /// The watch of VMs tells of this state, as it is.
    pub fn tell_vm(&self, object: &Value) {
        self.server.tell(VM_WATCHES, object);
    }

    /// Objects in the longest answer to a list, now that all of them are there.
    pub fn longest_page(&self) -> usize {
        let total = self.server.list(VMS).len();
        let calls = self.server.calls().into_iter();
        let lists = calls.filter(|call| call.line == VM_LISTS);
        let limit = |call: Call| call.option("limit")?.parse().ok();
        let pages = lists.map(|call| limit(call).unwrap_or(total).min(total));
        pages.max().unwrap_or(0)
    }

    pub fn put_vm(&self, vm: Value) {
        self.server.put(VMS, vm);
    }

    pub fn get_vm(&self, name: &str) -> Value {
        let vm = self.server.get(VMS, "default", name);
        vm.expect("there is one")
    }

    /// Changes a VM's object; no other change comes between. Returns what it is now.
    pub fn change_vm(&self, name: &str, change: impl FnMut(&mut Value)) -> Value {
        self.server.edit(VMS, "default", name, change)
    }

    pub fn delete_vm(&self, name: &str) {
        self.server.take(VMS, "default", name);
    }

    pub fn put_scheduler(&self, ip: &str) {
        self.server.put(
            "pods",
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "name": "autoscale-scheduler-1", "namespace": "kube-system",
                    "labels": {"name": "autoscale-scheduler"},
                    "creationTimestamp": "2024-01-01T00:00:00Z",
                },
                "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]},
            }),
        );
    }

    /// Gives a namespace a mode.
    pub fn label_namespace(&self, name: &str, mode: &str) {
        let labels = json!({"autoscaling.neon.tech/mode": mode});
        let metadata = json!({"name": name, "labels": labels});
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        self.server.put("namespaces", object);
    }

    /// A policy for all namespaces.
    pub fn put_policy(&self, name: &str, source: &str) {
        self.put_policy_with(name, json!({"source": source}), json!({}));
    }

    pub fn put_policy_with(&self, name: &str, spec: Value, status: Value) {
        let object = json!({
            "apiVersion": "policy.bellows.dev/v1alpha1", "kind": "ScalingPolicy",
            "metadata": {"name": name},
            "spec": spec,
            "status": status,
        });
        self.server.put("scalingpolicies", object);
    }

    pub fn delete_policy(&self, name: &str) {
        self.server.take("scalingpolicies", "", name);
    }

    /// Events with this reason.
    pub fn events(&self, reason: &str) -> Vec<Value> {
        let all = self.server.list("events");
        all.into_iter()
            .filter(|event| event["reason"] == reason)
            .collect()
    }

    /// Namespaces may not be listed.
    pub fn hide_namespaces(&self) {
        self.manners().hides_namespaces = true;
    }

    /// Whether policies and their revisions cannot be read.
    pub fn hide_policies(&self, is_hidden: bool) {
        self.manners().hides_policies = is_hidden;
    }

    /// The next patches answer 500.
    pub fn fail_patches(&self, count: u32) {
        self.fail_patches_with(count, 500);
    }

    /// The next patches answer with this status.
    pub fn fail_patches_with(&self, count: u32, status: u16) {
        self.manners().fail_patches = (count, status);
    }

    /// Patches that come are neither carried out nor answered until they no longer are held,
    /// whoever has gone by then.
    pub fn hold_patches(&self, hold: bool) {
        self.manners().hold_patches = hold;
        if hold {
            self.server.always(VM_PATCHES, Fault::Hold);
        } else {
            self.server.take_back(VM_PATCHES);
        }
    }

    /// Patches are answered with 200 and the object as it was.
    pub fn ignore_patches(&self, ignore: bool) {
        self.manners().ignore_patches = ignore;
    }

    /// Nobody carries out what the objects say: no status tells of a revision that was reached.
    pub fn without_controller(&self, is_without: bool) {
        self.manners().is_without_controller = is_without;
    }

    /// Changes a VM's object, and tells all watches that they missed something: 410.
    pub fn change_vm_in_a_gap(&self, name: &str, change: impl FnMut(&mut Value)) {
        self.server.always(VM_WATCHES, Fault::Mute);
        self.change_vm(name, change);
        self.server.expire_watches();
        self.server.take_back(VM_WATCHES);
    }

    /// A VM's size as `(cpu, slots)`.
    pub fn size(&self, name: &str) -> (Value, Value) {
        let vm = self.get_vm(name);
        let guest = &vm["spec"]["guest"];
        (
            guest["cpus"]["use"].clone(),
            guest["memorySlots"]["use"].clone(),
        )
    }
}

fn refuse(code: u16, text: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": text, "code": code, "reason": "Test", "metadata": {}});
    (code, status)
}

/// CPU quantity, slots and revision of a patch: a test of the target revision, then the three
/// replacements that an agent makes, in the form in which objects keep them.
fn agents_patch(call: &Call) -> Result<(String, u64, Value), String> {
    if call.option("fieldManager") != Some("autoscaler-agent") {
        return Err("admission would hold a shrink: not the agent's name".to_owned());
    }
    let operations = call.json();
    let operations = operations.as_array().map(Vec::as_slice).unwrap_or_default();
    let tested = operations.split_first().filter(|(first, _)| {
        let path = first["path"].as_str().unwrap_or_default();
        first["op"] == "test" && path.starts_with("/spec/targetRevision")
    });
    let Some((_, operations)) = tested else {
        return Err(format!("not on a known state: {operations:?}"));
    };
    let paths: Vec<&str> = operations
        .iter()
        .filter_map(|op| op["path"].as_str())
        .collect();
    if paths
        != [
            "/spec/guest/cpus/use",
            "/spec/guest/memorySlots/use",
            "/spec/targetRevision",
        ]
        || operations.iter().any(|op| op["op"] != "replace")
    {
        return Err(format!("not the agent's patch: {operations:?}"));
    }
    let cpu = protocol::units::MilliCpu::from_json(&operations[0]["value"]);
    let cpu = cpu.expect("an amount of CPU");
    if json!(cpu) != operations[0]["value"] {
        return Err(format!("not as objects keep it: {operations:?}"));
    }
    let slots = operations[1]["value"].as_u64();
    let slots = slots.expect("slots are a number");
    Ok((
        cpu.to_quantity_string(),
        slots,
        operations[2]["value"].clone(),
    ))
}
