//! The store of the fleet before the shipped API server.

use fleet_core::cause::EndCause;
use fleet_core::{Outcome, Write};
use fleet_store::{
    FleetStore, LoadedEnvironment, Owner, OwnerKind, deployment_object, environment_object,
    revision_object,
};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams};
use protocol::fleet::{
    DeploymentKind, DeploymentSpec, DeploymentState, DeploymentStatus, EnvironmentSpec,
    EnvironmentStatus, InstancePart, Lock, Resolved, RevisionData, TurnEnd, TurnResult, TurnSpec,
    TurnVerb,
};
use protocol::parts::{PartName, PartPhase, PartSource};
use protocol::time::WallTime;
use serde_json::{Value, json};
use test_api::TestApi;

fn environment_spec() -> EnvironmentSpec {
    EnvironmentSpec::of_release(PartName::Monitor, "1.2.3")
}

fn deployment_spec() -> DeploymentSpec {
    DeploymentSpec::new("m", "m-r1", DeploymentKind::User)
}

fn turn(epoch: u64) -> TurnSpec {
    TurnSpec {
        environment: "m".to_owned(),
        deployment: "d".to_owned(),
        revision: "m-r1".to_owned(),
        version: "1.2.3".to_owned(),
        sha256: "0".repeat(64),
        token: format!("d-{epoch}"),
        epoch,
        attempt: 1,
        verb: TurnVerb::Try,
    }
}

fn good_end(token: &str) -> InstancePart {
    InstancePart {
        version: "1.2.3".to_owned(),
        sha256: "0".repeat(64),
        from: PartSource::A,
        phase: PartPhase::Settled,
        healthy: true,
        last: TurnEnd {
            token: token.to_owned(),
            result: TurnResult::Good,
            reason: String::new(),
            at: WallTime(1_700_000_000_000_000),
        },
    }
}

fn owner() -> Owner {
    Owner {
        kind: OwnerKind::Vm,
        name: "a".to_owned(),
        uid: "0000".to_owned(),
    }
}

/// An API with an environment, a revision and a deployment.
async fn filled() -> (TestApi, FleetStore) {
    let api = TestApi::start().await;
    let environment = environment_object("default", "m", &environment_spec());
    let data = RevisionData {
        spec: environment_spec(),
        resolved: Resolved {
            version: "1.2.3".to_owned(),
            sha256: "0".repeat(64),
            bundle: String::new(),
        },
    };
    api.put(
        "controllerrevisions",
        revision_object(&environment, 1, &data),
    );
    api.put("fleetenvironments", environment);
    api.put(
        "fleetdeployments",
        deployment_object("default", "d", &deployment_spec()),
    );
    let store = FleetStore::new(api.client());
    (api, store)
}

async fn only(store: &FleetStore) -> LoadedEnvironment {
    let mut loaded = store.load().await.expect("the API answers");
    assert_eq!(loaded.problems, []);
    loaded.environments.pop().expect("one environment")
}

#[tokio::test]
async fn list_longer_than_a_page_is_read_whole() {
    const COUNT: usize = 1_201;
    let (api, store) = filled().await;
    for number in 0..COUNT {
        let mut object = json!({
            "apiVersion": "fleet.bellows.dev/v1alpha1", "kind": "FleetInstance",
            "metadata": {"name": format!("vm-{number}"), "namespace": "default"},
            "spec": {"parts": {"monitor": turn(1)}},
        });
        object["spec"]["parts"]["monitor"]["token"] = json!(format!("d-{number}"));
        api.put("fleetinstances", object);
    }
    let turns = only(&store).await.turns;
    assert_eq!(turns.len(), COUNT);
    let lists = api.count("GET ", |call| call.line.contains("/fleetinstances"));
    assert_eq!(lists, 3, "pages of 500");
    let last = format!("vm-{}", COUNT - 1);
    let turn = turns[&last].0.as_ref().expect("a turn");
    assert_eq!(turn.token, format!("d-{}", COUNT - 1));
}

/// Requirement: B30
#[tokio::test]
async fn written_objects_are_read_as_they_were() {
    let (_api, store) = filled().await;
    let mut loaded = only(&store).await;
    assert_eq!(loaded.environment.spec, environment_spec());
    assert_eq!(loaded.deployments[0].spec, deployment_spec());
    assert_eq!(loaded.revisions["m-r1"].program.version, "1.2.3");

    let mut status = loaded.environment.status.clone();
    status.lock = Some(Lock {
        deployment: "d".to_owned(),
        kind: DeploymentKind::User,
        epoch: 7,
    });
    let begun = DeploymentStatus {
        state: DeploymentState::InProgress,
        started_at: Some(WallTime(1_700_000_000_000_000)),
        ..DeploymentStatus::default()
    };
    let writes = [
        Write::Environment(status.clone()),
        Write::Deployment {
            name: "d".to_owned(),
            status: begun.clone(),
        },
        Write::Turn {
            guest: "vm-a".to_owned(),
            turn: turn(1),
        },
        Write::End {
            guest: "vm-a".to_owned(),
            cause: EndCause::Kept,
            part: good_end("d-1"),
        },
        Write::Turn {
            guest: "vm-a".to_owned(),
            turn: turn(2),
        },
    ];
    for write in &writes {
        let outcome = store.write(&mut loaded, write, Some(&owner())).await;
        assert_eq!(outcome, Outcome::Done, "{write:?}");
    }
    let again = only(&store).await;
    assert_eq!(again.environment.status, status);
    assert_eq!(again.deployments[0].status, begun);
    let expected = (Some(turn(2)), Some(good_end("d-1")));
    assert_eq!(again.turns["vm-a"], expected);
}

/// Requirement: B32
#[tokio::test]
async fn write_of_a_version_that_was_overtaken_changes_nothing() {
    let (_api, store) = filled().await;
    let mut first = only(&store).await;
    let mut second = only(&store).await;
    let of_state = |state| Write::Deployment {
        name: "d".to_owned(),
        status: DeploymentStatus {
            state,
            ..DeploymentStatus::default()
        },
    };
    let canceled = of_state(DeploymentState::Canceled);
    assert_eq!(
        store.write(&mut first, &canceled, None).await,
        Outcome::Done
    );
    let begun = of_state(DeploymentState::InProgress);
    assert_eq!(
        store.write(&mut second, &begun, None).await,
        Outcome::Conflict
    );
    let state = only(&store).await.deployments[0].status.state;
    assert_eq!(state, DeploymentState::Canceled);

    let created = Write::Create {
        name: "d".to_owned(),
        spec: deployment_spec(),
    };
    let mut third = only(&store).await;
    let outcome = store.write(&mut third, &created, None).await;
    assert_eq!(outcome, Outcome::Conflict, "a name is used once");
}

/// Requirement: B30
#[tokio::test]
async fn bad_turn_is_refused_before_it_is_sent() {
    let (api, store) = filled().await;
    let mut loaded = only(&store).await;
    let bad = Write::Turn {
        guest: "vm-a".to_owned(),
        turn: TurnSpec {
            sha256: "xyz".to_owned(),
            ..turn(1)
        },
    };
    let outcome = store.write(&mut loaded, &bad, Some(&owner())).await;
    assert!(
        matches!(&outcome, Outcome::Refused(reason) if reason.contains("sha256")),
        "{outcome:?}"
    );
    assert_eq!(api.list("fleetinstances"), Vec::<Value>::new());
}

/// Requirement: B41
#[tokio::test]
async fn unreadable_record_hurts_itself_alone() {
    let (api, store) = filled().await;
    let mut bad = environment_object("default", "bad", &environment_spec());
    bad["spec"]["rollout"]["minHealthyPercent"] = json!(100);
    api.put("fleetenvironments", bad);
    let mut odd = deployment_object("default", "odd", &deployment_spec());
    odd["status"] = json!({"state": "Dreaming"});
    api.put("fleetdeployments", odd);
    let loaded = store.load().await.expect("the API answers");
    let names: Vec<&str> = loaded
        .problems
        .iter()
        .map(|one| one.object.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "FleetEnvironment default/bad",
            "FleetDeployment default/odd"
        ]
    );
    assert_eq!(loaded.environments.len(), 1);
    assert_eq!(loaded.environments[0].deployments.len(), 1);
}

/// Requirement: B19, B04
#[tokio::test]
async fn environment_waits_for_its_finalizer_and_takes_its_deployments_along() {
    let (api, store) = filled().await;
    let mut loaded = only(&store).await;
    let made = Write::Create {
        name: "m-join-1".to_owned(),
        spec: deployment_spec(),
    };
    for write in [Write::Finalizer(true), made] {
        let outcome = store.write(&mut loaded, &write, None).await;
        assert_eq!(outcome, Outcome::Done, "{write:?}");
    }
    api.delete("fleetenvironments", "default", "m", true);
    let mut waiting = only(&store).await;
    assert!(waiting.environment.is_deleted && waiting.environment.has_finalizer);
    let taken = Write::Finalizer(false);
    let outcome = store.write(&mut waiting, &taken, None).await;
    assert_eq!(outcome, Outcome::Done);
    assert_eq!(api.list("fleetenvironments"), Vec::<Value>::new());
    let left = api.list("fleetdeployments");
    let names: Vec<&str> = left
        .iter()
        .filter_map(|one| one["metadata"]["name"].as_str())
        .collect();
    assert_eq!(names, ["d"], "the one that no owner was named for");
}

/// Requirement: B19
#[tokio::test]
async fn server_refuses_the_deletion_of_an_environment_that_a_person_rolls_out() {
    let (api, store) = filled().await;
    let mut loaded = only(&store).await;
    let of = |kind| {
        Write::Environment(EnvironmentStatus {
            lock: Some(Lock {
                deployment: "d".to_owned(),
                kind,
                epoch: 7,
            }),
            ..EnvironmentStatus::default()
        })
    };
    let user = of(DeploymentKind::User);
    assert_eq!(store.write(&mut loaded, &user, None).await, Outcome::Done);
    let gvk = GroupVersionKind::gvk("fleet.bellows.dev", "v1alpha1", "FleetEnvironment");
    let resource = ApiResource::from_gvk_with_plural(&gvk, "fleetenvironments");
    let client: Api<DynamicObject> = Api::namespaced_with(api.client(), "default", &resource);
    let one = client.delete("m", &DeleteParams::default()).await;
    let all = client
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await;
    for refused in [one.map(drop), all.map(drop)] {
        let error = refused.expect_err("a person rolls out");
        let kube::Error::Api(refusal) = &error else {
            panic!("{error}")
        };
        assert_eq!(refusal.code, 403);
        assert!(refusal.message.contains("stop d first"), "{refusal:?}");
    }
    let repair = of(DeploymentKind::HealthRepair);
    assert_eq!(store.write(&mut loaded, &repair, None).await, Outcome::Done);
    let deleted = client.delete("m", &DeleteParams::default()).await;
    assert!(deleted.is_ok(), "{deleted:?}");
}

/// Requirement: R04
#[tokio::test]
async fn urgent_version_of_a_channel_reaches_the_engine() {
    let (api, store) = filled().await;
    let mut environment = api.list("fleetenvironments").remove(0);
    environment["spec"]["source"] = json!({"channel": "c"});
    environment["status"] = json!({"state": "Active", "desired": "1.2.3"});
    api.put("fleetenvironments", environment);
    assert!(!only(&store).await.is_critical, "there is no channel");
    let channel = |critical: bool, verified: &str| {
        json!({
            "apiVersion": "fleet.bellows.dev/v1alpha1", "kind": "FleetChannel",
            "metadata": {"name": "c", "namespace": "default"},
            "spec": {"url": "file:///srv/x", "name": "stable", "trust": "Local"},
            "status": {"version": "1.2.3", "critical": critical, "conditions": [{
                "type": "Verified", "status": verified, "reason": "x",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        })
    };
    for (critical, verified, expected) in [
        (true, "True", true),
        (false, "True", false),
        (true, "False", false),
    ] {
        api.put("fleetchannels", channel(critical, verified));
        assert_eq!(
            only(&store).await.is_critical,
            expected,
            "{critical} {verified}"
        );
    }
    let (channels, problems) = store.channels().await.expect("the API answers");
    assert_eq!((channels.len(), problems.len()), (1, 0));
}
