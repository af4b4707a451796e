//! A certificate from any state of its objects.

use super::*;

fn any_key() -> impl Strategy<Value = TemporaryKey> {
    prop_oneof![
        Just(TemporaryKey::Absent),
        Just(TemporaryKey::Unusable),
        Just(TemporaryKey::Key(key(100))),
        Just(TemporaryKey::Key(key(101))),
    ]
}

fn any_certificate() -> impl Strategy<Value = Certificate> {
    (
        100_u8..103,
        prop_oneof![Just(NAME), Just("else.local")],
        -50_i64..1,
        1_i64..48,
    )
        .prop_map(|(of, name, from, hours)| {
            certificate(key(of), name, WallTime(wall().0 + from * HOUR), hours)
        })
}

fn any_request() -> impl Strategy<Value = Request> {
    let status = prop_oneof![
        Just(waiting()),
        Just(RequestStatus::Refused {
            reason: "Denied",
            message: String::new()
        }),
        any_certificate().prop_map(|it| RequestStatus::Issued(Ok(it))),
        Just(RequestStatus::Issued(Err("no".into()))),
    ];
    prop_oneof![
        Just(Request::Absent),
        (status, 100_u8..103, any::<bool>()).prop_map(|(status, of, known)| {
            let mut request = own_request(status);
            if let Request::Ours(own_request) = &mut request {
                own_request.subject = known.then(|| (NAME.to_owned(), key(of)));
            }
            request
        }),
    ]
}

fn any_stored() -> impl Strategy<Value = Stored> {
    prop_oneof![
        Just(Stored::Absent),
        Just(Stored::Unusable),
        any_certificate().prop_map(Stored::Pair),
    ]
}

proptest! {
    #[test]
    fn from_any_state_a_good_issuer_leads_to_rest(
        stored in any_stored(),
        temporary in any_key(),
        request in any_request(),
        was_stored in any::<bool>(),
        crashes in prop::collection::vec(any::<bool>(), 30),
    ) {
        let mut scene = Scene::new(Ca::default());
        scene.ca.facts = Facts { stored, key: temporary, request };
        if was_stored {
            scene.ca.store();
        }
        for crash in crashes {
            let kept = scene.kept().cloned();
            let Some(step) = scene.step() else { break };
            if scene.kept() != kept.as_ref() {
                prop_assert_eq!(step, Step::Store, "nothing else touches what guests get");
            }
            if crash {
                scene.state = CertificateState::default();
            }
        }
        // A request that had failed before is withdrawn by its time.
        scene.settle();
        scene.pass(Span::from_secs(601));
        scene.settle();
        let now = scene.at.wall;
        let kept = scene.kept().expect("a pair");
        prop_assert!(kept.not_after > now && kept.names.contains(&NAME.to_owned()));
        prop_assert_eq!(&scene.ca.facts.key, &TemporaryKey::Absent);
        prop_assert_eq!(&scene.ca.facts.request, &Request::Absent);
        prop_assert_eq!(scene.next_step().failure, None);
    }
}
