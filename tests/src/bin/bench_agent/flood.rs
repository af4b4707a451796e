//! Requirement: S5. The agent while every tenth guest floods, stalls or breaks the protocol and
//! idle connections hold its pages, compared with the same agent before.

use std::time::{Duration, Instant};

use anyhow::Result;
use bellows_tests::figures::{Figure, percentile};
use tokio::net::TcpStream;

use super::guests::Temper;
use super::measure::tell;
use super::round::Round;

/// Open files of the agent.
pub(super) const DESCRIPTORS: u64 = 1024;
/// Idle connections to each of its pages.
const IDLE_CONNECTIONS: usize = 1_100;
/// Share of misbehaving guests, as one in `ONE_OF`.
const ONE_OF: usize = 10;
/// Target of the ratios.
const RATIO_TARGET: f64 = 1.2;
const WISH_TARGET_P50_MS: f64 = 100.0;
/// Time in which the first bursts end and those that flood are left for the first times.
const TURN: Duration = Duration::from_secs(60);

struct Costs {
    /// Used share of a processor.
    cpu: f64,
    /// Milliseconds from wish to patch of honest guests.
    wishes: Vec<f64>,
}

impl Round {
    /// Both measurements, and their ratios.
    pub(super) async fn flood(&self) -> Result<Vec<Figure>> {
        let quiet = self.costs().await?;
        // The first ones are those whose wishes are measured.
        let bad = self.vms.len().div_ceil(ONE_OF);
        let first = self.vms.len() - bad;
        anyhow::ensure!(
            self.samples <= first,
            "every VM is measured: ask for more VMs"
        );
        let tempers = [Temper::Floods, Temper::Stalls, Temper::Lies];
        for n in 0..bad {
            self.guests.turn(first + n, tempers[n % tempers.len()]);
        }
        let held = self.hold_pages().await;
        tell(&format!(
            "{bad} guests misbehave, {} connections are held",
            held.len()
        ));
        tokio::time::sleep(TURN).await;
        let attacked = self.costs().await?;
        drop(held);
        let at = |costs: &Costs, percent| percentile(&costs.wishes, percent);
        let ratio = |name: &str, part: f64, whole: f64| {
            Figure::lower(name, part / whole, "", Some(RATIO_TARGET))
        };
        Ok(vec![
            Figure::lower("cpu_quiet_fraction", quiet.cpu, "", None),
            Figure::lower("cpu_attacked_fraction", attacked.cpu, "", None),
            ratio("cpu_ratio", attacked.cpu, quiet.cpu),
            Figure::lower("wish_quiet_ms_p99", at(&quiet, 99), "ms", None),
            Figure::lower("wish_attacked_ms_p99", at(&attacked, 99), "ms", None),
            ratio("wish_p99_ratio", at(&attacked, 99), at(&quiet, 99)),
            Figure::lower(
                "wish_attacked_ms_p50",
                at(&attacked, 50),
                "ms",
                Some(WISH_TARGET_P50_MS),
            ),
        ])
    }

    async fn costs(&self) -> Result<Costs> {
        tell(&format!("{} s of nothing", self.window.as_secs()));
        let (before, began) = (self.agent.process.cpu()?, Instant::now());
        tokio::time::sleep(self.window).await;
        let cpu = self.agent.process.cpu()?.saturating_sub(before);
        Ok(Costs {
            cpu: cpu.as_secs_f64() / began.elapsed().as_secs_f64(),
            wishes: self.wish_times().await?,
        })
    }

    /// Opens idle connections to the agent's pages, as many as it accepts.
    async fn hold_pages(&self) -> Vec<TcpStream> {
        let mut held = Vec::new();
        for server in &self.agent.servers {
            for _ in 0..IDLE_CONNECTIONS {
                let dialled = TcpStream::connect(server.as_str());
                let dialled = tokio::time::timeout(Duration::from_secs(1), dialled).await;
                let Ok(Ok(stream)) = dialled else { break };
                held.push(stream);
            }
        }
        held
    }
}
