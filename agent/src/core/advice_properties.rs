//! Advice equal to the built-in goal changes no decision, advice without a policy changes nothing,
//! and hostile advice breaks no order.

use proptest::prelude::*;
use protocol::core::Core as _;
use protocol::policy::Fault;
use protocol::revision::Revision;
use protocol::time::{Span, Timestamp};

use super::actions::{Action, PermitRequest, RequestId};
use super::advice::{Advice, Said, Terms};
use super::advice_tests::{DIGEST, ENDLESS, units};
use super::decision::{Bound, Bounds, Decision, Reason};
use super::event::Event;
use super::goal::Votes;
use super::journal::Output;
use super::journal_tests::{RecordedTask, feed, inputs};
use super::warnings::Warning;
use super::world::{World, step};

/// The numbers are those of the layout that docs/journal.md describes, computed by another program.
/// A vote of a policy adds to the checksum, its absence does not.
///
/// Requirement: V33
#[test]
fn v33_output_without_a_policy_has_its_old_checksum() {
    let mut output = Output {
        decision: Decision {
            current: units(4),
            target: units(5),
            goal_units: 5,
            reason: Reason::Memory,
            votes: Votes {
                cpu: Some(1.1),
                memory: Some(4.2344),
                ..Votes::default()
            },
            bounded_by: Bounds::default(),
            revision: Revision { value: 7, flags: 1 },
            has_all_metrics: true,
            working_set: None,
        },
        warnings: [Warning::PermitDenied].into_iter().collect(),
        started: vec![(
            RequestId(9),
            Action::Permit(PermitRequest {
                last_permit: None,
                target: units(5),
                metrics: None,
                revision: Revision { value: 7, flags: 1 },
            }),
        )],
        deadline: Some(Timestamp(41_232_008)),
        faults: 0,
    };
    output.decision.bounded_by.insert(Bound::Permit);
    let plain = output.fold(0);
    output.decision.votes.monitor_estimate = Some(3.0);
    output.decision.votes.memory_pressure = Some(4.0);
    let signals = output.fold(plain);
    output.decision.votes.monitor_estimate = None;
    output.decision.votes.memory_pressure = None;
    output.decision.votes.policy = Some(6.0);
    let policy = output.fold(signals);
    let sums = [plain, signals, policy].map(protocol::journal::hash_text);
    assert_eq!(sums, ["b3687dea", "7967a23f", "967feda6"]);
}

/// The same decision as without a policy: advice has its reason and its vote.
fn plain(advised: &Decision, builtin: &Decision) -> Decision {
    Decision {
        reason: match advised.reason {
            Reason::Policy => builtin.reason,
            other => other,
        },
        votes: Votes {
            policy: None,
            ..advised.votes
        },
        ..*advised
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Requirement: V33
    #[test]
    fn v33_advice_equal_to_the_built_in_goal_changes_no_decision(inputs in inputs()) {
        let mut builtin = RecordedTask::new();
        let mut advised = builtin.twin(builtin.core.clone());
        advised.core.handle(advised.now, Event::Bound(Some(ENDLESS)));
        for input in inputs {
            if matches!(input.0, 25 | 26) {
                continue;
            }
            // The goal after this input, in time for its decision.
            let mut ahead = builtin.twin(builtin.core.clone());
            feed(&mut ahead, input);
            if let Some(Output { decision, .. }) = &ahead.output {
                let said = Said::Want(decision.goal_units);
                let advice = Advice { digest: DIGEST, said };
                advised.core.handle(advised.now, Event::Advised(advice));
            }
            feed(&mut builtin, input);
            feed(&mut advised, input);
            let (Some(one), Some(other)) = (&builtin.output, &advised.output) else {
                continue;
            };
            prop_assert_eq!(plain(&other.decision, &one.decision), one.decision);
            prop_assert_eq!(other.warnings, one.warnings);
            prop_assert_eq!(&other.started, &one.started);
            prop_assert_eq!(other.faults, one.faults);
        }
        prop_assert_eq!(builtin.core.using(), advised.core.using());
    }

    /// Requirement: V33
    #[test]
    fn v33_without_a_policy_advice_changes_nothing(inputs in inputs(), units in any::<u32>()) {
        let mut task = RecordedTask::new();
        for input in inputs.into_iter().filter(|(what, ..)| *what != 26) {
            feed(&mut task, input);
            let before = task.core.checkpoint(17, task.now);
            for said in [Said::Want(units), Said::Hold, Said::Fault(Fault::Late)] {
                task.core.handle(task.now, Event::Advised(Advice { digest: 0, said }));
            }
            prop_assert_eq!(task.core.checkpoint(17, task.now), before);
        }
    }

    /// Whatever the policy says, and whatever is lost, the order and the core's own checks hold.
    ///
    /// Requirement: V33
    #[test]
    fn v33_hostile_advice_breaks_no_order(
        using in 1_u32..8,
        steps in prop::collection::vec((step(), any::<u32>(), 0_u8..12), 1..120),
    ) {
        let mut world = World::new(using);
        for (step, number, what) in steps {
            world.step(&step)?;
            let event = match what {
                0 => Event::Bound(None),
                1..3 => Event::Bound(Some(Terms {
                    fallback_after: (number % 2 == 0).then_some(Span::from_secs(5)),
                    max_units: (number % 3 == 0).then_some(number % 9),
                    shrink_units_per_minute: (number % 5 == 0).then_some(number),
                    ..ENDLESS
                })),
                _ => Event::Advised(Advice {
                    digest: DIGEST,
                    said: match what {
                        3 => Said::Want(number),
                        4..8 => Said::Want(number % 10),
                        8 => Said::Hold,
                        _ => Said::Fault(Fault::ALL[number as usize % 8]),
                    },
                }),
            };
            world.core.handle(world.now, event);
            world.take_actions()?;
        }
    }
}
