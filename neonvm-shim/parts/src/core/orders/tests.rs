use super::*;

fn bring(token: &str, epoch: u64) -> Bring {
    Bring {
        sha256: format!("{epoch:064}"),
        version: "0.1.1".into(),
        token: token.into(),
        epoch,
    }
}

fn order(token: &str, epoch: u64) -> Order {
    Order {
        token: token.into(),
        epoch,
        seconds: 60,
    }
}

/// Record after a program was brought under `token`.
fn with_staged(token: &str, epoch: u64) -> Record {
    match brought(&Record::default(), Slot::A, &bring(token, epoch)) {
        Plan::Carry(_, after) => *after,
        Plan::Repeat(state) => panic!("{state:?}"),
    }
}

fn on_trial(token: &str) -> Sight {
    Sight {
        current: Some(Slot::A),
        trial: Some(Trial {
            token: token.into(),
            end_s: 100,
            back: None,
        }),
        ..Sight::default()
    }
}

fn steps(plan: Result<Plan, Refusal>) -> Vec<Step> {
    match plan {
        Ok(Plan::Carry(steps, _)) => steps,
        other => panic!("{other:?}"),
    }
}

fn status<T: std::fmt::Debug>(refused: Result<T, Refusal>) -> u16 {
    refused.expect_err("a refusal").status()
}

fn attempted(record: &Record, sight: &Sight, order: &Order) -> Result<Plan, Refusal> {
    attempt(record, sight, order, PartSource::Image, 40)
}

/// Requirement: R09
#[test]
fn program_runs_only_after_its_trial_and_its_watcher() {
    let record = with_staged("t", 1);
    let steps = steps(attempted(&record, &Sight::default(), &order("t", 1)));
    let at = |wanted: fn(&Step) -> bool| steps.iter().position(wanted).expect("planned");
    let trial = at(|step| matches!(step, Step::Trial(trial) if trial.end_s == 100));
    let watch = at(|step| matches!(step, Step::Watch));
    let change = at(|step| matches!(step, Step::Change(Slot::A)));
    assert!(trial < watch && watch < change, "{steps:?}");
}

#[test]
fn lower_epoch_is_refused() {
    let record = with_staged("t", 5);
    let sight = Sight::default();
    assert_eq!(status(may_bring(&record, &sight, &bring("u", 4))), 412);
    assert_eq!(status(attempted(&record, &sight, &order("t", 4))), 412);
    assert!(may_bring(&record, &sight, &bring("u", 5)).is_ok());
}

#[test]
fn orders_during_a_trial_are_refused_except_its_own() {
    let record = with_staged("t", 1);
    let sight = on_trial("t");
    assert_eq!(status(may_bring(&record, &sight, &bring("u", 2))), 409);
    assert_eq!(status(keep(&record, &sight, &order("u", 0))), 404);
    assert_eq!(status(back(&record, &sight, &order("u", 0))), 409);
    assert_eq!(
        steps(keep(&record, &sight, &order("t", 0))),
        [Step::EndTrial]
    );
}

#[test]
fn trial_of_nothing_is_refused() {
    let sight = Sight::default();
    let refused = attempted(&Record::default(), &sight, &order("t", 1));
    assert_eq!(status(refused), 404);
    assert_eq!(
        status(keep(&with_staged("t", 1), &sight, &order("t", 0))),
        409
    );
}

/// Requirement: R09
#[test]
fn program_that_went_back_is_neither_kept_nor_tried_again() {
    let record = with_staged("t", 1);
    let note = ReturnNote {
        token: "t".into(),
        reason: "it ended".into(),
    };
    let sight = Sight {
        note: Some(note),
        ..Sight::default()
    };
    let refused = keep(&record, &sight, &order("t", 0)).expect_err("a refusal");
    assert_eq!(refused.status(), 410);
    assert!(refused.to_string().ends_with(": it ended"), "{refused}");
    assert_eq!(status(attempted(&record, &sight, &order("t", 1))), 410);
    assert!(steps(back(&record, &sight, &order("t", 0))).is_empty());
}

#[test]
fn program_after_keep_is_replaced_by_the_images_with_a_new_token_alone() {
    let mut record = with_staged("t", 1);
    record.staged = None;
    let state = crate::core::state::state(
        &record,
        &Sight::default(),
        &crate::core::state::Running {
            from: PartSource::A,
            sha256: String::new(),
            version: String::new(),
            starts: 1,
            resident_bytes: 0,
        },
        0,
    );
    record.remember("t", Verb::Keep, state);
    let kept = Sight {
        current: Some(Slot::A),
        ..Sight::default()
    };
    assert_eq!(status(back(&record, &kept, &order("t", 0))), 410);
    let planned = steps(back(&record, &kept, &order("u", 0)));
    assert_eq!(planned, [Step::Link(None), Step::Stop(Slot::A)]);
    assert!(matches!(
        keep(&record, &kept, &order("t", 0)),
        Ok(Plan::Repeat(_))
    ));
}

/// A fleet that saw the image's program here would give a needless turn.
///
/// Requirement: B05
#[test]
fn kept_program_is_named_between_two_starts_and_one_on_trial_is_not() {
    let mut record = with_staged("t", 1);
    let between = crate::core::state::Running {
        from: PartSource::Image,
        sha256: String::new(),
        version: String::new(),
        starts: 1,
        resident_bytes: 0,
    };
    let named = |record: &Record, sight: &Sight| {
        let state = crate::core::state::state(record, sight, &between, 0);
        (state.from, state.sha256, state.version)
    };
    let none = (PartSource::Image, String::new(), String::new());
    assert_eq!(named(&record, &on_trial("t")), none);
    record.staged = None;
    let kept = Sight {
        current: Some(Slot::A),
        ..Sight::default()
    };
    let its = (PartSource::A, format!("{:064}", 1), "0.1.1".to_owned());
    assert_eq!(named(&record, &kept), its);
    assert_eq!(named(&record, &Sight::default()), none, "the image's");
}

#[test]
fn trial_ends_by_itself_at_its_time() {
    let record = with_staged("t", 1);
    assert!(due(&record, &on_trial("t"), 99).is_empty());
    let steps = due(&record, &on_trial("t"), 100);
    assert_eq!(steps.first(), Some(&Step::Claim));
    assert_eq!(steps.last(), Some(&Step::Release));
}

#[test]
fn eight_tokens_are_remembered() {
    let mut record = Record::default();
    for number in 0..9 {
        let plan = brought(&record, Slot::A, &bring(&format!("t{number}"), 1));
        let Plan::Carry(_, after) = plan else {
            panic!("{plan:?}")
        };
        record = *after;
        let state = protocol::parts::PartState {
            version: String::new(),
            sha256: String::new(),
            from: PartSource::Image,
            phase: PartPhase::Staged,
            left_s: 0,
            token: String::new(),
            reason: String::new(),
            starts: 0,
            resident_bytes: 0,
        };
        record.remember(&format!("t{number}"), Verb::Bring, state);
    }
    assert!(!record.has("t0", Verb::Bring));
    assert!((1..9).all(|number| record.has(&format!("t{number}"), Verb::Bring)));
}
