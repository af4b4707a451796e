//! The whole core over made-up time.

mod alone;
mod climbing;
mod conversation;
mod fixture;
mod hostile;
mod schedule;
mod shrinking;
mod spiking;
mod squeezing;
mod v2;
mod weighing;

use protocol::monitor::{
    AgentBody, AgentFrame, Allocation, MAX_ID, MONITOR_FRAME_LIMIT_BYTES, MonitorBody,
    MonitorFrame, Version,
};
use protocol::monitor_v2::GuestMetrics;
use protocol::time::Span;

use super::cache::{CacheChange, CacheFailure, CacheMode};
use super::decision::Weight;
use super::file_cache::Sizing;
use super::files::ReadFailure;
use super::hooks::{HookEvent, HookSizes, HookVeto};
use super::memory::Rules;
use super::zones::Zones;
use super::*;
use fixture::{AGENT, Choices, Fixture, GIB, change, unreachable};

#[test]
fn n27_downscale_by_what_is_in_use() {
    let mut fixture = Fixture::served(CacheMode::Off);
    fixture.usage = Ok(Bytes::mib(685));
    fixture.run_for(Span::from_millis(500));
    fixture.ask_downscale(GIB, 2);
    fixture.usage = Ok(Bytes::mib(686));
    fixture.run_for(Span::from_millis(500));
    fixture.ask_downscale(GIB, 4);
    let sent = fixture.sent();
    let [first, second] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert!(
        matches!(&first.body, MonitorBody::DownscaleResult { ok: true, .. }),
        "{first:?}"
    );
    let MonitorBody::DownscaleResult { ok: false, status } = &second.body else {
        panic!("{second:?}");
    };
    assert!(status.contains("too low"), "{status}");
    assert_eq!((first.id, second.id), (2, 4));
}

#[test]
fn n27_the_file_cache_shrinks_before_the_answer() {
    let mut fixture = Fixture::served(CacheMode::Auto);
    let before = fixture.core.snapshot(fixture.now).threshold;
    fixture.ask_downscale(GIB, 2);
    let wanted = match &fixture.done[..] {
        [Action::SetFileCache { size, .. }] => *size,
        other => panic!("{other:?}"),
    };
    // (1024 - 100 - 256) / 1.1 = 607.3
    assert_eq!(wanted, Bytes::mib(607));
    assert_eq!(
        fixture.core.snapshot(fixture.now).threshold,
        before,
        "not before the cache is small"
    );
    fixture.finish_cache(Ok(CacheChange {
        was: Some(Bytes::mib(3072)),
        now: wanted,
    }));
    let MonitorBody::DownscaleResult { ok: true, status } = &fixture.sent()[0].body else {
        panic!("{:?}", fixture.sent());
    };
    assert_eq!(
        status,
        "file cache limit set from 3072 MiB to 607 MiB; \
         cgroup memory threshold set from 3481.6 MiB to 785.4 MiB, for a new total of 924 MiB"
    );
    assert_eq!(
        fixture.core.snapshot(fixture.now).threshold,
        Some(Bytes(823_551_590))
    );
}

#[test]
fn n28_upscale_grows_the_cache_then_the_threshold_then_confirms() {
    let mut fixture = Fixture::served(CacheMode::Auto);
    fixture.tell_upscale(8 * GIB, 2);
    assert_eq!(fixture.sent(), []);
    fixture.finish_cache(Ok(change(6069)));
    let confirmation = MonitorFrame {
        body: MonitorBody::UpscaleConfirmation,
        id: 2,
    };
    assert_eq!(fixture.sent(), [confirmation]);
    let rules = Rules::default();
    let dump = fixture.core.snapshot(fixture.now);
    assert_eq!(dump.threshold, Some(rules.threshold(rules.usable(8 * GIB))));
}

#[test]
fn a_cache_that_cannot_be_set_is_an_internal_error_but_growth_counts() {
    let mut fixture = Fixture::served(CacheMode::Auto);
    let before = fixture.core.snapshot(fixture.now).threshold;
    fixture.ask_downscale(GIB, 2);
    fixture.finish_cache(Err(unreachable()));
    assert_eq!(
        fixture.core.snapshot(fixture.now).threshold,
        before,
        "a failed shrink changes nothing"
    );
    fixture.tell_upscale(8 * GIB, 4);
    fixture.finish_cache(Err(unreachable()));
    let sent = fixture.sent();
    for (frame, id) in sent.iter().zip([2, 4]) {
        assert!(
            matches!(frame.body, MonitorBody::InternalError { .. }),
            "{frame:?}"
        );
        assert_eq!(frame.id, id);
    }
    assert_eq!(sent.len(), 2);
    assert!(
        fixture.core.snapshot(fixture.now).threshold > before,
        "the memory is there"
    );
}

#[test]
fn auto_without_the_setting_goes_on_and_still_tries_each_time() {
    let mut fixture = Fixture::new(CacheMode::Auto, Watched::Cgroup);
    let absent = || CacheFailure::NoSuchSetting {
        setting: "neon.file_cache_size_limit".into(),
    };
    fixture.connect(AGENT);
    fixture.finish_cache(Err(absent()));
    fixture.run_for(Span::from_millis(500));
    fixture.ask_downscale(GIB, 2);
    fixture.finish_cache(Err(absent()));
    let sent = fixture.sent();
    assert!(
        matches!(
            &sent[..],
            [MonitorFrame {
                body: MonitorBody::DownscaleResult { ok: true, .. },
                id: 2
            }]
        ),
        "{sent:?}"
    );
}

#[test]
fn nothing_managed_approves_and_says_so() {
    let mut fixture = Fixture::new(CacheMode::Off, Watched::Nothing);
    fixture.connect(AGENT);
    fixture.ask_downscale(GIB, 2);
    let MonitorBody::DownscaleResult { ok: true, status } = &fixture.sent()[0].body else {
        panic!("{:?}", fixture.sent());
    };
    assert_eq!(
        status,
        "approved: neither memory nor a file cache is managed"
    );
    assert_eq!(fixture.core.poll_deadline(), None, "and nothing is read");
}

#[test]
fn n27_unreadable_memory_refuses_with_the_reason_and_asks_for_nothing() {
    let mut fixture = Fixture::served(CacheMode::Off);
    fixture.usage = Ok(Bytes::gib(4));
    fixture.run_for(Span::from_millis(100));
    fixture.usage = Err(ReadFailure::new(
        "/sys/fs/cgroup/db/memory.stat",
        "no such file",
    ));
    fixture.run_for(Span::from_secs(10));
    fixture.ask_downscale(GIB, 2);
    let sent = fixture.sent();
    let [
        MonitorFrame {
            body: MonitorBody::DownscaleResult { ok: false, status },
            ..
        },
    ] = &sent[..]
    else {
        panic!("{sent:?}");
    };
    assert!(
        status.contains("/sys/fs/cgroup/db/memory.stat: no such file"),
        "{status}"
    );
    // Once it can be read again, all is well.
    fixture.usage = Ok(Bytes::mib(100));
    fixture.run_for(Span::from_millis(600));
    fixture.ask_downscale(GIB, 4);
    let sent = fixture.sent();
    assert!(
        matches!(&sent[1].body, MonitorBody::DownscaleResult { ok: true, .. }),
        "{sent:?}"
    );
}

#[test]
fn a_monitor_that_was_suspended_says_so() {
    let mut fixture = Fixture::served(CacheMode::Off);
    fixture.now = fixture.now + Span::from_secs(9);
    let target = Allocation { cpu: 1.0, mem: GIB };
    let what = Received::Text(
        AgentFrame {
            body: AgentBody::DownscaleRequest { target },
            id: 2,
        }
        .encode(),
    );
    // The request is handled before the overdue reading.
    fixture.tell(Event::Received {
        connection: AGENT,
        what,
    });
    let sent = fixture.sent();
    assert!(
        matches!(&sent[0].body, MonitorBody::InternalError { error } if error.contains("9")),
        "{sent:?}"
    );
}

#[test]
fn n29_asks_when_the_mean_reaches_the_threshold() {
    let mut fixture = Fixture::served(CacheMode::Off);
    fixture.usage = Ok(Bytes(Bytes::gib(4).0 / 100 * 90));
    let began = fixture.now;
    while fixture.upscale_requests().is_empty() {
        fixture.run_for(Span::from_millis(100));
        assert!(
            fixture.now.since(began) <= Span::from_millis(500),
            "five readings are enough"
        );
    }
    assert_eq!(fixture.upscale_requests(), [3]);
    assert!(
        fixture.now.since(began) >= Span::from_millis(400),
        "one spike is not"
    );
}

#[test]
fn n29_asks_at_most_once_a_second() {
    let mut fixture = Fixture::served(CacheMode::Off);
    fixture.usage = Ok(Bytes::gib(4));
    fixture.run_for(Span::from_secs(10));
    let ids = fixture.upscale_requests();
    assert_eq!(ids, [3, 5, 7, 9, 11, 13, 15, 17, 19, 21]);
    // A newer agent does not shorten the second, and its ids start anew.
    fixture.done.clear();
    fixture.connect(ConnectionId(2));
    fixture.run_for(Span::from_millis(300));
    assert!(fixture.upscale_requests().is_empty());
    fixture.run_for(Span::from_secs(1));
    assert_eq!(fixture.upscale_requests(), [3]);
}

#[test]
fn n34_growth_ends_the_asking() {
    let mut fixture = Fixture::served(CacheMode::Off);
    fixture.usage = Ok(Bytes::gib(4));
    fixture.run_for(Span::from_secs(1));
    assert_eq!(fixture.upscale_requests(), [3]);
    fixture.tell_upscale(8 * GIB, 2);
    fixture.run_for(Span::from_secs(5));
    assert_eq!(fixture.upscale_requests(), [3]);
}
