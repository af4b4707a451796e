//! Parts of a real guest, replaced by the routes of its runner.

use std::time::Duration;

use anyhow::{Context as _, Result};
use daemon_kit::http_client::over_unix;
use hyper::Method;
use protocol::parts::{PartName, PartPhase, PartState, PartStates};
use serde_json::{Value, json};

use crate::guest::Guest;
use crate::patience::wait_for;
use crate::publisher::sha256_of;
use crate::site::Site;

/// Longest wait for a state, without KVM.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// Longest exchange with the guest: a program is sent, hashed and tested.
const EXCHANGE: Duration = Duration::from_secs(120);

/// A guest whose parts are replaced.
pub struct GuestParts {
    /// Site of the VM.
    pub site: Site,
    /// Guest of the VM.
    pub guest: Guest,
    /// Length of the next trials, seconds.
    pub trial_s: u64,
    vm: String,
    /// Programs that were brought.
    turns: u64,
}

impl GuestParts {
    /// Boots a VM on a site of its own. Its trials last `trial_s` seconds.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn boot(object: &Value, trial_s: u64) -> Result<Self> {
        let vm = object["metadata"]["name"].as_str().context("a name")?;
        let site = Site::fresh().await?;
        let guest = site.boot(object).await?;
        Ok(Self {
            site,
            guest,
            vm: vm.to_owned(),
            trial_s,
            turns: 0,
        })
    }

    /// Sends a request to the VM's runner.
    ///
    /// # Errors
    /// The refusal, or why there is no answer.
    pub async fn sent(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Vec<u8>> {
        let socket = self.site.rundir(&self.vm).await?.join("control.sock");
        let body = over_unix(&socket, method, path, body, EXCHANGE).await?;
        Ok(body.to_vec())
    }

    async fn asked(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Vec<u8>> {
        let path = format!("/v1/guest/parts{path}");
        self.sent(method, &path, body).await
    }

    /// State of a part.
    ///
    /// # Errors
    /// When the guest does not report it.
    pub async fn part(&self, part: PartName) -> Result<PartState> {
        let text = self.asked(Method::GET, "", Vec::new()).await?;
        let mut states: PartStates = serde_json::from_slice(&text)?;
        states.remove(&part).context("no such part")
    }

    /// Orders `try`, `keep` or `back` for the newest program.
    ///
    /// # Errors
    /// The refusal.
    pub async fn order(&self, part: PartName, verb: &str) -> Result<()> {
        let token = format!("turn-{}", self.turns);
        let body = json!({"token": token, "epoch": self.turns, "seconds": self.trial_s});
        let path = format!("/{}/{verb}", part.as_str());
        let body = body.to_string().into_bytes();
        self.asked(Method::POST, &path, body).await.map(drop)
    }

    /// Brings a program, without a trial.
    ///
    /// # Errors
    /// The refusal.
    pub async fn bring(&mut self, part: PartName, program: &[u8]) -> Result<()> {
        self.turns += 1;
        let (sha256, turn) = (sha256_of(program), self.turns);
        let path = format!(
            "/{}?sha256={sha256}&version=0.1.{turn}&token=turn-{turn}&epoch={turn}",
            part.as_str()
        );
        let brought = self.asked(Method::PUT, &path, program.to_vec()).await;
        brought.map(drop)
    }

    /// Waits until the part is in `phase` and runs the program of `sha256`.
    ///
    /// # Errors
    /// Names the last state.
    pub async fn wait(&self, part: PartName, phase: PartPhase, sha256: &str) -> Result<PartState> {
        let what = format!("{} {phase:?}", part.as_str());
        wait_for(&what, PATIENCE, || async {
            let state = self.part(part).await;
            let state = state.map_err(|error| format!("{error:#}"))?;
            if state.phase == phase && state.sha256 == sha256 {
                return Ok(state);
            }
            Err(format!("{state:?}"))
        })
        .await
    }
}
