//! Deployments for the tests of the commands.

use protocol::fleet::{DeploymentKind, DeploymentSpec, DeploymentState, DeploymentStatus};
use protocol::time::WallTime;

use super::Deployed;

/// A deployment of a person in environment `a/m`.
pub(crate) fn deployed(name: &str, revision: &str, state: DeploymentState) -> Deployed {
    Deployed {
        namespace: "a".to_owned(),
        name: name.to_owned(),
        created: WallTime(0),
        spec: DeploymentSpec::new("m", revision, DeploymentKind::User),
        status: DeploymentStatus {
            state,
            ..DeploymentStatus::default()
        },
    }
}
