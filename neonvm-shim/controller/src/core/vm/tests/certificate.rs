//! A VM whose guest is to have a certificate.

use protocol::core::Core as _;
use protocol::time::Span;
use protocol::vm::{VirtualMachine, VmPhase};
use serde_json::json;

use super::phases::{condition, event_reasons, running};
use super::world::World;
use crate::core::certificate::testing::Manner;
use crate::core::certificate::{Stored, TemporaryKey};
use crate::core::conditions::DEGRADED;
use crate::core::refusal::Refusal;
use crate::core::testing::sample_vm;
use crate::core::{Action, Kind};

fn with_tls() -> VirtualMachine {
    let mut vm = sample_vm();
    vm.spec.tls = Some(json!({
        "certificateIssuer": "neon-ca-issuer", "expireAfter": "24h", "renewBefore": "1h",
        "serverName": "vm.neon.local",
    }));
    vm
}

fn certificate_steps(world: &World) -> Vec<Kind> {
    let steps = world.log.iter().map(Action::kind);
    steps
        .filter(|kind| kind.peer() == crate::core::Peer::Certificates)
        .collect()
}

/// Requirement: N17
#[test]
fn pod_waits_for_first_certificate() {
    let mut world = World::new(&with_tls());
    world.ca.manner = Manner::Ponders;
    world.settle();
    assert_eq!(world.phase(), VmPhase::Pending);
    assert_eq!(world.status().tls_secret_name, "tls-neonvm-example");
    assert!(world.created.is_empty());
    assert_eq!(condition(&world, DEGRADED).0, "absent", "it may be quick");
    world.pass(Span::from_secs(6));
    world.settle();
    assert_eq!(
        condition(&world, DEGRADED).1,
        "no certificate from ClusterIssuer neon-ca-issuer yet: in the queue"
    );
    assert!(event_reasons(&mut world).contains(&"Degraded"));
    world.ca.manner = Manner::Signs;
    world.issuer_responds();
    world.settle();
    assert_eq!(world.created.len(), 1);
    use Kind::{
        AwaitCertificate, MakeTlsKey, ReadCertificate, RequestCertificate, StoreCertificate,
        TidyCertificate,
    };
    assert_eq!(
        certificate_steps(&world),
        [
            ReadCertificate,
            MakeTlsKey,
            RequestCertificate,
            AwaitCertificate,
            StoreCertificate,
            TidyCertificate
        ]
    );
    let pod = world.created[0].clone();
    world.start(&pod);
    world.settle();
    assert_eq!(condition(&world, DEGRADED).0, "False");
}

#[test]
fn denied_request_is_reported_and_made_again() {
    let mut world = World::new(&with_tls());
    world.ca.manner = Manner::Denies;
    world.settle();
    let told = "ClusterIssuer neon-ca-issuer refused the certificate (Denied): not for you";
    assert_eq!(condition(&world, DEGRADED).1, told);
    assert_eq!(event_reasons(&mut world), ["Degraded"]);
    assert!(world.created.is_empty());
    world.ca.manner = Manner::Signs;
    world.pass(Span::from_secs(9));
    world.settle();
    assert_eq!(world.ca.requests, 1);
    world.pass(Span::from_secs(1));
    world.settle();
    assert_eq!((world.ca.requests, world.created.len()), (2, 1));
}

#[test]
fn a_renewal_holds_up_nothing_and_an_expired_one_is_told() {
    let (mut world, pod) = running(&with_tls());
    world.ca.manner = Manner::Ponders;
    world.pass(Span::from_secs(23 * 3600));
    world.settle();
    assert_eq!(
        certificate_steps(&world).last(),
        Some(&Kind::AwaitCertificate)
    );
    world.edit(|vm| vm.spec.guest.memory_slots.r#use = 2);
    world.settle();
    world.finish_resize(&pod);
    world.settle();
    assert_eq!(world.phase(), VmPhase::Running, "resized meanwhile");
    assert_eq!(condition(&world, DEGRADED).0, "absent");
    world.pass(Span::from_secs(3601));
    world.settle();
    let (status, told) = condition(&world, DEGRADED);
    assert_eq!((world.phase(), status.as_str()), (VmPhase::Running, "True"));
    assert!(told.contains("yet"), "{told}");
    // It starts anew with what it has.
    world.end(&pod, "Failed", 1);
    world.settle();
    world.remove_pod(&pod);
    world.settle();
    assert_eq!(world.created.len(), 2);
    world.ca.manner = Manner::Signs;
    world.issuer_responds();
    world.settle();
    assert!(
        matches!(&world.ca.facts.stored, Stored::Pair(pair) if pair.key == crate::core::certificate::testing::key(2))
    );
    assert_eq!(world.ca.facts.key, TemporaryKey::Absent);
    let pod = world.created[1].clone();
    world.start(&pod);
    world.settle();
    assert_eq!(condition(&world, DEGRADED).0, "False");
}

#[test]
fn missing_cert_manager_is_reported_and_retried() {
    let mut world = World::new(&with_tls());
    let mut refused = 0;
    for _ in 0..100 {
        let Some(action) = world.core.poll_action(world.at) else {
            world.pass(Span::from_secs(20));
            continue;
        };
        let (kind, began) = (action.kind(), world.at);
        let result = if kind == Kind::RequestCertificate && refused < 3 {
            refused += 1;
            Err(Refusal::Failed {
                message: "no such kind".into(),
                permanent: true,
            })
        } else {
            world.carry_out(&action)
        };
        if refused == 2 {
            let told = condition(&world, DEGRADED).1;
            assert_eq!(told, "failed to request the certificate: no such kind");
        }
        world.is_done(kind, began, result);
        world.show();
    }
    assert_eq!((refused, world.created.len()), (3, 1));
}
