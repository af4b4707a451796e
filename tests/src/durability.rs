//! Writers in a VM's database while everything is killed repeatedly. Every acknowledged write must
//! exist afterwards.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use protocol::vm::VmPhase;
use tokio_postgres::Client;

use crate::guest::Guest;
use crate::patience::wait_for;
use crate::site::{BOOT_PATIENCE, Site};

/// Name of the VM whose database is written.
pub const VM: &str = "durable";
/// Connections that write.
const WRITERS: usize = 4;
/// Runs after which the run directories are removed, as by a reboot that loses them.
const REBOOT_EVERY: u32 = 3;
/// Shortest and longest time from the first write to the kill.
const KILL_AFTER_MS: (u64, u64) = (500, 5_000);

/// A site with a VM whose root disk stays.
pub struct Rig {
    /// Instance of `bellows up` that is killed and started again.
    pub site: Site,
    next: Arc<AtomicI64>,
    acknowledged: BTreeSet<i64>,
}

/// Result of one run.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// Whether the run directories were removed.
    pub rebooted: bool,
    /// Transactions that were acknowledged in this run.
    pub acknowledged: usize,
    /// Acknowledged transactions of all runs that are not there.
    pub lost: usize,
    /// From the start of `bellows up` to the first answer of the database.
    pub back_after: Duration,
}

impl Rig {
    /// Creates site, VM and table.
    ///
    /// # Errors
    /// When one of them cannot be made.
    pub async fn new() -> Result<Self> {
        let site = Site::fresh().await?;
        create(&site, VM, &[]).await?;
        let database = database(&site, VM).await?;
        database
            .batch_execute("create table acknowledged(id bigint primary key)")
            .await?;
        Ok(Self {
            site,
            next: Arc::default(),
            acknowledged: BTreeSet::new(),
        })
    }

    /// Writes, kills everything at a random moment, starts again and compares.
    ///
    /// # Errors
    /// When the VM does not come back by itself.
    pub async fn run(&mut self, number: u32) -> Result<Run> {
        let written = self.write_until_killed().await?;
        let rebooted = number.is_multiple_of(REBOOT_EVERY);
        if rebooted {
            std::fs::remove_dir_all(self.site.state_dir().join("vms"))?;
        }
        self.acknowledged.extend(&written);
        let began = Instant::now();
        self.site.restart_up().await?;
        let database = database(&self.site, VM).await?;
        let back_after = began.elapsed();
        let rows = database.query("select id from acknowledged", &[]).await?;
        let there: BTreeSet<i64> = rows.iter().map(|row| row.get(0)).collect();
        Ok(Run {
            rebooted,
            acknowledged: written.len(),
            lost: self.acknowledged.difference(&there).count(),
            back_after,
        })
    }

    /// The ids that the database had acknowledged when everything was killed.
    async fn write_until_killed(&mut self) -> Result<Vec<i64>> {
        let acknowledged = Arc::new(Mutex::new(Vec::new()));
        let ends = Arc::new(AtomicBool::new(false));
        let mut writers = Vec::new();
        for _ in 0..WRITERS {
            let client = database(&self.site, VM).await?;
            let (next, to) = (Arc::clone(&self.next), Arc::clone(&acknowledged));
            writers.push(tokio::spawn(write(client, next, to, Arc::clone(&ends))));
        }
        let (least, most) = KILL_AFTER_MS;
        let random = RandomState::new().hash_one(self.next.load(Ordering::Relaxed));
        tokio::time::sleep(Duration::from_millis(least + random % (most - least))).await;
        self.site.kill_up().await?;
        kill_all(self.site.state_dir())?;
        ends.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.abort();
        }
        let written = acknowledged
            .lock()
            .map_err(|_| anyhow::anyhow!("a writer panicked"))?;
        ensure!(!written.is_empty(), "nothing was written before the kill");
        Ok(written.clone())
    }
}

async fn write(
    client: Client,
    next: Arc<AtomicI64>,
    acknowledged: Arc<Mutex<Vec<i64>>>,
    ends: Arc<AtomicBool>,
) {
    while !ends.load(Ordering::Relaxed) {
        let id = next.fetch_add(1, Ordering::Relaxed);
        let insert = "insert into acknowledged values ($1)";
        if client.execute(insert, &[&id]).await.is_err() {
            return;
        }
        if let Ok(mut acknowledged) = acknowledged.lock() {
            acknowledged.push(id);
        }
    }
}

/// Creates a VM of one CPU and 1 GiB as the documents do, and waits until it runs.
///
/// # Errors
/// When it does not.
pub async fn create(site: &Site, name: &str, more: &[&str]) -> Result<()> {
    let mut words = vec!["vm", "create", name, "--no-autoscale", "--wait"];
    words.extend(["--cpu-min", "1", "--cpu-max", "1"]);
    words.extend(["--memory-min", "1Gi", "--memory-max", "1Gi"]);
    words.extend(more);
    site.bellows(&words).await.map(drop)
}

/// Connects to a VM's database as soon as it accepts connections.
///
/// # Errors
///
/// If it accepts none in time.
pub async fn database(site: &Site, name: &str) -> Result<Client> {
    let connect = || async {
        let vm = site.vm(name).await.map_err(|error| format!("{error:#}"))?;
        let status = vm.status.unwrap_or_default();
        if status.phase != VmPhase::Running {
            return Err(format!("{:?} {:?}", status.phase, status.conditions));
        }
        let ip = status.pod_ip.parse().map_err(|error| format!("{error}"))?;
        let guest = Guest::new(ip).map_err(|error| format!("{error:#}"))?;
        let client = guest
            .postgres()
            .await
            .map_err(|error| format!("{error:#}"))?;
        let answer = client.simple_query("select 1").await;
        answer.map_err(|error| error.to_string())?;
        Ok(client)
    };
    wait_for("an answer of the database", BOOT_PATIENCE, connect).await
}

/// `kill -9` of every runner and QEMU of a state directory.
///
/// # Errors
/// When the processes cannot be listed.
pub fn kill_all(state: &Path) -> Result<()> {
    for pid in processes(state)? {
        // One that has ended meanwhile is as good.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    Ok(())
}

/// Processes whose command lines name the directory of a VM of this state directory.
///
/// # Errors
/// When the processes cannot be listed.
pub fn processes(state: &Path) -> Result<Vec<i32>> {
    let marker = format!("{}/vms/", state.display());
    let mut found = Vec::new();
    for process in procfs::process::all_processes().context("list processes")? {
        let Ok(process) = process else { continue };
        let words = process.cmdline().unwrap_or_default();
        if words.iter().any(|word| word.contains(&marker)) {
            found.push(process.pid);
        }
    }
    Ok(found)
}
