//! Orders to a part of the control plane. The API carries them out: one applied image.
//!
//! A repeated order acts once, since each begins with a look.

use fleet_core::{Call, Outcome};
use fleet_store::LoadedEnvironment;
use protocol::fleet::TurnSpec;
use protocol::time::WallTime;
use serde_json::Value;

use super::deployment::{Deployment, Shares};
use super::kind::Kind;
use crate::workload::Workload;

/// Most attempts to write, since its status changes the object too.
const ATTEMPTS: u32 = 5;

/// An order with the turn that it belongs to.
pub(crate) struct Order {
    namespace: String,
    kind: Option<Kind>,
    shares: Shares,
    pub(crate) turn: Option<TurnSpec>,
    pub(crate) call: Call,
}

impl Order {
    /// An order of an environment.
    pub(crate) fn new(loaded: &LoadedEnvironment, turn: Option<TurnSpec>, call: Call) -> Self {
        Self {
            namespace: loaded.namespace.clone(),
            kind: Kind::of(loaded.environment.spec.part),
            shares: shares_of(loaded),
            turn,
            call,
        }
    }
}

fn shares_of(loaded: &LoadedEnvironment) -> Shares {
    let spec = &loaded.environment.spec;
    let healthy = spec.rollout.min_healthy_percent;
    let healthy = match loaded.is_critical {
        true => healthy.min(spec.critical.min_healthy_percent),
        false => healthy,
    };
    Shares {
        min_healthy_percent: healthy,
        max_active_percent: spec.service.unwrap_or_default().max_active_percent,
    }
}

/// Carries out an order.
pub(crate) async fn carry_out(client: &kube::Client, order: Order, now: WallTime) -> Outcome {
    let Some(kind) = order.kind else {
        return Outcome::Conflict;
    };
    let workload = kind.workload(client.clone(), &order.namespace);
    let access = (&workload, kind);
    let shares = order.shares;
    let carried = match (&order.call, &order.turn) {
        // Kubelets pull the image. The pods change with the trial.
        (Call::Push(_), _) => read(access).await.map(drop),
        (Call::Keep { .. }, _) => Ok(()),
        (Call::Try { token, .. }, Some(turn)) if turn.token == *token => {
            write(access, |set| Ok(set.forward(turn, shares, now))).await
        }
        (Call::Back { token }, Some(turn)) if turn.token == *token => {
            write(access, |set| set.backward(turn, shares, now)).await
        }
        (Call::Try { .. } | Call::Back { .. }, _) => Err(Outcome::Conflict),
    };
    carried.err().unwrap_or(Outcome::Done)
}

async fn read((workload, kind): (&Workload, Kind)) -> Result<Deployment, Outcome> {
    let read = Deployment::new(workload.read().await?, kind);
    match read.problem() {
        Some(text) => Err(Outcome::Transient(text)),
        None => Ok(read),
    }
}

async fn write(
    access: (&Workload, Kind),
    fields: impl Fn(&Deployment) -> Result<Option<Value>, String>,
) -> Result<(), Outcome> {
    for _ in 0..ATTEMPTS {
        let Some(fields) = fields(&read(access).await?).map_err(Outcome::Transient)? else {
            return Ok(());
        };
        match access.0.apply(&fields).await {
            Err(Outcome::Conflict) => {}
            ended => return ended,
        }
    }
    let text = "its Deployment changes all the time";
    Err(Outcome::Transient(text.to_owned()))
}
