//! What is read for a shrink, and what of it is remembered.

use super::*;
use crate::core::zones::Zone;

/// A guest of 4 GiB, 3 of them movable, with this much of the movable memory free.
fn guest(free: Bytes) -> Bench {
    let mut bench = Bench::served(CacheMode::Off);
    set_free(&mut bench, free);
    bench.weight.total = Some(Bytes::gib(4));
    bench
}

fn set_free(bench: &mut Bench, free: Bytes) {
    bench.weight.idle = Some(free);
    bench.zones = Some(Zones {
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
fn approves(bench: &mut Bench, mem: u64) -> bool {
    bench.ask_downscale(mem, 2);
    let last = bench.sent().pop().expect("an answer");
    matches!(last.body, MonitorBody::DownscaleResult { ok: true, .. })
}

#[test]
fn zones_are_read_once_while_the_machine_keeps_its_size() {
    let mut bench = guest(Bytes::gib(3));
    for _ in 0..10 {
        assert!(approves(&mut bench, 2 * GIB));
        bench.run_for(Span::from_secs(5));
    }
    assert_eq!(bench.zone_reads, 1);
    bench.weight.total = Some(Bytes::gib(5));
    assert!(approves(&mut bench, 3 * GIB));
    assert_eq!(bench.zone_reads, 2, "memory was plugged");
    bench.run_for(Span::from_secs(61));
    assert!(approves(&mut bench, 3 * GIB));
    assert_eq!(bench.zone_reads, 3, "a minute is over");
}

#[test]
fn shrink_is_judged_by_new_zones_where_free_memory_has_become_short() {
    let mut bench = guest(Bytes::gib(3));
    assert!(approves(&mut bench, 2 * GIB));
    set_free(&mut bench, Bytes::gib(1));
    assert!(!approves(&mut bench, 2 * GIB));
    assert_eq!(bench.zone_reads, 2);
    let refusals = bench.core.snapshot(bench.now).counters.refusals;
    assert_eq!(refusals.get("not_movable"), 1);
    // The reserve may be used up by a moment's need: the zones themselves have the last word.
    set_free(&mut bench, Bytes::gib(2));
    assert!(approves(&mut bench, 2 * GIB));
    assert_eq!(bench.zone_reads, 3);
}

#[test]
fn shrink_that_use_forbids_reads_no_zones() {
    let mut bench = guest(Bytes::gib(3));
    bench.usage = Ok(Bytes::gib(2));
    bench.run_for(Span::from_secs(1));
    assert!(!approves(&mut bench, GIB));
    assert_eq!(bench.zone_reads, 0);
}

#[test]
fn shrink_of_a_guest_that_shows_no_free_memory_reads_its_zones_each_time() {
    let mut bench = guest(Bytes::gib(3));
    bench.weight.idle = None;
    for reads in 1..4 {
        assert!(approves(&mut bench, 2 * GIB));
        assert_eq!(bench.zone_reads, reads);
    }
    bench.zones = None;
    assert!(approves(&mut bench, 2 * GIB), "it is not judged by zones");
}

/// The zones that are read for an agent that has left decide nothing for its successor.
#[test]
fn zones_of_an_earlier_agents_request_are_no_answer_to_the_next() {
    let mut bench = guest(Bytes::gib(3));
    let target = Allocation {
        cpu: 0.25,
        mem: GIB,
    };
    let request = |connection| {
        let body = AgentBody::DownscaleRequest { target };
        let what = Received::Text(AgentFrame { body, id: 2 }.encode());
        Event::Received { connection, what }
    };
    let now = bench.now;
    bench.core.handle(now, request(AGENT));
    bench.core.handle(now, Event::Weighed(bench.weight));
    let newer = ConnectionId(2);
    bench.connect(newer);
    bench.run_for(Span::from_millis(500));
    bench.done.clear();
    bench.core.handle(bench.now, request(newer));
    bench.core.handle(bench.now, Event::ZonesRead(None));
    assert_eq!(bench.sent(), []);
    bench.act();
    assert_eq!(bench.sent().len(), 1);
}
