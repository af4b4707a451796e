//! The same guest with and without the walls around its QEMU and its network: boot time, and
//! throughput to and from the outside. Needs root.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result};
use bellows_tests::figures::{Benchmark, Figure, Machine, Output, spread};
use bellows_tests::outside::{COUNTING_PORT, HTTP_PORT, OTHER, Outside, SINK_PORT};
use bellows_tests::site::{BOOT_PATIENCE, Site, UpOptions, postgres_vm};
use clap::Parser;
use protocol::vm::VmPhase;

/// Times a guest's boot and its transfers, with its walls and without.
#[derive(Parser)]
struct Cli {
    /// Boots of each kind
    #[arg(long, default_value_t = 20)]
    repeats: u32,
    #[command(flatten)]
    output: Output,
}

/// Most boots and transfers per `bellows up`. The two kinds take turns.
const BOOTS_OF_A_TURN: u32 = 5;
/// Size of a transfer from the outside, and of one to it.
const DOWN_MIB: u32 = 128;
const UP_MIB: u32 = 16;
const VM: &str = "walls";

/// Measurements of one kind.
#[derive(Default)]
struct Samples {
    boot_s: Vec<f64>,
    down_mib_s: Vec<f64>,
    /// To the outside, 1 KiB at each call of the guest's kernel.
    up_mib_s: Vec<f64>,
    /// To the outside, 64 KiB at each call.
    blocks_up_mib_s: Vec<f64>,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    let mut outside = Outside::new("")?;
    let file = std::fs::File::create(outside.files().join("much"))?;
    file.set_len(u64::from(DOWN_MIB) << 20)?;
    let (mut walled, mut open) = (Samples::default(), Samples::default());
    let mut accel = String::new();
    let mut boots_left = cli.repeats;
    while boots_left > 0 {
        let boots = boots_left.min(BOOTS_OF_A_TURN);
        boots_left -= boots;
        for (network, samples) in [("passt", &mut walled), ("user", &mut open)] {
            accel = measure(network, boots, &mut outside, samples)
                .await
                .with_context(|| format!("--guest-network={network}"))?;
        }
    }
    Benchmark {
        bench: "walls".into(),
        machine: Machine::here(&accel)?,
        figures: figures(&walled, &open),
    }
    .finish(&cli.output)
}

/// Boots guests of one kind and measures their transfers. Prints each step, because a boot without
/// KVM takes half a minute.
async fn measure(
    network: &str,
    boots: u32,
    outside: &mut Outside,
    samples: &mut Samples,
) -> Result<String> {
    eprintln!("bellows up --guest-network={network}");
    let how = UpOptions {
        arguments: vec![format!("--guest-network={network}")],
        ..UpOptions::default()
    };
    let site = Site::fresh_with(how).await?;
    for boot in 1..=boots {
        if boot > 1 {
            site.bellows(&["vm", "delete", VM]).await?;
        }
        eprint!("  boot {boot} of {boots}: ");
        let booted_s = boot_one(&site).await?;
        samples.boot_s.push(booted_s);
        eprint!("{booted_s:.1} s; MiB/s from the outside: ");
        let down = format!("wget -q -O - http://{OTHER}:{HTTP_PORT}/much > /dev/null");
        let down = rate(&site, &down, DOWN_MIB).await?;
        samples.down_mib_s.push(down);
        eprint!("{down:.1}, to it by 1 KiB: ");
        outside.take_one()?;
        let up =
            format!("dd if=/dev/zero bs=1M count={UP_MIB} 2> /dev/null | nc {OTHER} {SINK_PORT}");
        let up = rate(&site, &up, UP_MIB).await?;
        samples.up_mib_s.push(up);
        eprint!("{up:.1}, by 64 KiB: ");
        outside.take_bytes(u64::from(UP_MIB) << 20)?;
        let blocks = rate(&site, &send_blocks(), UP_MIB).await?;
        samples.blocks_up_mib_s.push(blocks);
        eprintln!("{blocks:.1}");
    }
    Ok(site.runner(VM).await?.accel)
}

/// Seconds from a new VM object until its guest runs.
async fn boot_one(site: &Site) -> Result<f64> {
    let begun = Instant::now();
    site.create(&postgres_vm(VM, (1000, 1000, 1000), (1, 1, 1), false))
        .await?;
    site.wait_vm(VM, "phase Running", BOOT_PATIENCE, |vm| {
        vm.status
            .as_ref()
            .is_some_and(|status| status.phase == VmPhase::Running)
    })
    .await?;
    Ok(begun.elapsed().as_secs_f64())
}

/// A line of shell that sends with few calls of the kernel, and waits until all of it has arrived.
fn send_blocks() -> String {
    let blocks = UP_MIB * 16;
    let send = format!("dd if=/dev/zero bs=64k count={blocks} 2> /dev/null; read -r answer");
    format!("nc {OTHER} {COUNTING_PORT} -e sh -c '{send}'")
}

/// MiB a second of a transfer, by the guest's own clock.
async fn rate(site: &Site, transfer: &str, mib: u32) -> Result<f64> {
    let clock = "cut -d ' ' -f 1 /proc/uptime";
    let line = format!("{clock}; {transfer} || exit 1; {clock}");
    let said = site.ssh(VM, &line, None).await?;
    let times: Vec<f64> = said.lines().filter_map(|time| time.parse().ok()).collect();
    let [from, to] = times[..] else {
        anyhow::bail!("two times of {said:?}");
    };
    Ok(f64::from(mib) / (to - from))
}

fn figures(walled: &Samples, open: &Samples) -> Vec<Figure> {
    let median = |samples: &[f64]| spread(samples).1;
    let mut figures = Vec::new();
    for (kind, samples) in [("walled", walled), ("open", open)] {
        let name = |what: &str| format!("{kind}_{what}");
        figures.extend([
            Figure::lower(name("boot_s"), median(&samples.boot_s), "s", None)
                .made_of(&samples.boot_s),
            Figure::higher(
                name("down_mib_s"),
                median(&samples.down_mib_s),
                "MiB/s",
                None,
            )
            .made_of(&samples.down_mib_s),
            Figure::higher(name("up_mib_s"), median(&samples.up_mib_s), "MiB/s", None)
                .made_of(&samples.up_mib_s),
            Figure::higher(
                name("blocks_up_mib_s"),
                median(&samples.blocks_up_mib_s),
                "MiB/s",
                None,
            )
            .made_of(&samples.blocks_up_mib_s),
        ]);
    }
    let ratio = |of: fn(&Samples) -> &[f64]| median(of(walled)) / median(of(open));
    let boot = ratio(|samples| &samples.boot_s);
    let down = ratio(|samples| &samples.down_mib_s);
    let up = ratio(|samples| &samples.up_mib_s);
    let blocks_up = ratio(|samples| &samples.blocks_up_mib_s);
    figures.extend([
        Figure::lower("boot_ratio", boot, "x", Some(1.05)),
        Figure::higher("down_ratio", down, "x", Some(1.0)),
        Figure::higher("up_ratio", up, "x", Some(1.0)),
        Figure::higher("blocks_up_ratio", blocks_up, "x", Some(1.0)),
    ]);
    figures
}
