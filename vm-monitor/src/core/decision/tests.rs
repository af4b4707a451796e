//! The order of the checks, and the figures in the answers.

use super::*;
use crate::core::squeeze::GaveUp;
use crate::core::zones::Zone;

const NOW: Timestamp = Timestamp(60_000_000);

fn window(samples: &[u64]) -> Window {
    let mut window = Window::default();
    let rules = Rules::default();
    for (n, mib) in samples.iter().rev().enumerate().rev() {
        let back = rules.sample_interval.0 * u64::try_from(n).expect("small");
        window.push(NOW - Span(back), Ok(Bytes::mib(*mib)), &rules);
    }
    window
}

fn ask(window: &Window, mem: u64, now: Timestamp) -> ShrinkDecision {
    let rules = Rules::default();
    let basis = Basis {
        rules: &rules,
        watched: Watched::Cgroup,
        window,
        threshold: None,
        peak: None,
        weight: Weight::default(),
    };
    judge(basis, mem, now)
}

#[test]
fn group_squeezed_above_its_goal_takes_what_it_has_and_the_kernels_reserve() {
    let smallest = |reached: Option<u64>| {
        let squeezed = Squeezed {
            why: GaveUp::Stuck,
            goal: Bytes::mib(500),
            reached: reached.map(Bytes::mib),
            waited: Span(0),
        };
        Refusal::Squeezed(squeezed).smallest(&Rules::default())
    };
    assert_eq!(smallest(Some(501)), Some(601 << 20));
    for reached in [None, Some(499), Some(500)] {
        assert_eq!(smallest(reached), None, "{reached:?}");
    }
}

#[test]
fn n27_shrink_to_1_gib_at_685_mib_is_approved_at_686_refused() {
    let verdict = ask(&window(&[685; 5]), 1 << 30, NOW);
    assert!(
        matches!(verdict, ShrinkDecision::Approve(Approval::Fits { .. })),
        "{verdict:?}"
    );
    let verdict = ask(&window(&[686; 5]), 1 << 30, NOW);
    let ShrinkDecision::Refuse(refusal @ Refusal::TooLow { .. }) = verdict else {
        panic!("{verdict:?}");
    };
    let text = refusal.to_string();
    assert!(
        text.contains("785.4 MiB (new threshold) < 686 MiB (in use) + 100 MiB"),
        "{text}"
    );
}

#[test]
fn n27_the_smallest_size_of_a_refusal_is_the_smallest_that_is_accepted() {
    for mib in [1, 100, 685, 686, 3000, 70_001] {
        let used = window(&[mib; 5]);
        let smallest = Rules::default().smallest_for(Bytes::mib(mib));
        assert!(
            matches!(ask(&used, smallest, NOW), ShrinkDecision::Approve(_)),
            "{mib}"
        );
        let ShrinkDecision::Refuse(refusal) = ask(&used, smallest - 1, NOW) else {
            panic!("{mib}: a byte less is accepted");
        };
        assert_eq!(refusal.smallest(&Rules::default()), Some(smallest));
        assert_eq!(refusal.reason(), RefusalReason::InUse);
    }
}

#[test]
fn n27_the_checks_come_in_their_order() {
    // Everything is wrong at once; each correction uncovers the next reason.
    let long_after = NOW + Span::from_secs(6);
    let mut blind = window(&[9000]);
    blind.push(
        NOW,
        Err(ReadFailure::new("memory.stat", "no such file")),
        &Rules::default(),
    );
    assert!(matches!(
        ask(&blind, 1 << 30, long_after),
        ShrinkDecision::Refuse(Refusal::Unreadable(_))
    ));
    assert!(matches!(
        ask(&window(&[9000]), 1 << 30, long_after),
        ShrinkDecision::Fail(Failure::Stale { age }) if age == Span::from_secs(6)
    ));
    for samples in [&[][..], &[9000]] {
        assert!(matches!(
            ask(&window(samples), 1 << 30, NOW),
            ShrinkDecision::Refuse(Refusal::TooFewSamples { need: 2, .. })
        ));
    }
    assert!(matches!(
        ask(&window(&[9000, 9000]), 1 << 30, NOW),
        ShrinkDecision::Refuse(Refusal::TooLow { .. })
    ));
    assert!(matches!(
        ask(&window(&[1, 1]), 1 << 30, NOW),
        ShrinkDecision::Approve(_)
    ));
}

#[test]
fn n27_peak_swap_and_stalls_weigh_in_and_have_numbers() {
    let rules = Rules::default();
    let ask = |used, peak, swap, some_permille, mem| {
        let calm = window(&[used; 5]);
        let basis = Basis {
            rules: &rules,
            watched: Watched::Cgroup,
            window: &calm,
            threshold: None,
            peak: Some(Bytes::mib(peak)),
            weight: Weight {
                swap: Some(Bytes::mib(swap)),
                some_permille: Some(some_permille),
                ..Weight::default()
            },
        };
        judge(basis, mem, NOW)
    };
    // To 1 GiB, whose threshold is 785.4 MiB.
    let gib = 1 << 30;
    assert!(matches!(
        ask(685, 785, 385, 99, gib),
        ShrinkDecision::Approve(_)
    ));
    for (used, peak, swap, some, reason, text) in [
        (
            400,
            786,
            0,
            0,
            RefusalReason::RecentPeak,
            "785.4 MiB (new threshold) < 786 MiB",
        ),
        (
            786,
            0,
            386,
            0,
            RefusalReason::Swap,
            "400 MiB (in memory) + 386 MiB (in swap) + 100 MiB (buffer",
        ),
        (
            900,
            0,
            200,
            0,
            RefusalReason::InUse,
            "900 MiB (in use) + 100 MiB (buffer",
        ),
        (400, 400, 0, 100, RefusalReason::Pressure, "10.0 %"),
    ] {
        let ShrinkDecision::Refuse(refusal) = ask(used, peak, swap, some, gib) else {
            panic!("{reason:?}");
        };
        assert_eq!(refusal.reason(), reason);
        assert!(refusal.to_string().contains(text), "{refusal}");
        if let Some(smallest) = refusal.smallest(&rules) {
            assert!(matches!(
                ask(used, peak, swap, some, smallest),
                ShrinkDecision::Approve(_)
            ));
            assert!(matches!(
                ask(used, peak, swap, some, smallest - 2),
                ShrinkDecision::Refuse(_)
            ));
        }
    }
}

#[test]
fn n27_what_the_kernel_cannot_give_back_is_refused_with_numbers() {
    let zone = |managed, free, cache| Zone {
        managed: Bytes::mib(managed),
        free: Bytes::mib(free),
        cache: Bytes::mib(cache),
    };
    let (rules, calm) = (Rules::default(), window(&[100; 5]));
    let ask = |movable: Zone, others: Zone, to_mib: u64| {
        let weight = Weight {
            total: Some(Bytes::mib(4000)),
            zones: Some(Zones {
                movable,
                others,
                reserve: Bytes(0),
            }),
            ..Weight::default()
        };
        let basis = Basis {
            rules: &rules,
            watched: Watched::Cgroup,
            window: &calm,
            threshold: None,
            peak: None,
            weight,
        };
        judge(basis, to_mib << 20, NOW)
    };
    let (none, full) = (zone(0, 0, 0), zone(1000, 0, 0));
    for (movable, others, to, is_fine) in [
        // 3000 MiB plugged, all of it free: down to what was there at boot and no further.
        (zone(3000, 3000, 0), full, 1000, true),
        (zone(3000, 3000, 0), full, 999, false),
        // Page cache goes, and what is in use finds room elsewhere.
        (zone(3000, 1000, 1500), zone(1000, 400, 100), 1000, true),
        (zone(3000, 1000, 1500), zone(1000, 399, 100), 1000, false),
        (zone(3000, 1000, 1500), zone(1000, 399, 100), 1001, true),
        // No movable zone, no opinion.
        (none, full, 500, true),
        // Growth is never held.
        (zone(3000, 0, 0), full, 4000, true),
    ] {
        let verdict = ask(movable, others, to);
        let ShrinkDecision::Refuse(refusal) = verdict else {
            assert!(is_fine, "{verdict:?}");
            continue;
        };
        assert!(!is_fine, "{refusal}");
        assert_eq!(refusal.reason(), RefusalReason::NotMovable);
        let smallest = refusal.smallest(&rules).expect("known") >> 20;
        assert!(matches!(
            ask(movable, others, smallest),
            ShrinkDecision::Approve(_)
        ));
        assert!(matches!(
            ask(movable, others, smallest - 1),
            ShrinkDecision::Refuse(_)
        ));
    }
    let ShrinkDecision::Refuse(refusal) = ask(zone(3000, 500, 250), zone(1000, 30, 20), 2000)
    else {
        panic!("approved");
    };
    assert_eq!(
        refusal.to_string(),
        "no more than 800 MiB can be given back now, 2000 MiB are asked for: of 3000 MiB movable 500 MiB are free and \
         250 MiB page cache, elsewhere 30 MiB and 20 MiB"
    );
    assert_eq!(refusal.smallest(&rules), Some(3200 << 20));
}

#[test]
fn five_seconds_old_is_still_good() {
    let fine = ask(&window(&[1, 1]), 1 << 30, NOW + Span::from_secs(5));
    assert!(matches!(fine, ShrinkDecision::Approve(_)), "{fine:?}");
}

#[test]
fn n27_nothing_watched_is_approved_and_says_so() {
    let rules = Rules::default();
    let empty = Window::default();
    let basis = Basis {
        rules: &rules,
        watched: Watched::Nothing,
        window: &empty,
        threshold: None,
        peak: None,
        weight: Weight::default(),
    };
    let ShrinkDecision::Approve(approval) = judge(basis, 1 << 30, NOW) else {
        panic!("refused");
    };
    assert_eq!(approval.to_string(), "no memory is watched");
}
