//! Images of revisions: which gate closes for one that is refused, and what the environment says.

use protocol::fleet::TurnVerb;
use protocol::time::WallTime;
use protocol::vm::Condition;

use super::standing::verb_of;
use crate::permit::Gate;
use crate::world::{Guest, ImageCheck, Revision, World};

/// Type of the condition that says whether the image of the started revision is verified.
const IMAGES_VERIFIED: &str = "ImagesVerified";
const NO_KEY: &str = "no key of images is set, so the signature of this image is not verified: \
                      set the chart's value fleet.images.key";

/// Gate of a guest whose turn would bring a refused image.
pub(super) fn gate(revision: &Revision, guest: &Guest) -> Option<Gate> {
    let is_refused = matches!(revision.image, ImageCheck::Refused(_));
    (is_refused && verb_of(guest) == TurnVerb::Try).then_some(Gate::Signature)
}

/// Why the gate is closed, for people.
pub(super) fn detail(revision: &Revision, gate: Gate) -> Option<&str> {
    match &revision.image {
        ImageCheck::Refused(why) if gate == Gate::Signature => Some(why),
        _ => None,
    }
}

/// Says of the started revision whether its image is verified.
pub(super) fn add_condition(
    all: &mut Vec<Condition>,
    world: &World,
    started: Option<&Revision>,
    now: WallTime,
) {
    all.retain(|one| one.kind != IMAGES_VERIFIED);
    let (status, reason, message) = match started.map(|revision| &revision.image) {
        None | Some(ImageCheck::NotAnImage) => return,
        Some(ImageCheck::NoKey) => ("False", "NoKey", NO_KEY),
        Some(ImageCheck::Signed) => ("True", "Signed", ""),
        Some(ImageCheck::Refused(why)) => ("False", "ImageRefused", why.as_str()),
    };
    let known = &world.environment.status.conditions;
    let before = known.iter().find(|one| one.kind == IMAGES_VERIFIED);
    let since = before.filter(|one| one.status == status);
    all.push(Condition {
        kind: IMAGES_VERIFIED.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: since.map_or(Some(now), |one| one.last_transition_time),
        observed_generation: None,
    });
}
