//! A checker that cannot fail proves nothing. Each is seen to fire here, in a world where one part
//! cheats.

use sim::{Level, Options, PolicyKind, Sabotage};

/// Steps within which a check must catch a cheat. Some checks run only at the end of a quiescent
/// phase, and a run of this length reaches one.
const STEPS: u64 = 16_000;

/// Number of seeds to try until one catches the cheat. Some checks run only at the end of a
/// quiescent phase, and the cheat must be in progress there.
const WORLDS: u64 = 8;

/// Runs worlds with the cheat until one is caught, and says by what.
fn caught_by(sabotage: Sabotage) -> Option<(&'static str, String)> {
    (1..=WORLDS).find_map(|seed| {
        let mut options = Options::short(seed, Level::None, STEPS);
        options.sabotage = Some(sabotage);
        let is_policys = matches!(
            sabotage,
            Sabotage::NoDeclineRate
                | Sabotage::NoPolicyLimit
                | Sabotage::EarlyFallback
                | Sabotage::StaleAdvice
        );
        if is_policys {
            options.policy = PolicyKind::Hostile;
        }
        if sabotage == Sabotage::DeafBatch {
            options.policy = PolicyKind::Batch;
        }
        options.replicas = if sabotage == Sabotage::NoLease { 2 } else { 1 };
        options.requests = matches!(
            sabotage,
            Sabotage::RequestLess | Sabotage::HurryAhead | Sabotage::KeepAhead
        );
        let outcome = sim::run(options, |_| {});
        let headline = outcome.headline().unwrap_or_default();
        outcome
            .violation
            .map(|violation| (violation.invariant, headline))
    })
}

#[track_caller]
fn catches(sabotage: Sabotage, invariant: &str) {
    let (found, headline) = caught_by(sabotage).expect("nobody saw the cheat");
    assert_eq!(found, invariant, "{headline}");
    assert!(
        headline.starts_with("seed "),
        "the seed comes first: {headline}"
    );
}

#[test]
fn n08_a_scheduler_that_grants_double_is_caught() {
    catches(Sabotage::DoubleGrant, "never_overcommit");
}

#[test]
fn n08_a_guest_that_takes_memory_by_itself_is_caught() {
    catches(Sabotage::GrowUnseen, "never_overcommit");
}

#[test]
fn n06_a_scheduler_that_forgets_a_pod_is_caught() {
    catches(Sabotage::ForgetPod, "n06_held_covers_actual");
}

#[test]
fn a_scheduler_that_holds_too_much_is_caught() {
    catches(Sabotage::LeakHold, "scheduler_holds_what_is_used");
}

#[test]
fn an_answer_before_the_write_is_caught() {
    catches(
        Sabotage::AnswerBeforeWrite,
        "permits_are_durable_before_said",
    );
}

#[test]
fn n09_n13_a_first_contact_answered_with_less_is_caught() {
    catches(
        Sabotage::CutFirstContact,
        "n13_permits_stay_between_old_and_asked",
    );
}

#[test]
fn a_permit_garbled_on_its_way_is_caught() {
    catches(Sabotage::GarblePermit, "agent_core_counts_no_fault");
}

#[test]
fn n05_a_decrease_told_before_it_happened_is_caught() {
    catches(
        Sabotage::ReportTooLittle,
        "n05_requests_never_report_less_than_is_used",
    );
}

#[test]
fn n14_a_patch_above_the_permit_is_caught() {
    catches(Sabotage::PatchAbovePermit, "n14_patch_within_permit");
}

/// Seeds whose API server carries out a patch after a later one.
#[test]
fn a_late_patch_that_tests_nothing_is_caught() {
    let found = [951, 1893, 2508, 7499].map(|seed| {
        let mut options = Options::short(seed, Level::Heavy, 9_000);
        options.sabotage = Some(Sabotage::PatchUntested);
        let violation = sim::run(options, |_| {}).violation;
        violation.map(|violation| violation.invariant)
    });
    assert!(
        found.contains(&Some("late_patches_are_refused")),
        "{found:?}"
    );
}

#[test]
fn n11_a_patch_below_the_approval_is_caught() {
    catches(Sabotage::PatchBelowApproval, "n11_patch_within_approval");
}

#[test]
fn n03_half_a_unit_is_caught() {
    catches(Sabotage::HalfUnits, "n03_desired_is_whole_units_in_bounds");
}

#[test]
fn a_blind_shrink_is_caught() {
    catches(Sabotage::ShrinkBlind, "shrinks_are_never_blind");
}

#[test]
fn a_monitor_told_too_much_is_caught() {
    catches(Sabotage::TellTooMuch, "order_monitor_within_use");
}

#[test]
fn n12_a_heartbeat_that_stops_is_caught() {
    catches(Sabotage::NoHeartbeat, "n12_heartbeats_are_never_missed");
}

#[test]
fn a_part_that_spins_is_caught() {
    catches(Sabotage::Spin, "n05_level_triggered_without_spinning");
}

#[test]
fn patches_that_never_arrive_are_caught() {
    catches(Sabotage::DeafApi, "converges_within_bound");
}

#[test]
fn n45_two_schedulers_that_act_at_once_are_caught() {
    catches(Sabotage::NoLease, "n45_one_leads");
}

#[test]
fn a_running_guest_whose_pod_is_deleted_is_caught() {
    catches(
        Sabotage::DeleteRunning,
        "guests_never_restart_because_of_us",
    );
}

#[test]
fn a_second_pod_is_caught() {
    catches(Sabotage::TwinPods, "guests_outlive_us_never_two_pods");
}

#[test]
fn n41_a_pod_that_requests_less_than_its_guest_has_is_caught() {
    catches(
        Sabotage::RequestLess,
        "n41_a_guest_has_no_more_than_its_pod_requests",
    );
}

#[test]
fn n20_a_quota_that_rises_before_its_order_is_caught() {
    catches(Sabotage::HurryAhead, "cpus_plugged_ahead_take_no_time");
}

#[test]
fn cpus_that_stay_plugged_ahead_are_caught() {
    catches(Sabotage::KeepAhead, "nothing_stays_plugged_ahead");
}

/// Requirement: V13
#[test]
fn v13_policy_that_shrinks_faster_than_its_rate_is_caught() {
    catches(
        Sabotage::NoDeclineRate,
        "v13_policies_shrink_within_their_rate",
    );
}

/// Requirement: V33
#[test]
fn v33_policy_above_its_largest_size_is_caught() {
    catches(Sabotage::NoPolicyLimit, "v33_advice_is_cut_at_its_limit");
}

/// Requirement: V33
#[test]
fn v33_shrink_by_a_fault_of_the_policy_is_caught() {
    catches(
        Sabotage::EarlyFallback,
        "v33_nothing_shrinks_without_fresh_advice",
    );
}

/// Requirement: V08
#[test]
fn v08_shrink_by_stale_advice_is_caught() {
    catches(
        Sabotage::StaleAdvice,
        "v33_nothing_shrinks_without_fresh_advice",
    );
}

/// A cheat belongs to a part. A check that knows of it proves nothing.
#[test]
fn no_check_knows_of_a_cheat() {
    let checks = concat!(env!("CARGO_MANIFEST_DIR"), "/src/check");
    for file in std::fs::read_dir(checks).expect("the checks are there") {
        let path = file.expect("a file").path();
        let text = std::fs::read_to_string(&path).expect("it is text");
        assert!(!text.contains("Sabotage"), "{}", path.display());
    }
}

#[test]
fn v14_batch_vm_that_gives_nothing_back_is_caught() {
    catches(Sabotage::DeafBatch, "converges_within_bound");
}
