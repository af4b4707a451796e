//! The scheduler starts, reads its watches, acts, and gets answers.

use protocol::core::Core as _;
use protocol::time::Span;
use scheduler::config::Config;
use scheduler::core::Core;
use scheduler::core::event::{Action, BindOutcome, CallOutcome, Event, MigrationOutcome};
use scheduler::core::migrate::MigrationView;
use scheduler::core::view::{NodeView, PodView, VmView};
use serde_json::Value;

use crate::drive::step;
use crate::migrations::api::{ApiResponse, Call, Caller, Kind, Operation};
use crate::migrations::world::MigrationWorld;

impl MigrationWorld {
    pub(crate) fn start_scheduler(&mut self) {
        self.scheduler.epoch += 1;
        // No call of the one before is under way when it lists.
        let old = self.scheduler.epoch;
        self.calls.retain(|call| match call.caller {
            Caller::Write(epoch, _)
            | Caller::Read(epoch, _)
            | Caller::Bind(epoch, _)
            | Caller::Migrate(epoch, _) => epoch == old,
            _ => true,
        });
        self.scheduler.seen = self.objects.log().len();
        let now = self.now + Span::from_secs(2);
        self.now = now;
        let mut core = Core::new(Config::default().settings(true, true));
        let of = |kind| self.objects.list(kind);
        let events = [
            Event::NodesListed(read(&of(Kind::Node), NodeView::read)),
            Event::PodsListed(read(&of(Kind::Pod), PodView::read)),
            Event::VmsListed(read(&of(Kind::Vm), VmView::read)),
            Event::MigrationsListed(read(&of(Kind::Move), MigrationView::read)),
        ];
        for event in events {
            core.handle(now, event);
        }
        self.scheduler.core = Some(core);
    }

    pub(crate) fn crash_scheduler(&mut self) {
        self.scheduler.core = None;
    }

    /// Its watches show the next change.
    pub(crate) fn scheduler_sees(&mut self) -> bool {
        let Some(change) = self.objects.log().get(self.scheduler.seen).cloned() else {
            return false;
        };
        self.scheduler.seen += 1;
        let uid = || {
            let uid = change.value["metadata"]["uid"].as_str();
            uid.unwrap_or_default().to_owned()
        };
        let event = match (change.kind, change.gone) {
            (Kind::Node, false) => NodeView::read(&change.value).ok().map(Event::NodeApplied),
            (Kind::Node, true) => Some(Event::NodeDeleted(change.name.clone())),
            (Kind::Pod, false) => PodView::read(&change.value).ok().map(Event::PodApplied),
            (Kind::Pod, true) => Some(Event::PodDeleted(uid())),
            (Kind::Vm, false) => VmView::read(&change.value).ok().map(Event::VmApplied),
            (Kind::Vm, true) => None,
            (Kind::Move, false) => MigrationView::read(&change.value)
                .ok()
                .map(Event::MigrationApplied),
            (Kind::Move, true) => {
                let view = MigrationView::read(&change.value).ok();
                view.map(|view| Event::MigrationDeleted(view.key, uid()))
            }
        };
        let now = self.now;
        if let (Some(core), Some(event)) = (self.scheduler.core.as_mut(), event) {
            core.handle(now, event);
        }
        true
    }

    /// It does the next thing.
    pub(crate) fn scheduler_acts(&mut self) -> bool {
        let now = self.now;
        let Some(action) = step(self.scheduler.core.as_mut(), now) else {
            if let Some(core) = &mut self.scheduler.core {
                core.take_touched();
            }
            return false;
        };
        let epoch = self.scheduler.epoch;
        let (caller, operation) = match action {
            Action::WriteVm(write) => {
                let operation =
                    Operation::Patch(Kind::Vm, write.vm.name.clone(), write.operations());
                (Caller::Write(epoch, write.id), operation)
            }
            Action::ReadVm { id, vm } => {
                (Caller::Read(epoch, id), Operation::Get(Kind::Vm, vm.name))
            }
            Action::Bind {
                id, pod, uid, node, ..
            } => {
                let node = if self.binds_blindly() {
                    "node-000".to_owned()
                } else {
                    node
                };
                let operation = Operation::Bind(pod.name, uid, node);
                (Caller::Bind(epoch, id), operation)
            }
            Action::CreateMigration { id, migration } => {
                self.scheduler.begun += 1;
                let operation = Operation::Create(Kind::Move, migration.object());
                (Caller::Migrate(epoch, id), operation)
            }
            Action::DeleteMigration {
                id, migration, uid, ..
            } => {
                let operation = Operation::DeleteMove(migration.name, uid);
                (Caller::Migrate(epoch, id), operation)
            }
            // For people.
            _ => return true,
        };
        self.calls.push(Call { caller, operation });
        true
    }

    pub(crate) fn scheduler_answered(&mut self, caller: &Caller, answer: &ApiResponse) {
        let (Caller::Write(epoch, id)
        | Caller::Read(epoch, id)
        | Caller::Bind(epoch, id)
        | Caller::Migrate(epoch, id)) = *caller
        else {
            return;
        };
        if epoch != self.scheduler.epoch {
            return;
        }
        let event = match caller {
            Caller::Bind(..) => Event::BindDone(id, bound(answer)),
            Caller::Migrate(..) => Event::MigrationDone(
                id,
                match answer {
                    ApiResponse::Object(..) | ApiResponse::Status(404) => MigrationOutcome::Done,
                    ApiResponse::Status(status) => MigrationOutcome::Refused(status.to_string()),
                    ApiResponse::Nothing => MigrationOutcome::Unclear("no answer".into()),
                },
            ),
            Caller::Read(..) => Event::ReadDone(id, written(answer)),
            _ => Event::WriteDone(id, written(answer)),
        };
        let now = self.now;
        if let Some(core) = self.scheduler.core.as_mut() {
            core.handle(now, event);
        }
    }
}

fn read<T, E>(all: &[Value], view: impl Fn(&Value) -> Result<T, E>) -> Vec<T> {
    all.iter().filter_map(|value| view(value).ok()).collect()
}

fn bound(answer: &ApiResponse) -> BindOutcome {
    match answer {
        ApiResponse::Object(..) => BindOutcome::Bound,
        ApiResponse::Status(409) => BindOutcome::Conflict,
        ApiResponse::Status(status) => BindOutcome::Refused(status.to_string()),
        ApiResponse::Nothing => BindOutcome::Unclear("no answer".into()),
    }
}

fn written(answer: &ApiResponse) -> CallOutcome {
    match answer {
        ApiResponse::Object(_, value) => match VmView::read(value) {
            Ok(view) => CallOutcome::Done(Box::new(view)),
            Err(_) => CallOutcome::Unclear("not a VM".into()),
        },
        ApiResponse::Status(404) => CallOutcome::NotFound,
        ApiResponse::Status(409 | 422) => CallOutcome::Conflict,
        ApiResponse::Status(status) => CallOutcome::Refused(status.to_string()),
        ApiResponse::Nothing => CallOutcome::Unclear("no answer".into()),
    }
}
