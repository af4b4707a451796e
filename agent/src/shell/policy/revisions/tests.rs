use std::path::Path;

use daemon_kit::clock::Clock;
use prometheus_client::registry::Registry;
use protocol::policy::Limits;

use super::super::known::Listed;
use super::*;
use crate::shell::config::Policies as Settings;

/// The version that decides; the object's spec has a newer one.
fn live() -> Policy {
    Policy::of("db", Spec::of_source("return 1"), Limits::default())
}

/// The agent's publisher after a restart. The API answers nothing.
fn restarted(sources: &Path) -> Revisions {
    let folder = Some(sources.to_owned());
    let (runtime, _) = PolicyRuntime::new(
        Settings::default(),
        &mut Registry::default(),
        folder,
        Clock::new(),
    );
    let nobody = kube::Config::new("http://127.0.0.1:9".parse().expect("an address"));
    let client = api_client::connect(nobody).expect("a client");
    Revisions::new(runtime, client)
}

/// Publishes the object of the policy. Returns whether every source was found, and the live
/// version.
async fn published(sources: &Path) -> (bool, Option<Digest>) {
    let mut revisions = restarted(sources);
    let newest = Policy::of("db", Spec::of_source("return 2"), Limits::default());
    let listed = Listed {
        newest: Arc::new(newest),
        deciding: Some(live().digest),
        canary: None,
    };
    let is_whole = revisions
        .publish(&[("db".to_owned(), Ok(listed))].into())
        .await;
    let known = revisions.runtime.0.known.borrow();
    let versions = known.policies["db"].as_ref().expect("a policy");
    (is_whole, versions.live.as_ref().map(|one| one.digest))
}

/// Requirement: V40
#[tokio::test]
async fn v40_restarted_agent_decides_by_its_stored_copy_while_the_api_has_no_revision() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = sources::path_of(folder.path(), &live().digest);
    sources::write(&path, &live()).expect("stored");
    let expected = (true, Some(live().digest));
    assert_eq!(published(folder.path()).await, expected);
}

/// Requirement: V40
#[tokio::test]
async fn v40_altered_stored_copy_is_not_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = sources::path_of(folder.path(), &live().digest);
    let other = Policy::of("db", Spec::of_source("return 3"), Limits::default());
    sources::write(&path, &other).expect("stored");
    assert_eq!(published(folder.path()).await, (false, None));
    std::fs::write(&path, b"{").expect("cut short");
    assert_eq!(published(folder.path()).await, (false, None));
}
