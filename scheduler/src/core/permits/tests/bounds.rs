//! Requests that a growth rate bounds, and requests that are open when the lead ends.

use serde_json::json;

use super::*;
use crate::core::fixtures::node;
use crate::core::lease::{LeaseRule, LeaseSeen};
use crate::core::view::NodeView;
use crate::core::{Core, Settings};

fn settings() -> Settings {
    crate::config::Config::default().settings(false, true)
}

#[test]
fn growth_is_cut_to_whole_units_of_what_the_rate_allows() {
    for (milli_per_second, permit) in [(600, 1_000), (400, 750), (200, 500), (2_000, 1_500)] {
        let mut settings = settings();
        settings.rules.fairness.vm_growth_per_second = Resources::new(milli_per_second, 0);
        let held = size(500, 2);
        let mut rig = Rig::with(settings, size(8_000, 32), Some(held));
        rig.ask(0, Some(held), size(1_500, 2));
        let response = rig.settle(0).remove(0);
        assert_eq!(
            permit_of(&response),
            Ok(size(permit, 2)),
            "{milli_per_second} a second"
        );
        let outcome = response.decision.expect("is decided").verdicts.cpu.outcome;
        let limit = match permit {
            1_500 => None,
            _ => Some(Limit::GrowthRate),
        };
        assert_eq!(outcome.limit(), limit);
    }
}

/// The answer to the first may be on its way. Found by random interleavings.
///
/// Requirement: N06
#[test]
fn request_that_arrives_twice_is_permitted_no_less_than_the_first_time() {
    let mut settings = settings();
    settings.rules.fairness.vm_growth_per_second = Resources::new(600, 0);
    let held = size(500, 2);
    let mut rig = Rig::with(settings, size(8_000, 32), Some(held));
    for _ in 0..2 {
        rig.ask(0, Some(held), size(1_500, 2));
        let response = rig.settle(0).remove(0);
        assert_eq!(permit_of(&response), Ok(size(1_000, 2)));
        assert_eq!(rig.reserved(), size(1_000, 2));
    }
}

/// A grant is of whole units or of all that is asked. What is approved need not be a whole unit.
///
/// Requirement: N06
#[test]
fn request_that_arrives_twice_keeps_its_part_of_a_unit() {
    let held = size(500, 2);
    let asked = size(1_140, 2);
    let mut rig = Rig::new(size(2_000, 32), Some(held));
    rig.ask(0, Some(held), asked);
    assert_eq!(permit_of(&rig.settle(0).remove(0)), Ok(asked));
    // The other pod takes one CPU. A node that has become too small takes nothing back either.
    for total in ["2200m", "2"] {
        let allocatable = json!({"cpu": total, "memory": "40Gi"});
        let node =
            json!({"metadata": {"name": "n", "uid": "n"}, "status": {"allocatable": allocatable}});
        let node = NodeView::read(&node).expect("reads");
        rig.tell(Event::NodesListed(vec![node]));
        rig.ask(0, Some(held), asked);
        assert_eq!(permit_of(&rig.settle(0).remove(0)), Ok(asked), "{total}");
    }
}

/// Another replica may decide from then on, and the agent must ask that one.
#[test]
fn open_requests_are_refused_when_the_lead_ends() {
    let held = size(500, 2);
    let mut rig = Rig::new(size(4_000, 8), Some(held));
    rig.core = Core::new(Settings {
        lease: Some(LeaseRule::of_host("a")),
        ..settings()
    });
    rig.tell(Event::Lease(LeaseSeen {
        holder: "a_x".into(),
        renewed: MS(0),
        settled: MS(0),
        handover: None,
    }));
    assert_eq!(rig.actions(0), [Action::List]);
    rig.tell(Event::NodesListed(vec![node("n", 10)]));
    rig.tell(Event::PodsListed(vec![rig.pod("n")]));
    rig.tell(Event::VmsListed(vec![rig.vm()]));
    let id = rig.ask(1, Some(held), size(1_000, 4));
    let begun = rig.actions(1);
    assert_eq!((answers(&begun).len(), writes(&begun).len()), (0, 1));
    let ended = answers(&rig.actions(60_000));
    assert_eq!(ended.len(), 1);
    assert_eq!(ended[0].request_id, id);
    assert_eq!(permit_of(&ended[0]), Err(PermitRefusal::NotReady));
}
