//! Start of a scheduler: its addresses, and the wait until it is ready.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bellows_tests::patience::wait_for;
use serde_json::Value;

/// Longest time until a scheduler is ready.
const START: Duration = Duration::from_secs(300);

/// Addresses of the permit server and of the readiness page.
pub(super) fn addresses(line: &str) -> Result<(SocketAddr, String)> {
    let said: Value = serde_json::from_str(line)?;
    let permits = said["permits"].as_str().context("no permit port")?;
    let metrics = said["metrics"].as_str().context("no metrics port")?;
    Ok((permits.parse()?, format!("http://{metrics}/readyz")))
}

pub(super) async fn until_ready(url: &str) -> Result<()> {
    let http = reqwest::Client::new();
    wait_for("a scheduler that is ready", START, || async {
        match http.get(url).send().await {
            Ok(answer) if answer.status() == 200 => Ok(()),
            Ok(answer) => Err(answer.text().await.unwrap_or_default()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await
}
