//! Orders to the agent of a node. The API carries them out: a template, and the deletion of a pod.
//!
//! A repeated order acts once, since each begins with a look. A pod is deleted by its uid, and only
//! if it does not run what it should.

use std::time::Duration;

use fleet_core::{Call, Outcome};
use kube::api::{DeleteParams, Preconditions};
use protocol::fleet::TurnSpec;
use protocol::time::WallTime;
use tokio::time::timeout;

use super::agents::Agents;
use super::daemon_set::DaemonSet;
use super::objects::{AGENT, AgentPod};

/// Time after which a deletion counts as not answered.
const DELETE_LIMIT: Duration = Duration::from_secs(10);
/// Time after its end at which a pod of a dead node is no longer waited for, microseconds.
const LOST_AFTER_US: i64 = 60_000_000;
/// Most attempts to write the template.
const PUSHES: u32 = 4;
const GONE: [u16; 2] = [404, 409];

/// Carries out an order to a node's agent, whose turn it belongs to.
pub(crate) async fn carry_out(
    agents: &Agents,
    node: &str,
    turn: Option<&TurnSpec>,
    call: &Call,
    now: WallTime,
) -> Outcome {
    let carried = match (call, turn) {
        (Call::Push(turn), _) => pushed(agents, turn, now).await.map_err(settled),
        (Call::Keep { .. }, _) => Ok(()),
        (Call::Try { token, .. }, Some(turn)) if turn.token == *token => {
            begin(agents, node, turn).await
        }
        (Call::Back { token }, Some(turn)) if turn.token == *token => {
            back(agents, node, turn).await
        }
        (Call::Try { .. } | Call::Back { .. }, _) => Err(Outcome::Conflict),
    };
    carried.err().unwrap_or(Outcome::Done)
}

/// A conflict with another writer says nothing about the turn.
fn settled(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Conflict => Outcome::Transient(format!("DaemonSet {AGENT} changes all the time")),
        outcome => outcome,
    }
}

async fn read(agents: &Agents) -> Result<DaemonSet, Outcome> {
    let set = agents.set.read().await?;
    match set.problem() {
        Some(text) => Err(Outcome::Transient(text)),
        None => Ok(set),
    }
}

/// Puts the image of the turn into the template.
async fn push(agents: &Agents, turn: &TurnSpec, now: WallTime) -> Result<(), Outcome> {
    let Some(object) = read(agents).await?.forward(turn) else {
        return agents.set.observed().await.map_err(Outcome::Transient);
    };
    let pods = agents.pods().await.map_err(Outcome::Transient)?;
    // The pod after it would get the image of another turn.
    if let Some(pod) = pods.iter().find(|pod| is_ending(pod, now)) {
        let text = format!("the agent of node {} is being restarted", pod.node);
        return Err(Outcome::Transient(text));
    }
    agents.set.replace(object).await
}

/// Repeats an order that another turn of the same template has overtaken.
async fn pushed(agents: &Agents, turn: &TurnSpec, now: WallTime) -> Result<(), Outcome> {
    for _ in 1..PUSHES {
        match push(agents, turn, now).await {
            Err(Outcome::Conflict) => {}
            ended => return ended,
        }
    }
    push(agents, turn, now).await
}

fn is_ending(pod: &AgentPod, now: WallTime) -> bool {
    let ends_at = pod.ends_at.map(|at| at.0.saturating_add(LOST_AFTER_US));
    ends_at.is_some_and(|lost_at| now.0 < lost_at)
}

/// Deletes the node's pod, unless it runs the image of the turn.
async fn begin(agents: &Agents, node: &str, turn: &TurnSpec) -> Result<(), Outcome> {
    if read(agents).await?.sha256().as_ref() != Some(&turn.sha256) {
        return Err(Outcome::NothingStaged);
    }
    let pod = agents.pod_of(node).await.map_err(Outcome::Transient)?;
    match pod {
        Some(pod) if pod.sha256 != turn.sha256 => delete(agents, &pod).await,
        _ => Ok(()),
    }
}

/// Puts the image before the turn's back, and deletes the node's pod if it runs the turn's.
async fn back(agents: &Agents, node: &str, turn: &TurnSpec) -> Result<(), Outcome> {
    let object = read(agents).await?.backward(turn);
    match object.map_err(Outcome::Transient)? {
        Some(object) => agents.set.replace(object).await.map_err(settled)?,
        None => agents.set.observed().await.map_err(Outcome::Transient)?,
    }
    let pod = agents.pod_of(node).await.map_err(Outcome::Transient)?;
    match pod {
        Some(pod) if pod.sha256 == turn.sha256 => delete(agents, &pod).await,
        _ => Ok(()),
    }
}

/// A pod that is gone already, or is another one by now, is none.
async fn delete(agents: &Agents, pod: &AgentPod) -> Result<(), Outcome> {
    if pod.ends_at.is_some() {
        return Ok(());
    }
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(pod.uid.clone()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let deleted = timeout(DELETE_LIMIT, agents.pod_api.delete(&pod.name, &params)).await;
    let deleted =
        deleted.map_err(|_| Outcome::Transient("the API did not answer in time".to_owned()))?;
    match deleted {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(refusal)) if GONE.contains(&refusal.code) => Ok(()),
        Err(error) => Err(Outcome::Transient(daemon_kit::chain(&error))),
    }
}
