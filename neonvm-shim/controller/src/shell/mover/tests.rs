use protocol::time::Span;
use protocol::vm::VirtualMachineMigration;
use serde_json::json;

use super::*;
use crate::core::Settings;
use crate::core::failing::Degraded;
use crate::core::migration::Kind;
use crate::core::testing::sample_vm;
use crate::shell::testing::{VM, cancelled, common, key};

fn mover(common: &Common) -> Mover {
    Mover {
        namespace: "default".into(),
        name: "example".into(),
        core: MoveCore::new(Settings::one_machine(), 7),
        mailbox: Mailbox::default(),
        common: common.clone(),
        slot: common.state.migration_slot(VM),
        announcer: Announcer::default(),
        key: key(common),
    }
}

fn migration(name: &str) -> Event {
    let object: VirtualMachineMigration = serde_json::from_value(json!({
        "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "resourceVersion": "5",
            "creationTimestamp": "2026-11-21T10:00:00Z"},
        "spec": {"vmName": "example"},
    }))
    .expect("a migration");
    Event::Migration(Box::new(object))
}

/// The mover is refused whatever it asks, but for reading its VM, for this long. Gives back when
/// that is.
fn refuse_all(mover: &mut Mover, mut at: Moment, time: Span) -> Moment {
    let end = at.now + time;
    while at.now < end {
        while let Some(action) = mover.core.poll_action(at) {
            let result = if action == Action::ReadVm {
                Ok(Reply::Vm(Box::new(sample_vm())))
            } else {
                Err(Refusal::Failed {
                    message: "not here (403)".into(),
                    permanent: true,
                })
            };
            let kind = action.kind();
            mover.ended(VM, at, Event::Done { kind, result });
        }
        at.now = at.now + Span::from_secs(1);
    }
    at
}

#[tokio::test]
async fn a_migration_fails_by_its_own_name_under_its_own_controller() {
    let common = common();
    let mut mover = mover(&common);
    let at = moment(&common.clock);
    for name in ["m", "n"] {
        mover.core.handle(at, migration(name));
    }
    let at = refuse_all(&mut mover, at, Span::from_secs(120));
    let [of_vms, of_moves] = common.state.degraded(at.now);
    assert_eq!(of_vms.failing, Degraded::default());
    assert_eq!(of_moves.controller, "virtualmachinemigration");
    assert!(of_moves.failing.active.contains(&"default/m".to_owned()));
    mover.slot.publish(mover.core.snapshot());
    let dump = common.state.dump();
    assert_eq!(dump[1]["controllerName"], "virtualmachinemigration");
    assert!(dump[1]["migrations"][VM]["migrations"]["m"].is_string());
    // The first one goes, the other stays.
    common.state.forget_move(VM, "default/m");
    let [_, of_moves] = common.state.degraded(at.now);
    assert!(!of_moves.failing.active.contains(&"default/m".to_owned()));
}

#[tokio::test]
async fn what_is_said_of_the_one_whose_turn_it_is_names_it() {
    let common = common();
    let mut mover = mover(&common);
    let at = moment(&common.clock);
    for name in ["n", "m"] {
        mover.core.handle(at, migration(name));
    }
    let action = mover.core.poll_action(at);
    assert_eq!(action, Some(Action::ReadVm));
    assert_eq!(mover.core.migration_of(Kind::ReadVm), Some("m"));
    let gone = Event::MigrationGone {
        name: "m".into(),
        uid: None,
    };
    mover.core.handle(at, gone);
    assert_eq!(mover.core.migration_of(Kind::ReadVm), None);
}

#[tokio::test]
async fn what_a_mover_says_of_migrations_that_are_gone_is_not_kept() {
    let common = common();
    let mut late = mover(&common);
    let at = moment(&common.clock);
    late.core.handle(at, migration("m"));
    common.state.forget_moves(VM);
    let at = refuse_all(&mut late, at, Span::from_secs(120));
    late.core.handle(
        at,
        Event::MigrationGone {
            name: "m".into(),
            uid: None,
        },
    );
    late.run(cancelled()).await;
    assert_eq!(common.state.dump()[1]["migrations"], json!({}));
    let [_, of_moves] = common.state.degraded(at.now);
    assert_eq!(of_moves.failing, Degraded::default());
}
