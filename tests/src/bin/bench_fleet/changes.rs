//! A real guest under pgbench whose monitor is changed again and again.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bellows_tests::figures::{Figure, percentile};
use bellows_tests::guest_parts::{GuestParts, PATIENCE};
use bellows_tests::image::guest_program;
use bellows_tests::patience::wait_for;
use bellows_tests::publisher::sha256_of;
use bellows_tests::site::{BOOT_PATIENCE, postgres_vm};
use protocol::monitor::DEPLOYED_PORT;
use protocol::parts::{PartName, PartPhase};

use super::agent_log::AgentLog;
use super::dials::{Dial, Dials, Outcome};
use super::load::Load;

const VM: &str = "changed";
/// Length of the trials of good programs, seconds. They are kept at once, so that a slow machine
/// shows a long time without an agent in place of an end.
const TRIAL_S: u64 = 120;
const WITHOUT_MS_P50: f64 = 150.0;
const WITHOUT_MS_P99: f64 = 500.0;
/// Of the two programs that a guest keeps beside that of its image.
const ON_DISK_MIB: f64 = 12.0;
const POLL: Duration = Duration::from_millis(20);
/// Orders of one change. A guest that is busy refuses, and a fleet orders again too.
const ORDERS: u32 = 5;

/// The guest with its load, seen from its host.
pub(super) struct Rig {
    pub(super) parts: GuestParts,
    pub(super) dials: Dials,
    log: AgentLog,
    load: Load,
    /// Hash of the program that was kept last.
    pub(super) kept: String,
    boot_id: String,
    oom_kills: u64,
    restarts: u64,
    /// Orders that were refused and given again.
    repeated: u64,
}

/// Measurements of the changes.
#[derive(Default)]
struct Seen {
    without_ms: Vec<f64>,
    dials: Vec<Dial>,
    /// Dials of the agent that failed.
    failed_dials: u64,
}

impl Rig {
    /// Boots the guest and loads its database.
    pub(super) async fn boot() -> Result<Self> {
        eprintln!("==> boot a guest");
        let object = postgres_vm(VM, (1000, 1000, 1000), (1, 1, 1), true);
        let parts = GuestParts::boot(&object, TRIAL_S).await?;
        let guest = &parts.guest;
        wait_for("an answer of the database", BOOT_PATIENCE, || async {
            let session = guest.postgres().await;
            session.map(drop).map_err(|error| format!("{error:#}"))
        })
        .await?;
        let load = Load::start(guest)?;
        let dials = Dials::start(SocketAddr::new(guest.ip, DEPLOYED_PORT));
        let mut rig = Self {
            dials,
            log: AgentLog::new(parts.site.state_dir().join("up.log")),
            load,
            kept: String::new(),
            boot_id: guest.state().await?.boot_id,
            oom_kills: oom_kills(&parts).await?,
            restarts: 0,
            repeated: 0,
            parts,
        };
        rig.reaches_connection(1).await?;
        Ok(rig)
    }

    /// How the guest is accelerated.
    pub(super) async fn accel(&self) -> Result<String> {
        Ok(self.parts.site.runner(VM).await?.accel)
    }

    /// Changes the monitor `count` times, between two good programs.
    pub(super) async fn changes(&mut self, count: u32) -> Result<Vec<Figure>> {
        let programs = [guest_program("next-monitor")?, guest_program("vm-monitor")?];
        let mut seen = Seen::default();
        self.dials.take();
        let failed_dials = self.log.failed_dials;
        for (number, program) in (1..=count).zip(programs.iter().cycle()) {
            let began = Instant::now();
            let without_ms = self.change(program).await.with_context(|| {
                let log = self.parts.site.log_tail();
                format!("change {number}\n{log}\n")
            })?;
            seen.without_ms.push(without_ms);
            eprintln!(
                "change {number} of {count}: {:.1} s, {without_ms:.0} ms without an agent",
                began.elapsed().as_secs_f64()
            );
        }
        seen.dials = self.dials.take();
        seen.failed_dials = self.log.failed_dials - failed_dials;
        Ok(seen.figures())
    }

    /// Brings a program, waits for its agent and keeps it. Returns the time without an agent,
    /// milliseconds.
    async fn change(&mut self, program: &[u8]) -> Result<f64> {
        let (monitor, sha256) = (PartName::Monitor, sha256_of(program));
        let mut begun = self.begin(program).await;
        for _ in 1..ORDERS {
            let Err(refusal) = &begun else { break };
            eprintln!("ordered again: {refusal:#}");
            self.repeated += 1;
            begun = self.begin(program).await;
        }
        let (connections, before_ms) = begun?;
        self.parts.wait(monitor, PartPhase::Trial, &sha256).await?;
        self.reaches_connection(connections + 1).await?;
        self.parts.order(monitor, "keep").await?;
        let kept = self.parts.wait(monitor, PartPhase::Settled, &sha256);
        self.kept = kept.await?.sha256;
        self.counts_restart().await?;
        self.log.follow()?;
        Ok(self.log.without_ms - before_ms)
    }

    /// Brings a program and begins its trial. Returns the agent's connections and its time without
    /// one before it.
    async fn begin(&mut self, program: &[u8]) -> Result<(u64, f64)> {
        self.parts.bring(PartName::Monitor, program).await?;
        self.log.follow()?;
        let before = (self.log.connections, self.log.without_ms);
        self.parts.order(PartName::Monitor, "try").await?;
        Ok(before)
    }

    /// Waits until the agent has connected this many times.
    pub(super) async fn reaches_connection(&mut self, count: u64) -> Result<()> {
        let began = Instant::now();
        loop {
            self.log.follow()?;
            if self.log.connections >= count {
                return Ok(());
            }
            anyhow::ensure!(
                began.elapsed() < PATIENCE,
                "the agent did not connect in {PATIENCE:?}"
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// Connections of the agent so far.
    pub(super) fn connections(&mut self) -> Result<u64> {
        self.log.follow()?;
        Ok(self.log.connections)
    }

    /// Counts a restart of the guest since the last call.
    pub(super) async fn counts_restart(&mut self) -> Result<()> {
        let boot_id = self.parts.guest.state().await?.boot_id;
        if boot_id != self.boot_id {
            self.restarts += 1;
            self.boot_id = boot_id;
        }
        Ok(())
    }

    /// What the guest and its database have lost in the whole run, and the disk that programs take.
    pub(super) async fn remains(&mut self) -> Result<Vec<Figure>> {
        let killed = oom_kills(&self.parts).await?.saturating_sub(self.oom_kills);
        let (failed, broken) = self.load.failures()?;
        let none = |name, count| Figure::lower(name, as_f64(count), "", Some(0.0));
        let kib = self
            .parts
            .site
            .ssh(VM, "du -sk /var/lib/bellows/parts", None);
        let kib = kib.await?;
        let kib: f64 = kib.split_whitespace().next().context("no size")?.parse()?;
        let on_disk = Figure::lower(
            "programs_on_disk_mib",
            kib / 1024.0,
            "MiB",
            Some(ON_DISK_MIB),
        );
        Ok(vec![
            on_disk,
            Figure::lower("orders_repeated", as_f64(self.repeated), "", None),
            none("guest_restarts", self.restarts),
            none("connections_broken", broken),
            none("transactions_failed", failed),
            none("oom_kills", killed),
        ])
    }
}

impl Seen {
    fn dials(&self, outcome: Outcome) -> impl Iterator<Item = &Dial> {
        self.dials
            .iter()
            .filter(move |dial| dial.outcome == outcome)
    }

    fn figures(&self) -> Vec<Figure> {
        let count = |outcome| as_f64(self.dials(outcome).map(|_| 1).sum());
        let answer_ms = self
            .dials(Outcome::Answered)
            .map(|dial| dial.ended.duration_since(dial.began).as_secs_f64() * 1e3)
            .fold(0.0, f64::max);
        let without = |percent| percentile(&self.without_ms, percent);
        let (p50, p99) = (Some(WITHOUT_MS_P50), Some(WITHOUT_MS_P99));
        let none = |name, count| Figure::lower(name, count, "", Some(0.0));
        vec![
            Figure::lower("without_agent_ms_p50", without(50), "ms", p50).made_of(&self.without_ms),
            Figure::lower("without_agent_ms_p99", without(99), "ms", p99),
            Figure::lower("without_agent_ms_max", without(100), "ms", None),
            Figure::higher("dials_answered", count(Outcome::Answered), "", None),
            none("dials_refused", count(Outcome::Refused)),
            none("dials_unanswered", count(Outcome::Unanswered)),
            Figure::lower("dials_cut", count(Outcome::Cut), "", None),
            Figure::lower("dial_to_answer_ms_max", answer_ms, "ms", None),
            none("agent_dials_failed", as_f64(self.failed_dials)),
        ]
    }
}

/// Tasks that the guest's kernel has killed for want of memory since its boot.
async fn oom_kills(parts: &GuestParts) -> Result<u64> {
    let text = wait_for("a count of the kernel", BOOT_PATIENCE, || async {
        let line = "grep -w oom_kill /proc/vmstat";
        let text = parts.site.ssh(VM, line, None).await;
        text.map_err(|error| format!("{error:#}"))
    })
    .await?;
    let count = text.split_whitespace().nth(1);
    Ok(count.context("no oom_kill")?.parse()?)
}

#[expect(clippy::cast_precision_loss, reason = "counts, far below 2^52")]
fn as_f64(count: u64) -> f64 {
    count as f64
}
