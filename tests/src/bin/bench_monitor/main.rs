//! The monitor's static binary, as an agent sees it.
//!
//! One process watches a folder of files like a cgroup v2 group's, which the benchmark writes. Two
//! more watch a memory cgroup of this machine and the machine itself, to measure the cost of the
//! kernel's real files. The benchmark uses only command line, pages and frames of the monitor.

mod bare;
mod client;
mod files;
mod process;
mod real_group;
mod timing;

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use bellows_tests::figures::{Benchmark, Figure, Machine, Output, percentile};
use bellows_tests::kubeconfig::install_crypto;
use clap::Parser;
use protocol::parts::control::SELF;
use serde_json::{Value, json};

use bare::Bare;
use client::Client;
use files::Group;
use process::Monitor;
use real_group::RealGroup;
use timing::{PATIENCE, pause};

/// Targets of the figures: the rows of SPECIFICATION.md.
const RSS_TARGET_BYTES: f64 = (4 << 20) as f64;
const CONTROL_TARGET_BYTES: f64 = (100 << 10) as f64;
const CPU_TARGET_S_PER_HOUR: f64 = 2.0;
const BINARY_TARGET_BYTES: f64 = 4e6;
const TRIGGER_TARGET_MS: f64 = 20.0;
/// Least time from the request to the threshold, whatever the monitor forecasts: its forecast looks
/// ahead by 100 ms at least, of which [`TRIGGER_TARGET_MS`] may pass before the request is here.
const AHEAD_TARGET_MS: f64 = 100.0 - TRIGGER_TARGET_MS;
const REPLY_TARGET_MS: f64 = 0.04;

/// Time over which CPU use is summed while only health checks happen.
const IDLE_WINDOW: Duration = Duration::from_secs(60);
/// Between two health checks, as the agent sends them.
const HEALTH_PERIOD: Duration = Duration::from_secs(5);
/// Monitors with and without a control socket that are compared.
const PAIRS: u32 = 9;
/// Replies measured, at a pace below the monitor's limit of frames.
const REPLIES: u32 = 500;
const REPLY_PACE: Duration = Duration::from_millis(20);
/// Requests in one burst, below the burst that the monitor reads at once, and how many bursts.
const BURST: u32 = 150;
const BURSTS: u32 = 8;
/// Time in which the monitor's allowance of a burst is whole again.
const BURST_PAUSE: Duration = Duration::from_millis(2500);
/// Memory of the simulated guest, its usable part, and its initial use.
const TOTAL_MIB: u64 = 1024;
const CALM_MIB: u64 = 100;
const MIB: u64 = 1 << 20;
/// Rate of a climb in bytes a second.
const CLIMB: f64 = (1_u64 << 30) as f64;
/// Climbs before the measurement. The monitor learns from them how long growth takes.
const WARM_UP: u32 = 8;
/// Least time between two requests for growth, with a margin.
const ASK_EVERY: Duration = Duration::from_millis(1200);
/// By how much the beginnings of climbs differ.
const PHASE: Duration = Duration::from_millis(31);
/// Between two writes of the climbing figures.
const WRITE_EVERY: Duration = Duration::from_millis(2);

/// Measures a monitor's binary: memory, CPU, size, replies, time from trigger to frame.
#[derive(Parser)]
struct Cli {
    /// The monitor to measure
    #[arg(long, required_unless_present_any = ["hold_memory", "answer_with"])]
    monitor: Option<PathBuf>,
    /// Be the process of the group that a monitor watches
    #[arg(long, hide = true)]
    hold_memory: bool,
    /// Be the bare program that a monitor's answers are held against, and read these files
    #[arg(long, hide = true, num_args = 1..)]
    answer_with: Option<Vec<PathBuf>>,
    /// Climbs that are measured
    #[arg(long, default_value_t = 20)]
    repeats: u32,
    #[command(flatten)]
    output: Output,
}

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    if cli.hold_memory {
        real_group::hold_memory()?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(files) = cli.answer_with {
        bare::answer_with(&files)?;
        return Ok(ExitCode::SUCCESS);
    }
    install_crypto();
    let binary = cli.monitor.context("no monitor to measure")?;
    let size = std::fs::metadata(&binary)
        .with_context(|| format!("{}", binary.display()))?
        .len();
    let mut figures = vec![Figure::lower(
        "binary_stripped_bytes",
        as_f64(size),
        "B",
        Some(BINARY_TARGET_BYTES),
    )];
    let group = Group::new(TOTAL_MIB * MIB, CALM_MIB * MIB)?;
    let monitor = Monitor::start(&binary, &group.arguments())?;
    let machine = Monitor::start(&binary, &[])?;
    let real = RealGroup::new()?;
    let of_group = Monitor::start(&binary, &real.arguments())?;
    figures.extend(idle(&of_group, &machine)?);
    figures.extend(replies_on_kernel_files(&of_group, &real)?);
    drop(of_group);
    figures.push(control_socket(&binary)?);
    figures.extend(replies(&monitor)?);
    figures.extend(climbs(&monitor, &group, cli.repeats)?);
    Benchmark {
        bench: "monitor".into(),
        machine: Machine::here("none")?,
        figures,
    }
    .finish(&cli.output)
}

/// CPU and memory of both processes while an agent is connected and only checks their health.
fn idle(group: &Monitor, machine: &Monitor) -> Result<Vec<Figure>> {
    tell(&format!("{} s of nothing", IDLE_WINDOW.as_secs()));
    let mut clients = [Client::connect(group)?, Client::connect(machine)?];
    for client in &mut clients {
        client.call("HealthCheck", &json!({}))?;
    }
    // The first readings after a connection come faster than those of an idle guest.
    pause(HEALTH_PERIOD);
    let before = (group.process().cpu()?, machine.process().cpu()?);
    let began = Instant::now();
    while began.elapsed() < IDLE_WINDOW {
        pause(HEALTH_PERIOD.min(IDLE_WINDOW.saturating_sub(began.elapsed())));
        for client in &mut clients {
            client.call("HealthCheck", &json!({}))?;
        }
    }
    let hours = began.elapsed().as_secs_f64() / 3600.0;
    let of_group = (group.process().cpu()? - before.0).as_secs_f64() / hours;
    let of_machine = (machine.process().cpu()? - before.1).as_secs_f64() / hours;
    let rss = as_f64(group.process().rss()?.max(machine.process().rss()?));
    let cpu = Some(CPU_TARGET_S_PER_HOUR);
    Ok(vec![
        Figure::lower("rss_connected_bytes", rss, "B", Some(RSS_TARGET_BYTES)),
        Figure::lower("cpu_s_per_hour_connected", of_group, "s", cpu),
        Figure::lower("cpu_s_per_hour_machine", of_machine, "s", cpu),
    ])
}

/// Resident memory of a monitor that can change its program, above that of one that cannot: the
/// median of pairs.
fn control_socket(binary: &Path) -> Result<Figure> {
    tell(&format!("{PAIRS} pairs with and without a control socket"));
    let folder = tempfile::tempdir()?;
    let start = |arguments: &[String]| -> Result<_> {
        let monitor = Monitor::start(binary, arguments)?;
        let mut client = Client::connect(&monitor)?;
        client.call("HealthCheck", &json!({}))?;
        Ok((monitor, client))
    };
    let mut pairs = Vec::new();
    for pair in 0..PAIRS {
        let socket = folder.path().join(format!("{pair}.sock"));
        let control = format!("--control={}", socket.display());
        pairs.push((start(&[control])?, start(&[])?));
        ask_itself(&socket)?;
    }
    pause(HEALTH_PERIOD);
    let mut more = Vec::new();
    for ((with, _), (without, _)) in &pairs {
        more.push(as_f64(with.process().rss()?) - as_f64(without.process().rss()?));
    }
    let target = Some(CONTROL_TARGET_BYTES);
    let median = percentile(&more, 50);
    Ok(Figure::lower("rss_control_socket_bytes", median, "B", target).made_of(&more))
}

/// Asks a monitor about itself, as the daemon of a guest does.
fn ask_itself(socket: &Path) -> Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let request = format!("GET {SELF} HTTP/1.1\r\nhost: monitor\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{SELF}: {answer}");
    Ok(())
}

/// Time to an answer where everything that a shrink is held against is read from the kernel, and
/// that of a bare program that reads the two longest of these files. The two take turns.
fn replies_on_kernel_files(monitor: &Monitor, group: &RealGroup) -> Result<Vec<Figure>> {
    tell(&format!("{REPLIES} replies on the kernel's files"));
    let mut client = Client::connect(monitor)?;
    monitor.wait_state("readings to decide by", |state| {
        let samples = state["samples"].as_array();
        samples.is_some_and(|all| all.len() >= 2)
    })?;
    let memory_stat = group.folder().join("memory.stat");
    let mut bare = Bare::start(&[&memory_stat, Path::new("/proc/meminfo")])?;
    let mut of_bare = Vec::new();
    let before = monitor.process().cpu()?;
    let took = paced_replies(&mut client, || {
        pause(REPLY_PACE / 2);
        of_bare.push(bare.timed_call()?.as_secs_f64() * 1e3);
        Ok(())
    })?;
    let cpu = monitor.process().cpu()? - before;
    let target = Some(REPLY_TARGET_MS);
    let (p50, p99) = (percentile(&took, 50), percentile(&took, 99));
    let floor = percentile(&of_bare, 50);
    let each = cpu.as_secs_f64() * 1e3 / f64::from(REPLIES);
    Ok(vec![
        Figure::lower("bare_reply_kernel_files_ms_p50", floor, "ms", None),
        Figure::lower("downscale_reply_over_bare_reply", p50 / floor, "", None),
        Figure::lower("downscale_reply_kernel_files_ms_p50", p50, "ms", target),
        Figure::lower("downscale_reply_kernel_files_ms_p99", p99, "ms", None),
        Figure::lower("downscale_reply_kernel_files_cpu_ms", each, "ms", None),
    ])
}

/// Times to the answers of requests at a steady pace, milliseconds. `between` fits into the pauses.
fn paced_replies(client: &mut Client, mut between: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
    let target = json!({ "target": { "cpu": 1, "mem": (TOTAL_MIB + 100) * MIB } });
    let mut took = Vec::new();
    for _ in 0..REPLIES {
        let began = Instant::now();
        let (time, answer) = client.timed_call("DownscaleRequest", &target)?;
        took.push(time.as_secs_f64() * 1e3);
        if answer["Ok"] != true {
            bail!("a shrink of an idle guest was not approved: {answer}");
        }
        between()?;
        pause(REPLY_PACE.saturating_sub(began.elapsed()));
    }
    Ok(took)
}

/// Time to a response with one request at a time, then with as many as the monitor accepts at once.
fn replies(monitor: &Monitor) -> Result<Vec<Figure>> {
    tell(&format!("{REPLIES} replies, {BURSTS} bursts"));
    let mut client = Client::connect(monitor)?;
    client.settle(monitor, CALM_MIB * MIB)?;
    let took = paced_replies(&mut client, || Ok(()))?;
    let target = json!({ "target": { "cpu": 1, "mem": (TOTAL_MIB + 100) * MIB } });
    let mut busy = Duration::ZERO;
    for _ in 0..BURSTS {
        pause(BURST_PAUSE);
        for _ in 0..BURST {
            let (time, _) = client.timed_call("DownscaleRequest", &target)?;
            busy += time;
        }
    }
    let rate = f64::from(BURST * BURSTS) / busy.as_secs_f64();
    Ok(vec![
        Figure::lower("downscale_reply_ms_p50", percentile(&took, 50), "ms", None),
        Figure::lower("downscale_reply_ms_p99", percentile(&took, 99), "ms", None),
        Figure::higher("requests_per_s", rate, "1/s", None),
    ])
}

/// A process that allocates 1 GiB/s from idle, again and again: how long after the forecast's own
/// condition holds the request is here, and how long before the threshold itself is reached.
fn climbs(monitor: &Monitor, group: &Group, repeats: u32) -> Result<Vec<Figure>> {
    tell(&format!("{repeats} climbs at 1 GiB/s"));
    let client = Client::connect(monitor)?;
    let (mut speaker, frames) = client.split()?;
    let (mut late, mut early) = (Vec::new(), Vec::new());
    for n in 0..WARM_UP + repeats {
        group.set_use(CALM_MIB * MIB)?;
        // A growth without effect. It ends the monitor's wait, so that the lead is minimal.
        let granted = json!({ "granted": { "cpu": 1, "mem": (TOTAL_MIB + 100) * MIB } });
        speaker.send("UpscaleNotification", &granted)?;
        // A request may be sent once a second, and looks of an idle guest are up to half a second
        // apart: begin anywhere in between.
        pause(ASK_EVERY + PHASE * (n % 17));
        monitor.wait_state("calm readings", |state| {
            let newest = state["samples"].as_array().and_then(|all| all.last());
            state["climb"] == 0 && newest.is_some_and(|used| *used == format!("{CALM_MIB}Mi"))
        })?;
        let state = monitor.state()?;
        while frames.try_recv().is_ok() {}
        let climb = climb(group, &frames, &state)?;
        if n >= WARM_UP {
            late.push(climb.after_condition_ms);
            early.push(climb.before_threshold_ms);
        }
    }
    Ok(vec![
        Figure::lower("trigger_to_frame_ms_p50", percentile(&late, 50), "ms", None),
        Figure::lower(
            "trigger_to_frame_ms_p99",
            percentile(&late, 99),
            "ms",
            Some(TRIGGER_TARGET_MS),
        ),
        Figure::higher(
            "frame_before_threshold_ms_p50",
            percentile(&early, 50),
            "ms",
            None,
        ),
        Figure::higher(
            "frame_before_threshold_ms_p1",
            percentile(&early, 1),
            "ms",
            Some(AHEAD_TARGET_MS),
        ),
    ])
}

struct Climbed {
    after_condition_ms: f64,
    before_threshold_ms: f64,
}

/// One climb from calm until the request is here.
fn climb(group: &Group, frames: &Receiver<(Instant, Value)>, state: &Value) -> Result<Climbed> {
    let lead_s = state["lead_ms"].as_f64().context("no lead_ms")? / 1e3;
    let calm = as_f64(CALM_MIB * MIB);
    let threshold = as_f64(TOTAL_MIB * MIB) * 0.85;
    let threshold_at = (threshold - calm) / CLIMB;
    let condition_at = threshold_at - lead_s;
    let began = Instant::now();
    loop {
        let step = Instant::now();
        let used = calm + began.elapsed().as_secs_f64() * CLIMB;
        group.set_use(as_u64(used.min(as_f64(TOTAL_MIB * MIB))))?;
        match frames.recv_timeout(WRITE_EVERY.saturating_sub(step.elapsed())) {
            Ok((at, frame)) if frame["type"] == "UpscaleRequest" => {
                let after = at.duration_since(began).as_secs_f64();
                return Ok(Climbed {
                    after_condition_ms: (after - condition_at) * 1e3,
                    before_threshold_ms: (threshold_at - after) * 1e3,
                });
            }
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("the monitor ended the connection"),
        }
        if began.elapsed() > PATIENCE {
            bail!("a climb past the threshold was not asked about: {state}");
        }
    }
}

/// Prints the name of the measurement.
#[expect(clippy::print_stdout, reason = "progress for the person who asked")]
fn tell(what: &str) {
    println!("==> {what}");
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
const fn as_f64(number: u64) -> f64 {
    number as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sizes below 2^53, never negative"
)]
const fn as_u64(number: f64) -> u64 {
    number as u64
}
