//! Deployments of images that may not be used.

use fleet_core::{Engine, ImageCheck, World};
use protocol::fleet::{DeploymentState, EnvironmentStatus};

use super::world::*;

const WHY: &str = "image sha256:1 is not signed";

fn of_image(image: ImageCheck) -> World {
    let mut world = world(half(), guests(4));
    for revision in world.revisions.values_mut() {
        revision.image = image.clone();
    }
    world
}

/// Status and reason of what the environment says about the image.
fn said(status: &EnvironmentStatus) -> Option<(String, String)> {
    let mut all = status.conditions.iter();
    let one = all.find(|one| one.kind == "ImagesVerified")?;
    Some((one.status.clone(), one.reason.clone()))
}

fn words(status: &str, reason: &str) -> Option<(String, String)> {
    Some((status.to_owned(), reason.to_owned()))
}

/// Requirement: R25
#[test]
fn refused_image_blocks_its_deployment_and_a_signed_one_goes() {
    let mut engine = Engine::new(1);
    let refused = of_image(ImageCheck::Refused(WHY.to_owned()));
    let done = run(&mut engine, refused, 0);
    assert_eq!(done.turns, Vec::<String>::new());
    assert_eq!(done.status.state, DeploymentState::Blocked);
    let blocked = done.status.blocked_by.clone().expect("a gate");
    assert_eq!(
        (blocked.gate.as_str(), blocked.detail.as_str()),
        ("signature", WHY)
    );
    assert_eq!(said(&done.environment), words("False", "ImageRefused"));

    let mut signed = of_image(ImageCheck::Signed);
    signed.deployments[0].status = done.status;
    signed.environment.status = done.environment;
    let done = run(&mut engine, signed, 10);
    assert_eq!(done.turns.len(), 2, "half of them may be away");
    assert_eq!(said(&done.environment), words("True", "Signed"));
}

/// Requirement: R25
#[test]
fn image_that_nobody_verified_goes_and_the_environment_says_so() {
    let done = run(&mut Engine::new(1), of_image(ImageCheck::NoKey), 0);
    assert_eq!(done.turns.len(), 2);
    assert_eq!(said(&done.environment), words("False", "NoKey"));
    let done = run(&mut Engine::new(1), of_image(ImageCheck::NotAnImage), 0);
    assert_eq!(done.turns.len(), 2);
    assert_eq!(said(&done.environment), None, "programs have hashes");
}

/// A guest that left the environment gets its former image back, whatever the new one is.
///
/// Requirement: R25
#[test]
fn turn_in_flight_is_taken_back_also_with_a_refused_image() {
    let mut world = of_image(ImageCheck::Refused(WHY.to_owned()));
    let guest = world.guests.get_mut("vm-0").expect("a guest");
    tried(guest, 50);
    guest.facts.fault = Some("it does harm".to_owned());
    let done = run(&mut Engine::new(1), world, 10);
    assert_eq!(done.turns, Vec::<String>::new());
    let is_back = |call: &fleet_core::Call| matches!(call, fleet_core::Call::Back { .. });
    assert!(done.calls.iter().any(is_back), "{:?}", done.calls);
}
