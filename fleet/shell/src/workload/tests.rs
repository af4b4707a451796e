//! Turns and locks for tests of both kinds of workloads.

use protocol::fleet::{DeploymentKind, Lock, TurnSpec, TurnVerb};

/// A turn for the image whose digest is of this digit.
pub(crate) fn turn(digit: &str, deployment: &str) -> TurnSpec {
    TurnSpec {
        environment: "images".to_owned(),
        deployment: deployment.to_owned(),
        revision: "images-r1".to_owned(),
        version: "1.1.0".to_owned(),
        sha256: digit.repeat(64),
        token: "t".to_owned(),
        epoch: 1,
        attempt: 1,
        verb: TurnVerb::Try,
    }
}

pub(crate) fn lock(deployment: &str, kind: DeploymentKind) -> Lock {
    Lock {
        deployment: deployment.to_owned(),
        kind,
        epoch: 1,
    }
}
