use proptest::prelude::*;

use super::nat::tests::{RANGE, apply as apply_nat};
use super::*;

fn at(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, last)
}

fn wanted(peers: &[u8]) -> Wanted {
    Wanted {
        local: at(1),
        peers: Some(peers.iter().copied().map(at).collect()),
        exempt: RANGE.parse().ok(),
    }
}

/// Applies a step as the kernel does; a step that the kernel would refuse fails the test.
fn apply(seen: &mut Seen, step: &Step) {
    let fresh = |local| TunnelSeen {
        vni: Some(VNI),
        local: Some(local),
        port: Some(PORT),
        learning: true,
        in_bridge: false,
        targets: BTreeSet::new(),
    };
    let bridge = seen.bridge.is_some();
    let tunnel = |seen: &mut Seen, change: &dyn Fn(&mut LinkSeen<TunnelSeen>, bool)| {
        change(seen.tunnel.as_mut().expect("there is one"), bridge);
    };
    let is = |link: &mut LinkSeen<TunnelSeen>, change: &dyn Fn(&mut TunnelSeen)| {
        change(link.is.as_mut().expect("it is ours"));
    };
    match step {
        Step::AddBridge => {
            assert!(!bridge, "made twice");
            seen.bridge = Some(LinkSeen {
                is: Some(()),
                up: false,
            });
        }
        Step::RaiseBridge => seen.bridge.as_mut().expect("there is one").up = true,
        Step::AddTunnel(local) => {
            assert!(seen.tunnel.is_none(), "made twice");
            seen.tunnel = Some(LinkSeen {
                is: Some(fresh(*local)),
                up: false,
            });
        }
        Step::JoinBridge => tunnel(seen, &|link, bridge| {
            assert!(bridge, "no bridge");
            is(link, &|is| is.in_bridge = true);
        }),
        Step::RaiseTunnel => tunnel(seen, &|link, _| link.up = true),
        Step::AddTarget(to) => tunnel(seen, &|link, _| {
            is(link, &|is| assert!(is.targets.insert(*to), "sent to twice"));
        }),
        Step::RemoveTarget(to) => tunnel(seen, &|link, _| {
            is(link, &|is| assert!(is.targets.remove(to), "not sent to"));
        }),
        Step::Nat(step) => apply_nat(&mut seen.nat, step),
        Step::DeleteTunnel => assert!(seen.tunnel.take().is_some(), "none to delete"),
        Step::DeleteBridge => {
            assert!(seen.bridge.take().is_some(), "none to delete");
            if let Some(is) = seen.tunnel.as_mut().and_then(|link| link.is.as_mut()) {
                is.in_bridge = false;
            }
        }
    }
}

fn carry_out(seen: &mut Seen, wanted: &Wanted) {
    for step in steps(seen, wanted).expect("nothing foreign") {
        apply(seen, &step);
    }
}

#[test]
fn bare_node_gets_all_steps_in_order() {
    let mut seen = Seen::default();
    let words: Vec<&str> = steps(&seen, &wanted(&[2, 3]))
        .expect("bare")
        .iter()
        .map(Step::label)
        .collect();
    let links = [
        "add_bridge",
        "raise_bridge",
        "add_tunnel",
        "join_bridge",
        "add_target",
        "add_target",
        "raise_tunnel",
    ];
    assert_eq!(words, [&links[..], &["nat"; 4]].concat());
    carry_out(&mut seen, &wanted(&[2, 3]));
    assert_eq!(steps(&seen, &wanted(&[2, 3])), Ok(Vec::new()));
}

#[test]
fn entries_follow_the_nodes() {
    let mut seen = Seen::default();
    carry_out(&mut seen, &wanted(&[2, 3]));
    let found = steps(&seen, &wanted(&[3, 4]));
    assert_eq!(
        found,
        Ok(vec![Step::RemoveTarget(at(2)), Step::AddTarget(at(4))])
    );
    let unknown = Wanted {
        peers: None,
        ..wanted(&[])
    };
    assert_eq!(steps(&seen, &unknown), Ok(Vec::new()));
}

#[test]
fn tunnel_with_another_address_is_replaced() {
    let mut seen = Seen::default();
    carry_out(&mut seen, &wanted(&[2]));
    let moved = Wanted {
        local: at(9),
        ..wanted(&[2])
    };
    let found = steps(&seen, &moved).expect("ours");
    let words: Vec<&str> = found.iter().map(Step::label).collect();
    assert_eq!(
        words,
        [
            "delete_tunnel",
            "add_tunnel",
            "join_bridge",
            "add_target",
            "raise_tunnel"
        ]
    );
}

#[test]
fn foreign_link_is_reported_and_stays() {
    let mut seen = Seen {
        bridge: Some(LinkSeen { is: None, up: true }),
        ..Seen::default()
    };
    let problem = steps(&seen, &wanted(&[2])).expect_err("foreign");
    assert!(
        problem.to_string().contains("neon-br0 that is no bridge"),
        "{problem}"
    );
    assert_eq!(removal(&seen), Vec::new());
    seen.bridge = None;
    seen.tunnel = Some(LinkSeen {
        is: None,
        up: false,
    });
    assert!(steps(&seen, &wanted(&[])).is_err());
    assert_eq!(removal(&seen), Vec::new());
}

fn any_tunnel() -> impl Strategy<Value = TunnelSeen> {
    let targets = prop::collection::btree_set((2_u8..6).prop_map(at), 0..4);
    let local = prop::option::of((1_u8..3).prop_map(at));
    (
        prop::option::of(99_u32..101),
        local,
        any::<[bool; 3]>(),
        targets,
    )
        .prop_map(
            |(vni, local, [port, learning, in_bridge], targets)| TunnelSeen {
                vni,
                local,
                port: port.then_some(PORT),
                learning,
                in_bridge,
                targets,
            },
        )
}

fn any_seen() -> impl Strategy<Value = Seen> {
    let bridge = prop::option::of(any::<bool>().prop_map(|up| LinkSeen { is: Some(()), up }));
    let tunnel = prop::option::of((any_tunnel(), any::<bool>()));
    (bridge, tunnel).prop_map(|(bridge, tunnel)| {
        let tunnel = tunnel.map(|(mut is, up)| {
            is.in_bridge &= bridge.is_some();
            LinkSeen { is: Some(is), up }
        });
        Seen {
            bridge,
            tunnel,
            nat: NatSeen::default(),
        }
    })
}

proptest! {
    #[test]
    fn steps_lead_to_the_wanted_state_from_any_state(start in any_seen(), peers in prop::collection::vec(2_u8..6, 0..4), stop in 0_usize..12) {
        let wanted = wanted(&peers);
        let mut seen = start;
        for step in steps(&seen, &wanted).expect("ours").iter().take(stop) {
            apply(&mut seen, step);
        }
        carry_out(&mut seen, &wanted);
        prop_assert_eq!(steps(&seen, &wanted), Ok(Vec::new()));
        let tunnel = seen.tunnel.as_ref().and_then(|link| link.is.as_ref()).expect("there is one");
        prop_assert!(tunnel.fits(wanted.local) && tunnel.in_bridge);
        prop_assert_eq!(Some(&tunnel.targets), wanted.peers.as_ref());
        for step in removal(&seen).iter().take(stop) {
            apply(&mut seen, step);
        }
        for step in removal(&seen) {
            apply(&mut seen, &step);
        }
        prop_assert_eq!(seen, Seen::default());
    }
}
