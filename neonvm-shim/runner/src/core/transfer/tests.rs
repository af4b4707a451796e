use serde_json::json;

use super::outgoing::Leaving;
use super::{Manifest, Outgoing, OutgoingAction, OutgoingEvent, Unfit, View};
use crate::config::Accel;
use crate::core::connection::{Connection, connection, is_bridged};
use crate::core::disks;
use crate::core::guestd_key::GuestdKey;
use crate::core::nic;
use crate::core::shape::{CpuControl, shape};
use protocol::core::Core as _;
use protocol::migration::{
    Destination, OutgoingOrder, OutgoingStage, SECRET_OF_SHAPE, StreamOptions,
};
use protocol::time::Timestamp;
use protocol::units::Bytes;
use protocol::vm::VmSpec;

/// Manifest of a guest with these settings and disks.
fn of(settings: &serde_json::Value, disks: &serde_json::Value) -> Manifest {
    let spec: VmSpec = serde_json::from_value(json!({
        "guest": {
            "cpus": {"min": 1, "use": 1, "max": 1}, "memorySlotSize": "1Gi",
            "memorySlots": {"min": 1, "use": 1, "max": 1}, "rootDisk": {"image": "i"},
            "settings": settings,
        },
        "disks": disks,
    }))
    .unwrap();
    let plan = disks::plan(&spec, Some("a key"), None).unwrap();
    let drives = plan.drives.iter().map(|planned| super::DriveThere {
        drive: planned.drive.clone(),
        path: planned.drive.file().into(),
        device: 1,
        inode: 1,
        sha256: None,
    });
    Manifest {
        qemu: "10.0.2".into(),
        machine: "pc-q35-10.0".into(),
        accel: Accel::Tcg,
        shape: shape(&spec.guest, CpuControl::Plug, Accel::Tcg).unwrap(),
        cpus: Vec::new(),
        mac: String::new(),
        bridged: false,
        passt: false,
        queues: 1,
        overlay_mac: None,
        cmdline: String::new(),
        order: None,
        boot_ms: None,
        disk: super::Disk {
            host_boot_id: "there".into(),
            path: "root.qcow2".into(),
            device: 1,
            inode: 0,
            bytes: 1 << 30,
            image: "sha256".into(),
        },
        drives: drives.collect(),
        encrypts: false,
        guestd_key: None,
        dials_sockets: true,
    }
}

#[test]
fn guest_with_other_writable_disks_stays_on_its_machine() {
    let swap = json!({"swap": "1Gi"});
    let empty = json!([{"name": "data", "mountPath": "/data", "emptyDisk": {"size": "1Gi"}}]);
    let freed = json!([
        {"name": "data", "mountPath": "/data", "emptyDisk": {"size": "1Gi", "discard": true}},
        {"name": "more", "mountPath": "/more", "emptyDisk": {"size": "1Gi"}},
    ]);
    for (settings, disks, names) in [
        (&swap, &json!([]), "its swap"),
        (&json!({}), &empty, "disk \"data\""),
        (
            &swap,
            &freed,
            "its swap and disk \"data\" and disk \"more\"",
        ),
    ] {
        let refused = of(settings, disks).drives_come().unwrap_err();
        assert_eq!(refused, Unfit::Written(names.to_owned()));
        assert_eq!(
            refused.to_string(),
            format!(
                "the guest writes to {names}, and a disk other than its root disk is not copied to another machine: \
                 end the VM there and start it here"
            )
        );
    }
}

/// A recalled departure after this answer of QEMU.
fn recalled(run: &str, migration: &str) -> Outgoing {
    let mut leaving = Outgoing::new(OutgoingOrder {
        id: "m".into(),
        to: None,
        how: HOW,
    });
    let now = Timestamp(1);
    leaving.handle(now, OutgoingEvent::Recall);
    while let Some(OutgoingAction::Save(_)) = leaving.poll_action(now) {}
    let view = View {
        run: run.to_owned(),
        migration: migration.to_owned(),
        ..View::default()
    };
    leaving.handle(now, OutgoingEvent::Viewed(Ok(view)));
    leaving
}

#[test]
fn guest_stopped_by_its_disk_counts_as_running() {
    for (run, action, over) in [
        ("running", None, true),
        // The recovery from a full disk resumes the guest; the migration that is over does not
        // repeat it.
        ("io-error", None, true),
        ("postmigrate", Some(OutgoingAction::Continue), false),
        ("paused", Some(OutgoingAction::Continue), false),
    ] {
        let mut leaving = recalled(run, "cancelled");
        assert_eq!(leaving.poll_action(Timestamp(1)), action, "{run}");
        assert_eq!(leaving.is_over(), over, "{run}");
    }
}

const HOW: StreamOptions = StreamOptions {
    post_copy: false,
    auto_converge: true,
    max_bandwidth: Bytes(0),
};

/// A departure whose record says that the guest is sent.
fn sent() -> Outgoing {
    let to = Destination {
        stream: "127.0.0.1:1".parse().unwrap(),
        disk: None,
        encrypted: false,
        sockets: None,
    };
    Outgoing::found(Leaving {
        order: OutgoingOrder {
            id: "m".into(),
            to: Some(to),
            how: HOW,
        },
        copying: false,
        sent: true,
        recalled: false,
    })
}

/// What follows the next query, which finds QEMU so.
fn after_query(leaving: &mut Outgoing, run: &str, migration: &str) -> Option<OutgoingAction> {
    let now = leaving.poll_deadline().unwrap();
    assert_eq!(leaving.poll_action(now), Some(OutgoingAction::Look));
    let view = View {
        run: run.to_owned(),
        migration: migration.to_owned(),
        ..View::default()
    };
    leaving.handle(now, OutgoingEvent::Viewed(Ok(view)));
    let action = leaving.poll_action(now)?;
    leaving.handle(now, OutgoingEvent::Done(action.clone(), Ok(())));
    Some(action)
}

/// Without KVM a guest is stopped before it is sent.
#[test]
fn stopped_guest_goes_on_if_it_cannot_be_sent() {
    let mut leaving = sent();
    let send = after_query(&mut leaving, "running", "none");
    assert_eq!(send, Some(OutgoingAction::Send));
    assert_eq!(after_query(&mut leaving, "paused", "active"), None);
    assert_eq!(leaving.report().stage, OutgoingStage::Sending);
    assert_eq!(after_query(&mut leaving, "paused", "failed"), None);
    assert_eq!(leaving.report().stage, OutgoingStage::Failed);
    let go_on = after_query(&mut leaving, "paused", "failed");
    assert_eq!(go_on, Some(OutgoingAction::Continue));
    assert_eq!(after_query(&mut leaving, "running", "failed"), None);
}

/// The stop does not look like the end of an earlier migration that was recalled.
#[test]
fn stopped_guest_is_sent_after_an_earlier_migration() {
    let mut leaving = sent();
    let send = after_query(&mut leaving, "paused", "completed");
    assert_eq!(send, Some(OutgoingAction::Send));
    assert_eq!(after_query(&mut leaving, "postmigrate", "completed"), None);
    assert!(leaving.is_handed_over());
}

#[test]
fn drives_of_files_and_memory_migrate() {
    let disks = json!([
        {"name": "config", "mountPath": "/a", "configMap": {"name": "a"}},
        {"name": "secret", "mountPath": "/b", "secret": {"secretName": "b"}, "watch": true},
        {"name": "scratch", "mountPath": "/c", "tmpfs": {"size": "64Mi"}},
    ]);
    let manifest = of(&json!({"sysctl": ["vm.swappiness=1"]}), &disks);
    let ids: Vec<&str> = manifest
        .drives
        .iter()
        .map(|there| there.drive.id.as_str())
        .collect();
    assert_eq!(ids, ["runtime", disks::KEYS, "disk-config"]);
    assert_eq!(manifest.drives_come(), Ok(()));
}

#[test]
fn key_of_the_guest_has_the_secret_member_name() {
    let mut from = of(&json!({}), &json!([]));
    from.guestd_key = Some(GuestdKey::new([1; 32]));
    let mut said = serde_json::to_value(&from).unwrap();
    assert_eq!(said[SECRET_OF_SHAPE], "01".repeat(32));
    assert!(!format!("{from:?}").contains("0101"));
    // An older runner has no key, and connects to ports.
    for member in [SECRET_OF_SHAPE, "dials_sockets"] {
        said.as_object_mut().unwrap().remove(member);
    }
    let from: Manifest = serde_json::from_value(said).unwrap();
    assert_eq!((from.guestd_key, from.dials_sockets), (None, false));
}

/// Requirement: N18
#[test]
fn migrated_guest_keeps_its_connection() {
    let mut config = crate::core::args::tests::config();
    let mut from = of(&json!({}), &json!([]));
    for (here, there) in [(false, true), (true, false)] {
        config.network.bridged = here;
        from.bridged = there;
        assert_eq!(is_bridged(&config, Some(&from)), there);
        assert_eq!(is_bridged(&config, None), here);
    }
    config.network.bridged = false;
    config.walls = Some(crate::core::passt::tests::walls());
    from.bridged = false;
    let by_user_network = connection(&config, Some(&from));
    assert_eq!(
        by_user_network,
        Connection::UserNetwork,
        "as an older version started it"
    );
    from.passt = true;
    assert!(matches!(
        connection(&config, Some(&from)),
        Connection::Passt(_)
    ));
    // Runners older than bridges do not have the member.
    let mut said = serde_json::to_value(&from).unwrap();
    said.as_object_mut().unwrap().remove("bridged");
    said.as_object_mut().unwrap().remove("queues");
    said.as_object_mut().unwrap().remove("passt");
    let mut from: Manifest = serde_json::from_value(said).unwrap();
    assert!(!from.bridged && !from.passt);
    assert_eq!(nic::queues(&from.shape, Some(&from)), 1);
    // A guest that boots here has a queue per CPU, up to four.
    for (cpus, queues) in [(1, 1), (3, 3), (16, 4)] {
        from.shape.max_cpus = cpus;
        assert_eq!(nic::queues(&from.shape, None), queues);
    }
}
