use protocol::time::Span;
use protocol::vm::VirtualMachineMigration;
use serde_json::json;

use super::*;
use crate::core::Settings;
use crate::core::failing::Degraded;
use crate::core::migration::Kind;
use crate::core::testing::sample_vm;
use crate::shell::testing::{VM, cancelled, context, key};

fn driver(context: &Context) -> MigrationDriver {
    MigrationDriver {
        namespace: "default".into(),
        name: "example".into(),
        core: MigrationCore::new(Settings::one_machine(), 7),
        mailbox: Mailbox::default(),
        context: context.clone(),
        slot: context.state.migration_slot(VM),
        announcer: Announcer::default(),
        key: key(context),
        under_way: FuturesUnordered::new(),
        links: BTreeMap::new(),
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
fn refuse_all(driver: &mut MigrationDriver, mut at: Moment, time: Span) -> Moment {
    let end = at.now + time;
    while at.now < end {
        while let Some(action) = driver.core.poll_action(at) {
            let result = if action == Action::ReadVm {
                Ok(ActionResponse::Vm(Box::new(sample_vm())))
            } else {
                Err(Refusal::Failed {
                    message: "not here (403)".into(),
                    permanent: true,
                })
            };
            let kind = action.kind();
            driver.ended(VM, at, Event::Done { kind, result });
        }
        at.now = at.now + Span::from_secs(1);
    }
    at
}

#[tokio::test]
async fn failing_migration_is_listed_by_name_under_its_controller() {
    let context = context();
    let mut driver = driver(&context);
    let at = moment(&context.clock);
    for name in ["m", "n"] {
        driver.core.handle(at, migration(name));
    }
    let at = refuse_all(&mut driver, at, Span::from_secs(120));
    let [of_vms, of_migrations] = context.state.degraded(at.now);
    assert_eq!(of_vms.failing, Degraded::default());
    assert_eq!(of_migrations.controller, "virtualmachinemigration");
    assert!(
        of_migrations
            .failing
            .active
            .contains(&"default/m".to_owned())
    );
    driver.slot.publish(driver.core.snapshot());
    let dump = context.state.dump();
    assert_eq!(dump[1]["controllerName"], "virtualmachinemigration");
    assert!(dump[1]["migrations"][VM]["migrations"]["m"].is_string());
    // The first one goes, the other stays.
    context.state.forget_migration(VM, "default/m");
    let [_, of_migrations] = context.state.degraded(at.now);
    assert!(
        !of_migrations
            .failing
            .active
            .contains(&"default/m".to_owned())
    );
}

#[tokio::test]
async fn failures_are_listed_for_migration_whose_turn_it_is() {
    let context = context();
    let mut driver = driver(&context);
    let at = moment(&context.clock);
    for name in ["n", "m"] {
        driver.core.handle(at, migration(name));
    }
    let action = driver.core.poll_action(at);
    assert_eq!(action, Some(Action::ReadVm));
    assert_eq!(driver.core.migration_of(Kind::ReadVm), Some("m"));
    let gone = Event::MigrationGone {
        name: "m".into(),
        uid: None,
    };
    driver.core.handle(at, gone);
    assert_eq!(driver.core.migration_of(Kind::ReadVm), None);
}

#[tokio::test]
async fn state_of_deleted_migrations_is_not_kept() {
    let context = context();
    let mut late = driver(&context);
    let at = moment(&context.clock);
    late.core.handle(at, migration("m"));
    context.state.forget_migrations(VM);
    let at = refuse_all(&mut late, at, Span::from_secs(120));
    late.core.handle(
        at,
        Event::MigrationGone {
            name: "m".into(),
            uid: None,
        },
    );
    late.run(cancelled()).await;
    assert_eq!(context.state.dump()[1]["migrations"], json!({}));
    let [_, of_migrations] = context.state.degraded(at.now);
    assert_eq!(of_migrations.failing, Degraded::default());
}
