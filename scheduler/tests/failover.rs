//! Two real replicas, one real API server: whatever becomes of the leader, nothing is granted twice
//! and growth goes on.
//!
//! What is measured is printed; `cargo xtask bench scheduler` measures it with the shipped Lease.

mod cluster;

use std::time::{Duration, Instant};

use cluster::agents::Agents;
use cluster::proxy::Hold;
use cluster::{Cluster, Replica};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

const VMS: [&str; 4] = ["a", "b", "c", "d"];
/// Room for each VM's first unit and six more; the agents want up to twenty together.
const TOTAL: u32 = 10;

/// A cluster with two replicas, of which the first leads, and agents that ask both.
async fn world() -> (Cluster, Replica, Replica, Agents) {
    let cluster = Cluster::start().await;
    cluster.node(TOTAL).await;
    for vm in VMS {
        cluster.vm(vm).await;
    }
    let first = cluster.replica("s-1").await;
    first.until_ready().await;
    let second = cluster.replica("s-2").await;
    let agents = Agents::start(&VMS, TOTAL);
    agents.ask(&[&first, &second]);
    let growth = agents.growth_after(&cluster, Instant::now()).await;
    assert_eq!(growth.by, "s-1");
    assert!(!second.readiness().await.0, "two are ready");
    (cluster, first, second, agents)
}

fn tell(what: &str, gap: Duration) {
    eprintln!("{what}: growth goes on after {} ms", gap.as_millis());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n06_n16_a_leader_killed_at_any_step_of_a_grant_leaves_nothing_granted_twice() {
    let (cluster, mut leader, mut follower, agents) = world().await;
    let steps = [
        ("between two requests", None, false),
        ("its write never lands", Some(Hold::BeforeItLands), false),
        (
            "its write lands after its death",
            Some(Hold::BeforeItLands),
            true,
        ),
        (
            "its write landed, nobody was told",
            Some(Hold::BeforeItsAnswer),
            false,
        ),
        (
            "its answer is on its way",
            Some(Hold::BeforeItsAnswer),
            true,
        ),
    ];
    for (number, (step, hold, released)) in steps.into_iter().enumerate() {
        let held = match hold {
            Some(hold) => Some(
                cluster
                    .proxy
                    .hold(hold)
                    .await
                    .recv()
                    .await
                    .expect("a write"),
            ),
            None => None,
        };
        let killed = Instant::now();
        let gone = leader.name.clone();
        leader.kill().await;
        match held {
            Some(held) if released => {
                held.release().await;
            }
            other => drop(other),
        }
        // Nobody else waits yet: one that began now might be first, if the other was held up for a
        // moment.
        let growth = agents.growth_without(&gone, &cluster, killed).await;
        assert_eq!(growth.by, follower.name);
        tell(step, growth.at - killed);
        let next = cluster.replica(&format!("s-{}", number + 3)).await;
        agents.ask(&[&follower, &next]);
        agents.until_answered(&cluster, 40).await;
        agents.check(&cluster).await;
        (leader, follower) = (follower, next);
    }
    agents.stop().await;
    drop((leader, follower));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_stopped_and_goes_on_grants_nothing() {
    let (cluster, first, second, agents) = world().await;
    let stopped = Instant::now();
    first.signal("-STOP").await;
    second.until_ready().await;
    let growth = agents.growth_without("s-1", &cluster, stopped).await;
    tell("the leader was stopped", growth.at - stopped);
    // It goes on with all that waits in its sockets.
    let woken = Instant::now();
    first.signal("-CONT").await;
    first.until("told that it leads no more", false).await;
    for _ in 0..20 {
        let growth = agents.growth_after(&cluster, Instant::now()).await;
        assert_eq!(growth.by, "s-2");
        agents.check(&cluster).await;
    }
    assert!(!first.readiness().await.0 && second.readiness().await.0);
    tell("the old leader woke", woken.elapsed());
    agents.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_update_hands_over_at_once() {
    let (cluster, mut leader, mut follower, agents) = world().await;
    let mut without_lists = 0;
    for round in 0..3 {
        follower.until_listed().await;
        let lists = follower.lists().await;
        let told = Instant::now();
        leader.signal("-TERM").await;
        // It may finish what it had begun; the next one is what counts.
        let gap = agents.growth_without(&leader.name, &cluster, told).await.at - told;
        assert_eq!(leader.ended().await, Some(0));
        without_lists += u32::from(follower.lists().await == lists);
        tell("SIGTERM", gap);
        let lease = cluster
            .api("Lease")
            .get("autoscale-scheduler-permits")
            .await;
        let lease = lease.expect("is there");
        let holder = lease.data["spec"]["holderIdentity"]
            .as_str()
            .unwrap_or_default();
        assert!(
            holder.starts_with(&format!("{}_", follower.name)),
            "{holder}"
        );
        let next = cluster.replica(&format!("n-{round}")).await;
        agents.ask(&[&follower, &next]);
        agents.check(&cluster).await;
        (leader, follower) = (follower, next);
    }
    // On a busy machine a watch may come too late for one of them.
    assert!(without_lists > 0, "every one of them listed anew");
    agents.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_schedulers_alive_at_once_are_one_leader_even_when_the_lease_is_tampered_with() {
    let (cluster, first, second, agents) = world().await;
    let leases = cluster.api("Lease");
    let name = "autoscale-scheduler-permits";
    // Somebody deletes it, gives it to nobody, and gives it to a stranger.
    for round in 0..3 {
        let struck = Instant::now();
        let spec = match round {
            0 => {
                let deleted = leases.delete(name, &DeleteParams::default()).await;
                deleted.expect("is deleted");
                None
            }
            1 => Some(json!({"spec": {"holderIdentity": null}})),
            _ => Some(json!({"spec": {"holderIdentity": "stranger", "leaseDurationSeconds": 4}})),
        };
        if let Some(spec) = spec {
            let patched = leases
                .patch(name, &PatchParams::default(), &Patch::Merge(spec))
                .await;
            patched.expect("is patched");
        }
        let mut both = 0;
        let end = struck + Duration::from_secs(2);
        while Instant::now() < end {
            let (a, b) = tokio::join!(first.readiness(), second.readiness());
            both += u32::from(a.0 && b.0);
        }
        assert_eq!(both, 0, "round {round}");
        let growth = agents.growth_after(&cluster, Instant::now()).await;
        tell("the Lease was tampered with", growth.at - struck);
        agents.check(&cluster).await;
    }
    agents.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_beside_kube_scheduler_leads_by_the_lease_that_one_holds() {
    let cluster = Cluster::start().await;
    cluster.node(TOTAL).await;
    cluster.vm("a").await;
    let options = ["--lease", "follow", "--lease-name", "autoscale-scheduler"];
    let ours = cluster.replica_with("host-1", &options).await;
    let other = cluster.replica_with("host-10", &options).await;
    let leases = cluster.api("Lease");
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "autoscale-scheduler", "namespace": "kube-system"}});
    let lease = serde_json::from_value(lease).expect("is an object");
    let made = leases.create(&PostParams::default(), &lease).await;
    made.expect("is created");
    for (leader, follower, host) in [(&ours, &other, "host-1"), (&other, &ours, "host-10")] {
        // As kube-scheduler does: its host's name, a name of its own, and the time by this host's
        // clock.
        let now = daemon_kit::clock::Clock::new().wall().to_micro_string();
        let spec = json!({"spec": {"holderIdentity": format!("{host}_6f0c"), "leaseDurationSeconds": 15, "renewTime": now}});
        let (params, spec) = (PatchParams::default(), Patch::Merge(spec));
        let renewed = leases.patch("autoscale-scheduler", &params, &spec).await;
        renewed.expect("is renewed");
        leader.until_ready().await;
        assert!(!follower.readiness().await.0);
    }
}
