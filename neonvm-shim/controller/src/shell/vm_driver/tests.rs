use protocol::object::Pod;
use protocol::time::{Span, Timestamp};
use protocol::vm::VirtualMachine;

use super::*;
use crate::core::failing::{Degraded, OVER};
use crate::core::testing::sample_vm;
use crate::core::{Kind, Settings};
use crate::shell::testing::{VM, cancelled, context, key};

fn driver(context: &Context) -> VmDriver {
    VmDriver {
        namespace: "default".into(),
        name: "example".into(),
        core: VmCore::new(Settings::one_machine(), 7),
        mailbox: Mailbox::default(),
        context: context.clone(),
        slot: context.state.vm_slot(VM),
        announcer: Announcer::default(),
        key: key(context),
        under_way: FuturesUnordered::new(),
        held: None,
    }
}

fn refused() -> Result<ActionResponse, Refusal> {
    Err(Refusal::Failed {
        message: "exceeded quota (403)".into(),
        permanent: true,
    })
}

/// A worker, and an API server that carries out what it asks but for one kind of action. No time
/// passes but by [`Scene::live`].
struct Scene {
    driver: VmDriver,
    vm: VirtualMachine,
    refuses: Option<Kind>,
    carried_out: Vec<Kind>,
    at: Moment,
}

impl Scene {
    fn new(refuses: Kind) -> Self {
        let context = context();
        let mut scene = Self {
            at: moment(&context.clock),
            driver: driver(&context),
            vm: sample_vm(),
            refuses: Some(refuses),
            carried_out: Vec::new(),
        };
        scene.show();
        scene
    }

    fn show(&mut self) {
        let version: u64 = self.vm.metadata.resource_version.parse().expect("a number");
        self.vm.metadata.resource_version = (version + 1).to_string();
        let vm = Event::Vm(Box::new(self.vm.clone()));
        self.driver.core.handle(self.at, vm);
    }

    fn live(&mut self, time: Span) {
        let end = self.at.now + time;
        while self.at.now < end {
            while let Some(action) = self.driver.core.poll_action(self.at) {
                let kind = action.kind();
                let result = if self.refuses == Some(kind) {
                    refused()
                } else {
                    self.carried_out.push(kind);
                    Ok(self.carry_out(action))
                };
                let began = self.at;
                let done = Event::Done {
                    kind,
                    began,
                    result,
                };
                self.driver.ended(VM, self.at, done);
            }
            self.at.now = self.at.now + Span::from_secs(1);
        }
    }

    fn carry_out(&mut self, action: Action) -> ActionResponse {
        match action {
            Action::WriteStatus { status, .. } => {
                self.vm.status = Some(*status);
                self.show();
                ActionResponse::Vm(Box::new(self.vm.clone()))
            }
            Action::ReadVm => ActionResponse::Vm(Box::new(self.vm.clone())),
            Action::ReadPod { name } => ActionResponse::PodGone(name),
            Action::EnsureSshSecret { .. } | Action::EnsureRunnerSecret { .. } => {
                ActionResponse::SecretReady
            }
            Action::CreatePod { pod, .. } => {
                let pod: Pod = serde_json::from_value(pod).expect("a pod");
                ActionResponse::Pod(Box::new(pod))
            }
            other => panic!("nobody asked for {other:?}"),
        }
    }

    fn failing(&self) -> Degraded {
        let [of_vms, _] = self.driver.context.state.degraded(self.at.now);
        of_vms.failing
    }
}

#[tokio::test]
async fn a_vm_whose_pod_is_refused_is_failing_while_all_else_works() {
    let mut scene = Scene::new(Kind::CreatePod);
    scene.live(Span::from_secs(90));
    for _ in 0..600 {
        assert_eq!(scene.failing().active, [VM]);
        scene.live(Span::from_secs(1));
    }
    for worked in [Kind::ReadVm, Kind::ReadPod, Kind::WriteStatus] {
        assert!(scene.carried_out.contains(&worked), "{worked:?}");
    }
    scene.refuses = None;
    scene.live(Span::from_secs(30));
    assert_eq!(scene.failing(), Degraded::default());
}

#[tokio::test]
async fn vm_is_well_once_refused_action_is_not_needed() {
    let mut scene = Scene::new(Kind::EnsureSshSecret);
    scene.vm.spec.enable_ssh = true;
    scene.show();
    scene.live(Span::from_secs(120));
    assert_eq!(scene.failing().active, [VM]);
    scene.vm.spec.enable_ssh = false;
    scene.show();
    scene.live(OVER);
    assert!(scene.carried_out.contains(&Kind::CreatePod));
    assert_eq!(scene.failing(), Degraded::default());
}

#[tokio::test]
async fn missing_cpus_ahead_of_order_are_no_failure() {
    let mut scene = Scene::new(Kind::PlugAhead);
    for _ in 0..3 {
        let done = Event::Done {
            kind: Kind::PlugAhead,
            began: scene.at,
            result: refused(),
        };
        scene.driver.ended(VM, scene.at, done);
        scene.at.now = scene.at.now + Span::from_secs(60);
    }
    assert_eq!(scene.failing(), Degraded::default());
}

/// Both answers to the end of a VM are under way at once: that of its last write to the worker,
/// that of the watch to the hub.
#[tokio::test]
async fn state_of_deleted_vm_is_not_kept() {
    let context = context();
    let mut late = driver(&context);
    context.state.forget(VM);
    let minute_later = fail_for_a_minute(&mut late);
    late.run(cancelled()).await;
    assert!(!context.state.knows(VM));
    assert_eq!(context.state.dump()[0]["vms"], serde_json::json!({}));
    let [of_vms, _] = context.state.degraded(minute_later);
    assert_eq!(of_vms.failing, Degraded::default());
}

#[tokio::test]
async fn new_vm_of_same_name_keeps_own_entry() {
    let context = context();
    let mut late = driver(&context);
    context.state.forget(VM);
    let mut next = driver(&context);
    let vm = Event::Vm(Box::new(sample_vm()));
    next.core.handle(moment(&context.clock), vm);
    next.slot.publish(next.core.snapshot());
    let minute_later = fail_for_a_minute(&mut late);
    late.run(cancelled()).await;
    assert_eq!(context.state.dump()[0]["vms"][VM]["uid"], "uid-1");
    let [of_vms, _] = context.state.degraded(minute_later);
    assert_eq!(of_vms.failing, Degraded::default());
}

#[tokio::test]
async fn last_state_of_restarted_driver_is_shown_until_it_publishes() {
    let context = context();
    let mut died = driver(&context);
    let vm = Event::Vm(Box::new(sample_vm()));
    died.core.handle(moment(&context.clock), vm);
    died.slot.publish(died.core.snapshot());
    let minute_later = fail_for_a_minute(&mut died);
    let _next = driver(&context);
    assert_eq!(context.state.dump()[0]["vms"][VM]["uid"], "uid-1");
    let [of_vms, _] = context.state.degraded(minute_later);
    assert_eq!(of_vms.failing.active, [VM]);
}

/// Returns when the minute is over.
fn fail_for_a_minute(driver: &mut VmDriver) -> Timestamp {
    let mut at = moment(&driver.context.clock);
    for _ in 0..=4 {
        let done = Event::Done {
            kind: Kind::PatchVm,
            began: at,
            result: refused(),
        };
        driver.ended(VM, at, done);
        at.now = at.now + Span::from_secs(15);
    }
    at.now
}
