//! Images of revisions: may they be used? With a key of images each of them needs its bundle.
//!
//! A revision keeps the bundle of its release. So each look checks it again, with the key that is
//! set by then, and so does each order that would bring the image to a node.

use std::collections::BTreeMap;
use std::sync::Arc;

use fleet_core::{Call, ImageCheck, Revision};
use fleet_signatures::ImageKey;
use protocol::fleet::{Resolved, TurnSpec};

/// Checks images before they are used. Without a key each may be.
#[derive(Debug, Clone, Default)]
pub(crate) struct ImageGate(Option<Arc<ImageKey>>);

impl ImageGate {
    pub(crate) fn new(key: Option<ImageKey>) -> Self {
        Self(key.map(Arc::new))
    }

    /// Whether an image may be used.
    pub(crate) fn check(&self, image: &Resolved) -> ImageCheck {
        let Some(key) = &self.0 else {
            return ImageCheck::NoKey;
        };
        match key.verify(&image.sha256, &image.bundle) {
            Ok(()) => ImageCheck::Signed,
            Err(refused) => ImageCheck::Refused(refused.to_string()),
        }
    }

    /// Notes at each revision whether its image may be used.
    pub(crate) fn mark(&self, revisions: &mut BTreeMap<String, Revision>) {
        for revision in revisions.values_mut() {
            revision.image = self.check(&revision.program);
        }
    }

    /// Why an order is not carried out, if it would bring an image that may not be used.
    pub(crate) fn refusal(
        &self,
        call: &Call,
        turn: Option<&TurnSpec>,
        revisions: &BTreeMap<String, Revision>,
    ) -> Option<String> {
        let turn = match call {
            Call::Push(turn) => turn,
            Call::Try { .. } => turn?,
            Call::Keep { .. } | Call::Back { .. } => return None,
        };
        let revision = revisions.get(&turn.revision);
        let bundle = revision.map_or("", |revision| &revision.program.bundle);
        let image = Resolved {
            version: turn.version.clone(),
            sha256: turn.sha256.clone(),
            bundle: bundle.to_owned(),
        };
        match self.check(&image) {
            ImageCheck::Refused(why) => Some(why),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::fleet::{Rollout, TurnVerb};
    use test_authority::ImageSigner;

    use super::*;

    fn revision(sha256: &str, bundle: String) -> Revision {
        Revision {
            rollout: Rollout::default(),
            program: Resolved {
                version: "1.1.0".to_owned(),
                sha256: sha256.to_owned(),
                bundle,
            },
            image: ImageCheck::default(),
        }
    }

    fn turn(revision: &str, sha256: &str) -> TurnSpec {
        TurnSpec {
            environment: "agents".to_owned(),
            deployment: "d".to_owned(),
            revision: revision.to_owned(),
            version: "1.1.0".to_owned(),
            sha256: sha256.to_owned(),
            token: "t".to_owned(),
            epoch: 1,
            attempt: 1,
            verb: TurnVerb::Try,
        }
    }

    fn begin() -> Call {
        Call::Try {
            token: "t".to_owned(),
            epoch: 1,
            seconds: 60,
        }
    }

    /// Requirement: R25
    #[test]
    fn revision_is_marked_by_the_signature_of_its_image() {
        let (signed, other) = ("a".repeat(64), "b".repeat(64));
        let signer = ImageSigner::new();
        let bundle = signer.bundle(&signed);
        let mut revisions = BTreeMap::from([
            ("r1".to_owned(), revision(&signed, bundle.clone())),
            ("r2".to_owned(), revision(&other, bundle)),
            ("r3".to_owned(), revision(&signed, String::new())),
        ]);
        ImageGate::default().mark(&mut revisions);
        let all = revisions.values();
        assert!(
            all.clone().all(|one| one.image == ImageCheck::NoKey),
            "without a key"
        );
        let key = ImageKey::parse(&signer.public_key()).expect("a key");
        ImageGate::new(Some(key)).mark(&mut revisions);
        assert_eq!(revisions["r1"].image, ImageCheck::Signed);
        for name in ["r2", "r3"] {
            let image = &revisions[name].image;
            assert!(matches!(image, ImageCheck::Refused(_)), "{image:?}");
        }
    }

    /// A turn may be older than the key, and its instance may be edited.
    ///
    /// Requirement: R25
    #[test]
    fn order_brings_no_image_that_its_revision_has_no_signature_for() {
        let (signed, other) = ("a".repeat(64), "b".repeat(64));
        let signer = ImageSigner::new();
        let key = ImageKey::parse(&signer.public_key()).expect("a key");
        let gate = ImageGate::new(Some(key));
        let sound = revision(&signed, signer.bundle(&signed));
        let revisions = BTreeMap::from([("r1".to_owned(), sound)]);
        let refusal = |turn: &TurnSpec| {
            let push = gate.refusal(&Call::Push(turn.clone()), None, &revisions);
            assert_eq!(gate.refusal(&begin(), Some(turn), &revisions), push);
            push
        };
        assert_eq!(refusal(&turn("r1", &signed)), None);
        assert!(refusal(&turn("r1", &other)).is_some(), "another image");
        assert!(refusal(&turn("r2", &signed)).is_some(), "no such revision");
        let back = Call::Back {
            token: "t".to_owned(),
        };
        let edited = turn("r1", &other);
        assert_eq!(gate.refusal(&back, Some(&edited), &revisions), None);
    }
}
