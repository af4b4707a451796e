//! What is read for a shrink, and what of it is remembered.

use super::*;
use crate::core::zones::Zone;

/// A guest of 4 GiB, 3 of them movable, with this much of the movable memory free.
fn guest(free: Bytes) -> Fixture {
    let mut fixture = Fixture::served(CacheMode::Off);
    set_free(&mut fixture, free);
    fixture.weight.total = Some(Bytes::gib(4));
    fixture
}

fn set_free(fixture: &mut Fixture, free: Bytes) {
    fixture.weight.idle = Some(free);
    fixture.zones = Some(Zones {
        movable: Zone {
            managed: Bytes::gib(3),
            free,
            cache: Bytes(0),
        },
        reserve: Bytes::mib(20),
        ..Zones::default()
    });
}

/// Asks for a shrink and tells whether it was approved.
fn approves(fixture: &mut Fixture, mem: u64) -> bool {
    fixture.ask_downscale(mem, 2);
    let last = fixture.sent().pop().expect("an answer");
    matches!(last.body, MonitorBody::DownscaleResult { ok: true, .. })
}

#[test]
fn zones_are_read_once_while_the_machine_keeps_its_size() {
    let mut fixture = guest(Bytes::gib(3));
    for _ in 0..10 {
        assert!(approves(&mut fixture, 2 * GIB));
        fixture.run_for(Span::from_secs(5));
    }
    assert_eq!(fixture.zone_reads, 1);
    fixture.weight.total = Some(Bytes::gib(5));
    assert!(approves(&mut fixture, 3 * GIB));
    assert_eq!(fixture.zone_reads, 2, "memory was plugged");
    fixture.run_for(Span::from_secs(61));
    assert!(approves(&mut fixture, 3 * GIB));
    assert_eq!(fixture.zone_reads, 3, "a minute is over");
}

#[test]
fn shrink_is_judged_by_new_zones_where_free_memory_has_become_short() {
    let mut fixture = guest(Bytes::gib(3));
    assert!(approves(&mut fixture, 2 * GIB));
    set_free(&mut fixture, Bytes::gib(1));
    assert!(!approves(&mut fixture, 2 * GIB));
    assert_eq!(fixture.zone_reads, 2);
    let refusals = fixture.core.snapshot(fixture.now).counters.refusals;
    assert_eq!(refusals.get("not_movable"), 1);
    // The reserve may be used up by a moment's need: the zones themselves have the last word.
    set_free(&mut fixture, Bytes::gib(2));
    assert!(approves(&mut fixture, 2 * GIB));
    assert_eq!(fixture.zone_reads, 3);
}

#[test]
fn shrink_that_use_forbids_reads_no_zones() {
    let mut fixture = guest(Bytes::gib(3));
    fixture.usage = Ok(Bytes::gib(2));
    fixture.run_for(Span::from_secs(1));
    assert!(!approves(&mut fixture, GIB));
    assert_eq!(fixture.zone_reads, 0);
}

#[test]
fn shrink_of_a_guest_that_shows_no_free_memory_reads_its_zones_each_time() {
    let mut fixture = guest(Bytes::gib(3));
    fixture.weight.idle = None;
    for reads in 1..4 {
        assert!(approves(&mut fixture, 2 * GIB));
        assert_eq!(fixture.zone_reads, reads);
    }
    fixture.zones = None;
    assert!(approves(&mut fixture, 2 * GIB), "it is not judged by zones");
}

/// The zones that are read for an agent that has left decide nothing for its successor.
#[test]
fn zones_of_an_earlier_agents_request_are_no_answer_to_the_next() {
    let mut fixture = guest(Bytes::gib(3));
    let target = Allocation {
        cpu: 0.25,
        mem: GIB,
    };
    let request = |connection| {
        let body = AgentBody::DownscaleRequest { target };
        let what = Received::Text(AgentFrame { body, id: 2 }.encode());
        Event::Received { connection, what }
    };
    let now = fixture.now;
    fixture.core.handle(now, request(AGENT));
    fixture.core.handle(now, Event::Weighed(fixture.weight));
    let newer = ConnectionId(2);
    fixture.connect(newer);
    fixture.run_for(Span::from_millis(500));
    fixture.done.clear();
    fixture.core.handle(fixture.now, request(newer));
    fixture.core.handle(fixture.now, Event::ZonesRead(None));
    assert_eq!(fixture.sent(), []);
    fixture.act();
    assert_eq!(fixture.sent().len(), 1);
}
