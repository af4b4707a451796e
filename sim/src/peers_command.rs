//! `cargo xtask sim --peers N`: machines without a cluster.

use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};
use protocol::time::Span;
use sim::peers::{Measured, Options, death, join, split};

/// Options of machines without a cluster.
#[derive(Args)]
pub(crate) struct PeersArgs {
    /// Machines without a cluster, instead of the cluster's cores; 3 to 16
    #[arg(long, value_name = "N")]
    pub(crate) peers: Option<usize>,
    /// Sizes of the groups that lose each other, such as 3/2; without it one machine joins, and the
    /// leader dies
    #[arg(long, value_name = "A/B", requires = "peers")]
    partition: Option<String>,
    /// What follows the partition
    #[arg(long, value_enum, default_value_t = Then::Heal, requires = "partition")]
    then: Then,
    /// Messages that are lost, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 0, requires = "peers",
        value_parser = clap::value_parser!(u32).range(0..=50))]
    loss: u32,
}

/// What follows a partition.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Then {
    /// The groups find each other again.
    Heal,
}

impl PeersArgs {
    /// Runs the seeds. False if something did not hold.
    pub(crate) fn run(&self, machines: usize, seeds: std::ops::Range<u64>) -> Result<bool> {
        ensure!((3..=16).contains(&machines), "--peers must be 3 to 16");
        let parts = self
            .partition
            .as_deref()
            .map(|text| sizes(text, machines))
            .transpose()?;
        let mut all = Figures::default();
        for seed in seeds {
            let options = Options {
                seed,
                machines,
                loss: self.loss * 10_000,
                sabotage: None,
            };
            match &parts {
                Some(parts) => {
                    let Then::Heal = self.then;
                    // Shorter and longer than what a leader waits for lost machines.
                    for seconds in [20, 50, 200] {
                        all.add(
                            seed,
                            "partition",
                            split(options, parts, Span::from_secs(seconds)),
                        );
                    }
                }
                None => {
                    all.add(seed, "join", join(options));
                    all.add(seed, "death", death(options));
                }
            }
        }
        all.print();
        Ok(all.failed == 0)
    }
}

/// Sizes of the groups, which must be those of all machines.
fn sizes(text: &str, machines: usize) -> Result<Vec<usize>> {
    let sizes: Result<Vec<usize>, _> = text.split('/').map(str::parse).collect();
    match sizes {
        Ok(sizes) if sizes.iter().sum::<usize>() == machines && !sizes.contains(&0) => Ok(sizes),
        _ => bail!("--partition must be sizes like 3/2 that add up to --peers {machines}"),
    }
}

/// Figures of all runs.
#[derive(Default)]
struct Figures {
    runs: u64,
    failed: u64,
    moved: u32,
    known: Vec<(&'static str, Span)>,
    planned: Vec<Span>,
}

impl Figures {
    fn add(&mut self, seed: u64, what: &'static str, result: Result<Measured, String>) {
        self.runs += 1;
        match result {
            Ok(measured) => {
                self.moved += measured.moved;
                self.known.push((what, measured.known));
                if what == "death" {
                    self.planned.push(measured.planned);
                }
            }
            Err(error) => {
                self.failed += 1;
                super::say(&format!("seed {seed}, {what}: {error}"));
            }
        }
    }

    fn print(&mut self) {
        let line = format!(
            "{} runs, {} violations, {} members moved",
            self.runs, self.failed, self.moved
        );
        super::say(&line);
        for what in ["join", "death"] {
            let of = self.known.iter().filter(|(of, _)| *of == what);
            let mut times: Vec<Span> = of.map(|(_, time)| *time).collect();
            print_times(&format!("{what} known everywhere"), &mut times);
        }
        print_times("next plan after the death", &mut self.planned);
    }
}

fn print_times(what: &str, times: &mut [Span]) {
    times.sort();
    let last = times.len().saturating_sub(1);
    let (Some(most), Some(middle), Some(p99)) = (
        times.last(),
        times.get(last / 2),
        times.get(last * 99 / 100),
    ) else {
        return;
    };
    super::say(&format!(
        "{what}: p50 {:.1} s, p99 {:.1} s, most {:.1} s",
        middle.as_secs_f64(),
        p99.as_secs_f64(),
        most.as_secs_f64()
    ));
}
