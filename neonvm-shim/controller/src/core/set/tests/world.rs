//! An API server and guests for one set, on a virtual clock.

use std::collections::BTreeMap;

use protocol::object::OwnerReference;
use protocol::policy::{ANNOTATION_SET_VERSION, VmSet, VmSetStatus, member_ordinal};
use protocol::time::{Span, Timestamp, WallTime};
use protocol::vm::{Condition, VirtualMachine, VmPhase};
use serde_json::{Value, json};

use crate::core::conditions::BOOTED;
use crate::core::set::{Action, Event, Response, SetCore};
use crate::core::{Moment, Refusal};

/// Time from the creation of a VM until its guest is up.
pub(super) const BOOT: Span = Span::from_secs(5);
/// Time from the request to delete a VM until it is gone.
pub(super) const GRACE: Span = Span::from_secs(3);
/// Image whose guest never comes up.
pub(super) const BROKEN: &str = "broken";
const SHORTEST: Span = Span(1);

struct StoredVm {
    vm: VirtualMachine,
    created: Timestamp,
    deleted: Option<Timestamp>,
}

/// A change of the members, in the order of the requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    Create { ordinal: u32, version: u32 },
    Delete { ordinal: u32 },
}

pub(super) struct World {
    pub(super) core: SetCore,
    pub(super) set: VmSet,
    vms: BTreeMap<String, StoredVm>,
    pub(super) files: BTreeMap<String, String>,
    pub(super) now: Timestamp,
    pub(super) changes: Vec<(Timestamp, Change)>,
    serial: u64,
    /// Writes of the status that are refused for an old version.
    pub(super) conflicts: u32,
}

impl World {
    pub(super) fn new(replicas: u32) -> Self {
        let mut set = VmSet::default();
        set.metadata.name = "web".into();
        set.metadata.namespace = "default".into();
        set.metadata.uid = "set-1".into();
        set.metadata.resource_version = "1".into();
        set.metadata.generation = Some(1);
        set.spec.replicas = replicas;
        set.spec.template.spec = template("app:1");
        let mut world = Self {
            core: SetCore::default(),
            set,
            vms: BTreeMap::new(),
            files: BTreeMap::new(),
            now: Timestamp(1_000_000),
            changes: Vec::new(),
            serial: 0,
            conflicts: 0,
        };
        world.show_set();
        world
    }

    /// A set with its members up.
    pub(super) fn up(replicas: u32) -> Self {
        let mut world = Self::new(replicas);
        world.settle();
        world.changes.clear();
        world
    }

    pub(super) fn moment(&self) -> Moment {
        Moment {
            now: self.now,
            wall: WallTime(i64::try_from(self.now.0).expect("a time")),
        }
    }

    pub(super) fn give(&mut self, event: Event) {
        let at = self.moment();
        self.core.handle(at, event);
    }

    fn show_set(&mut self) {
        self.give(Event::Set(Box::new(self.set.clone())));
    }

    /// A person changes the set.
    pub(super) fn edit(&mut self, edit: impl FnOnce(&mut VmSet)) {
        edit(&mut self.set);
        let generation = self.set.metadata.generation.unwrap_or(0);
        self.set.metadata.generation = Some(generation + 1);
        self.next_version();
        self.show_set();
    }

    fn next_version(&mut self) {
        self.serial += 1;
        self.set.metadata.resource_version = format!("rv-{}", self.serial);
    }

    pub(super) fn scale(&mut self, replicas: u32) {
        self.edit(|set| set.spec.replicas = replicas);
    }

    /// A new template, which becomes the desired version once it has a number.
    pub(super) fn upgrade(&mut self, image: &str) -> u32 {
        self.edit(|set| set.spec.template.spec = template(image));
        self.run(Span::from_secs(1));
        let newest = self.status().newest.expect("a version");
        self.edit(|set| set.spec.version = Some(newest));
        newest
    }

    /// Another controller takes over. It has listed everything.
    pub(super) fn restart(&mut self) {
        self.core = SetCore::default();
        self.show_set();
        let vms: Vec<VirtualMachine> = self.vms.values().map(|one| one.vm.clone()).collect();
        for vm in vms {
            self.give(Event::Vm(Box::new(vm)));
        }
    }

    pub(super) fn status(&self) -> VmSetStatus {
        self.set.status.clone().unwrap_or_default()
    }

    /// Message of a condition that is true.
    pub(super) fn condition(&self, kind: &str) -> Option<String> {
        let status = self.status();
        let mut all = status.conditions.into_iter();
        let found = all.find(|one| one.kind == kind && one.status == "True");
        found.map(|one| one.message)
    }

    /// Ordinal, uid and version of members that are not being deleted.
    pub(super) fn members(&self) -> Vec<(u32, String, u32)> {
        let staying = self.vms.values().filter(|one| one.deleted.is_none());
        let mut members: Vec<_> = staying
            .filter_map(|one| {
                let meta = &one.vm.metadata;
                let ordinal = member_ordinal("web", &meta.name)?;
                let version = meta.annotations.get(ANNOTATION_SET_VERSION)?;
                let version = version.parse().expect("a number");
                Some((ordinal, meta.uid.clone(), version))
            })
            .collect();
        members.sort();
        members
    }

    pub(super) fn ordinals(&self) -> Vec<u32> {
        self.members().into_iter().map(|member| member.0).collect()
    }

    pub(super) fn versions(&self) -> Vec<u32> {
        self.members().into_iter().map(|member| member.2).collect()
    }

    pub(super) fn up_count(&self) -> usize {
        let alive = self.vms.values().filter(|one| one.deleted.is_none());
        alive.filter(|one| is_up(&one.vm)).count()
    }

    /// A person creates a VM that is no member.
    pub(super) fn create_foreign(&mut self, name: &str) {
        let mut vm = VirtualMachine::default();
        vm.metadata.name = name.into();
        vm.metadata.uid = "foreign".into();
        let created = self.now;
        let stored = StoredVm {
            vm,
            created,
            deleted: None,
        };
        self.vms.insert(name.into(), stored);
    }

    pub(super) fn delete_foreign(&mut self, name: &str) {
        self.vms.remove(name).expect("a VM");
    }

    /// Changes the VM of a member and shows it.
    pub(super) fn edit_vm(&mut self, ordinal: u32, edit: impl FnOnce(&mut VirtualMachine)) {
        let stored = self.vms.get_mut(&format!("web-{ordinal}")).expect("a VM");
        edit(&mut stored.vm);
        let vm = stored.vm.clone();
        self.give(Event::Vm(Box::new(vm)));
    }

    /// Lets time pass, with everything that follows.
    pub(super) fn run(&mut self, time: Span) {
        let end = self.now + time;
        loop {
            self.guests();
            self.actions();
            if self.now >= end {
                return;
            }
            let due = self.core.poll_deadline().into_iter();
            let due = due.chain(self.guests_due()).chain([end]);
            let next = due.min().unwrap_or(end);
            self.now = next.max(self.now + SHORTEST).min(end);
        }
    }

    /// Next time at which a guest comes up or goes.
    fn guests_due(&self) -> Option<Timestamp> {
        let due = self.vms.values().filter_map(|one| match one.deleted {
            Some(at) => Some(at + GRACE),
            None if one.vm.status.is_none() => Some(one.created + BOOT),
            None => None,
        });
        due.filter(|at| *at > self.now).min()
    }

    /// Lets ten minutes pass.
    pub(super) fn settle(&mut self) {
        self.run(Span::from_secs(600));
    }

    pub(super) fn actions(&mut self) {
        while let Some(action) = self.core.poll_action(self.moment()) {
            assert_eq!(self.core.poll_action(self.moment()), None, "one at a time");
            let kind = action.kind();
            let result = self.carry_out(action);
            self.give(Event::Done { kind, result });
        }
    }

    pub(super) fn carry_out(&mut self, action: Action) -> Result<Response, Refusal> {
        match action {
            Action::WriteStatus { patch } => self.write_status(&patch),
            Action::WriteMembers { data, .. } => {
                self.files = data;
                Ok(Response::Members)
            }
            Action::Create { name, vm, .. } => Ok(Response::Vm(Box::new(self.create(name, vm)))),
            Action::Delete { name, uid, .. } => {
                self.delete(&name, &uid);
                Ok(Response::Deleted)
            }
        }
    }

    fn write_status(&mut self, patch: &Value) -> Result<Response, Refusal> {
        let version = &patch["metadata"]["resourceVersion"];
        if *version != self.set.metadata.resource_version.as_str() || self.conflicts > 0 {
            self.conflicts = self.conflicts.saturating_sub(1);
            self.next_version();
            self.show_set();
            return Err(Refusal::Conflict);
        }
        let mut status = json!(self.status());
        merge(&mut status, &patch["status"]);
        self.set.status = Some(serde_json::from_value(status).expect("a status"));
        self.next_version();
        self.show_set();
        Ok(Response::Set(Box::new(self.set.clone())))
    }

    fn create(&mut self, name: String, vm: Value) -> VirtualMachine {
        if let Some(there) = self.vms.get(&name) {
            return there.vm.clone();
        }
        let mut vm: VirtualMachine = serde_json::from_value(vm).expect("a VM");
        self.serial += 1;
        vm.metadata.uid = format!("vm-{}", self.serial);
        let owner = OwnerReference {
            uid: self.set.metadata.uid.clone(),
            ..vm.metadata.owner_references[0].clone()
        };
        assert_eq!(vm.metadata.owner_references, [owner]);
        let version = vm.metadata.annotations[ANNOTATION_SET_VERSION].parse();
        let change = Change::Create {
            ordinal: member_ordinal("web", &name).expect("a member's name"),
            version: version.expect("a number"),
        };
        self.changes.push((self.now, change));
        let stored = StoredVm {
            vm: vm.clone(),
            created: self.now,
            deleted: None,
        };
        self.vms.insert(name, stored);
        self.give(Event::Vm(Box::new(vm.clone())));
        vm
    }

    fn delete(&mut self, name: &str, uid: &str) {
        let now = self.now;
        let stored = self.vms.get_mut(name).expect("a VM");
        assert_eq!(stored.vm.metadata.uid, uid);
        stored.deleted = Some(now);
        stored.vm.metadata.deletion_timestamp = Some(WallTime(0));
        let vm = stored.vm.clone();
        let ordinal = member_ordinal("web", name).expect("a member's name");
        self.changes.push((now, Change::Delete { ordinal }));
        self.give(Event::Vm(Box::new(vm)));
    }

    /// Guests come up and go.
    fn guests(&mut self) {
        let now = self.now;
        let gone = |one: &StoredVm| one.deleted.is_some_and(|at| now.since(at) >= GRACE);
        let names = |world: &Self, holds: &dyn Fn(&StoredVm) -> bool| -> Vec<String> {
            let found = world.vms.iter().filter(|(_, one)| holds(one));
            found.map(|(name, _)| name.clone()).collect()
        };
        for name in names(self, &gone) {
            let uid = self.vms.remove(&name).expect("there").vm.metadata.uid;
            self.give(Event::VmGone { name, uid });
        }
        let boots = |one: &StoredVm| {
            let image = &one.vm.spec.guest.root_disk.image;
            let is_new = one.vm.status.is_none() && one.deleted.is_none();
            is_new && image != BROKEN && now.since(one.created) >= BOOT
        };
        for name in names(self, &boots) {
            let stored = self.vms.get_mut(&name).expect("there");
            bring_up(&mut stored.vm);
            let vm = stored.vm.clone();
            self.give(Event::Vm(Box::new(vm)));
        }
    }
}

pub(super) fn template(image: &str) -> Value {
    json!({
        "guest": {
            "cpus": {"min": 1, "use": 1, "max": 1},
            "memorySlots": {"min": 1, "use": 1, "max": 1},
            "rootDisk": {"image": image},
        },
        "restartPolicy": "Never",
    })
}

fn bring_up(vm: &mut VirtualMachine) {
    let status = vm.status.get_or_insert_default();
    status.phase = VmPhase::Running;
    status.pod_ip = format!("10.0.0.{}", vm.metadata.uid.len());
    status.conditions = vec![Condition {
        kind: BOOTED.into(),
        status: "True".into(),
        ..Condition::default()
    }];
}

fn is_up(vm: &VirtualMachine) -> bool {
    let status = vm.status.as_ref();
    status.is_some_and(|status| status.phase == VmPhase::Running)
}

/// Applies a merge patch.
fn merge(value: &mut Value, patch: &Value) {
    let Some(members) = patch.as_object() else {
        return value.clone_from(patch);
    };
    if !value.is_object() {
        *value = json!({});
    }
    for (name, member) in members {
        if member.is_null() {
            value.as_object_mut().expect("an object").remove(name);
        } else {
            merge(&mut value[name], member);
        }
    }
}
