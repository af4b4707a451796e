use proptest::prelude::*;

use super::*;

fn window(days: &[Day], start: &str, minutes: u32, zone: &str) -> Window {
    Window {
        days: days.to_vec(),
        start: start.to_owned(),
        minutes,
        time_zone: zone.to_owned(),
    }
}

fn calendar(windows: &[Window]) -> Calendar<'_> {
    Calendar {
        windows,
        blackouts: &[],
        narrowed: &[],
    }
}

fn at(text: &str) -> WallTime {
    WallTime::parse(text).expect(text)
}

fn texts(openings: &[Opening]) -> Vec<(String, String)> {
    let text = |time: WallTime| time.to_micro_string()[..16].to_owned();
    let pairs = openings.iter().map(|one| (text(one.start), text(one.end)));
    pairs.collect()
}

fn pair(start: &str, end: &str) -> (String, String) {
    (start.to_owned(), end.to_owned())
}

/// Requirement: R17
#[test]
fn window_opens_at_its_local_time() {
    let windows = [window(&[Day::Sat, Day::Sun], "02:00", 120, "Europe/Berlin")];
    let found = calendar(&windows).openings(at("2026-01-05T00:00:00Z"), 7);
    let expected = [
        pair("2026-01-10T01:00", "2026-01-10T03:00"),
        pair("2026-01-11T01:00", "2026-01-11T03:00"),
    ];
    assert_eq!(texts(&found), expected);
}

/// In Berlin 02:00 to 03:00 is skipped on 2026-03-29.
///
/// Requirement: R17
#[test]
fn window_in_a_skipped_hour_opens_at_the_next_valid_instant() {
    for start in ["02:00", "02:30", "02:59"] {
        let windows = [window(&[Day::Sun], start, 60, "Europe/Berlin")];
        let found = calendar(&windows).openings(at("2026-03-28T12:00:00Z"), 1);
        let expected = [pair("2026-03-29T01:00", "2026-03-29T02:00")];
        assert_eq!(texts(&found), expected, "{start}");
    }
}

/// In Berlin 02:00 to 03:00 comes twice on 2026-10-25.
///
/// Requirement: R17
#[test]
fn window_in_a_doubled_hour_opens_once() {
    let windows = [window(&[Day::Sun], "02:30", 15, "Europe/Berlin")];
    let found = calendar(&windows).openings(at("2026-10-24T12:00:00Z"), 2);
    assert_eq!(
        texts(&found),
        [pair("2026-10-25T00:30", "2026-10-25T00:45")]
    );
}

/// Requirement: R17
#[test]
fn no_trial_begins_in_the_last_part_of_a_window() {
    let windows = [window(&[Day::Mon], "23:30", 60, "UTC")];
    let one = calendar(&windows);
    // 2026-01-05 is a Monday. The window ends at 00:30 on Tuesday.
    let rows = [
        ("2026-01-05T23:29:59Z", false),
        ("2026-01-05T23:30:00Z", true),
        ("2026-01-06T00:28:00Z", true),
        ("2026-01-06T00:28:01Z", false),
        ("2026-01-06T00:30:00Z", false),
    ];
    for (time, expected) in rows {
        assert_eq!(one.may_try(at(time), 60), expected, "{time}");
    }
}

#[test]
fn windows_that_touch_are_one() {
    let windows = [
        window(&[Day::Mon], "02:00", 60, "UTC"),
        window(&[Day::Mon], "03:00", 60, "UTC"),
    ];
    assert!(calendar(&windows).may_try(at("2026-01-05T02:59:00Z"), 60));
}

/// Requirement: R17
#[test]
fn blackouts_and_windows_of_a_guest_narrow() {
    let windows = [window(&[Day::Mon], "02:00", 180, "UTC")];
    let narrowed = [window(&[Day::Mon], "04:00", 120, "UTC")];
    let blackouts = [Blackout {
        from: at("2026-01-05T04:10:00Z"),
        to: at("2026-01-05T04:20:00Z"),
        reason: String::new(),
    }];
    let both = Calendar {
        windows: &windows,
        blackouts: &blackouts,
        narrowed: &narrowed,
    };
    let expected = [
        pair("2026-01-05T04:00", "2026-01-05T04:10"),
        pair("2026-01-05T04:20", "2026-01-05T05:00"),
    ];
    assert_eq!(
        texts(&both.openings(at("2026-01-05T00:00:00Z"), 1)),
        expected
    );
}

/// In Berlin 02:30 is skipped on 2026-03-29 and comes twice on 2026-10-25.
///
/// Requirement: B24
#[test]
fn tick_comes_once_at_each_change_of_the_clock() {
    let cron = Cron {
        days: vec![Day::Sun],
        start: "02:30".to_owned(),
        time_zone: "Europe/Berlin".to_owned(),
        verb: protocol::fleet::CronVerb::Verify,
    };
    let rows = [
        (
            "2026-03-28T12:00:00Z",
            "2026-03-30T12:00:00Z",
            "2026-03-29T01:00:00Z",
        ),
        (
            "2026-10-24T12:00:00Z",
            "2026-10-26T12:00:00Z",
            "2026-10-25T00:30:00Z",
        ),
    ];
    for (after, until, due) in rows {
        assert_eq!(ticks(&cron, at(after), at(until)), [at(due)], "{after}");
        assert_eq!(next_tick(&cron, at(after)), Some(at(due)));
        // The bounds: a time that has been run is not due again.
        assert_eq!(ticks(&cron, at(due), at(until)), []);
        assert_eq!(ticks(&cron, at(after), at(due)), [at(due)]);
    }
    let year = ticks(
        &cron,
        at("2000-01-01T00:00:00Z"),
        at("2026-01-01T00:00:00Z"),
    );
    assert_eq!(year.len(), 52, "what is older than a year is not counted");
}

#[test]
fn calendar_without_an_opening_is_refused() {
    let blackout = |from: &str, to: &str| Blackout {
        from: at(from),
        to: at(to),
        reason: String::new(),
    };
    let blackouts = [
        blackout("2026-01-01T00:00:00Z", "2026-01-28T00:00:00Z"),
        blackout("2026-01-28T00:00:00Z", "2026-02-20T00:00:00Z"),
    ];
    let one = Calendar {
        windows: &[],
        blackouts: &blackouts,
        narrowed: &[],
    };
    let problem = one.check(at("2026-01-02T00:00:00Z")).expect_err("closed");
    assert!(problem.contains("35 days"), "{problem}");
    assert_eq!(one.check(at("2026-01-20T00:00:00Z")), Ok(()));
    assert!(!one.may_try(at("2026-01-02T00:00:00Z"), 60));
}

proptest! {
    /// Requirement: R17
    #[test]
    fn weekly_window_opens_once_a_week(
        week in 0_i64..2600,
        hour in 0_u8..24,
        minute in 0_u8..60,
        zone in prop::sample::select(vec!["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "America/Havana", "UTC"]),
    ) {
        let start = format!("{hour:02}:{minute:02}");
        let windows = [window(&[Day::Wed], &start, 30, zone)];
        // Monday noon to Monday noon, so that no opening is cut.
        let from = WallTime((week * 7 + 4) * DAY + DAY / 2);
        let found = calendar(&windows).openings(from, 7);
        prop_assert_eq!(found.len(), 1);
        let cron = Cron {
            days: vec![Day::Wed],
            start,
            time_zone: zone.to_owned(),
            verb: protocol::fleet::CronVerb::Verify,
        };
        let due = ticks(&cron, from, WallTime(from.0 + 7 * DAY));
        prop_assert_eq!(due, [found[0].start]);
        prop_assert_eq!(found[0].end.0 - found[0].start.0, 30 * 60_000_000);
    }
}
