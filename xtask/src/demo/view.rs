//! The live view of a demo, and its summary.

use std::io::IsTerminal as _;
use std::path::Path;

use super::report::{Progress, Report, Sample};
use crate::shell::say;

/// A bar of eight steps per unit.
const BLOCKS: [char; 8] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];
/// Samples shown in the sparkline.
const HISTORY: usize = 60;

/// Shows one sample a second: a block that is redrawn on a terminal, else a line.
pub(super) struct View {
    terminal: bool,
    drawn: bool,
    history: Vec<f64>,
}

impl View {
    pub(super) fn new() -> Self {
        Self {
            terminal: std::io::stdout().is_terminal(),
            drawn: false,
            history: Vec::new(),
        }
    }

    /// Shows a sample.
    pub(super) fn show(&mut self, doing: &str, sample: &Sample, bench: Option<&Progress>) {
        self.history.push(sample.cu());
        let tps = bench.map_or_else(String::new, |p| {
            format!("{:.0} tps at {:.0} ms", p.tps, p.latency_ms)
        });
        let load = sample
            .runnable_load1
            .or(sample.load1)
            .map_or_else(|| "-".to_owned(), |load| format!("{load:.2}"));
        if !self.terminal {
            say(&format!(
                "{:6.1} s  {doing:<36} {:<8} cpu {:.2}->{:.2}  mem {:.1}->{:.1} GiB  load {load}  {tps}",
                sample.t,
                sample.phase,
                sample.cpu_now,
                sample.cpu_want,
                sample.mem_now_gib,
                sample.mem_want_gib
            ));
            return;
        }
        if self.drawn {
            // Back to the first line of the block.
            say("\x1b[7A");
        }
        self.drawn = true;
        let line = |text: String| say(&format!("\x1b[2K{text}"));
        line(format!("{:6.1} s  {doing}", sample.t));
        line(format!("  phase   {}", sample.phase));
        line(format!(
            "  CPU     {:<24} {:.2} of {:.2} wanted",
            bar(sample.cpu_now, 0.125),
            sample.cpu_now,
            sample.cpu_want
        ));
        line(format!(
            "  memory  {:<24} {:.2} of {:.2} GiB wanted",
            bar(sample.mem_now_gib, 0.5),
            sample.mem_now_gib,
            sample.mem_want_gib
        ));
        line(format!("  load    {load:<8} {tps}"));
        line(format!("  units   {}", spark(&self.history)));
    }
}

/// `value` in units of `unit`, drawn in eighths.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a bar of at most 24 blocks"
)]
fn bar(value: f64, unit: f64) -> String {
    let eighths = (value / unit * 8.0).round().clamp(0.0, 24.0 * 8.0) as usize;
    let mut text = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        text.push(BLOCKS[eighths % 8 - 1]);
    }
    text
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an index below eight"
)]
fn spark(history: &[f64]) -> String {
    let from = history.len().saturating_sub(HISTORY);
    let top = history.iter().copied().fold(1.0, f64::max);
    let steps = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    history[from..]
        .iter()
        .map(|value| steps[((value / top * 7.0).round().clamp(0.0, 7.0)) as usize])
        .collect()
}

/// The last page.
pub(super) fn summary(report: &Report, file: &Path) {
    let tps = |f: fn(f64, f64) -> f64, start| report.pgbench.iter().map(|p| p.tps).fold(start, f);
    say("");
    say(&format!(
        "guest: kernel {}, QEMU {}, {}; booted in {:.1} s",
        report.guest_kernel, report.qemu_version, report.accel, report.boot_s
    ));
    say(&format!(
        "size: {} CU at first, {} CU at most, {} CU at the end (bounds {} to {})",
        report.samples.first().map_or(0.0, Sample::cu),
        report.cu.peak,
        report.cu.r#final,
        report.cu.min,
        report.cu.max
    ));
    say(&format!(
        "{} resizes, {} upscale requests by the monitor, {} shrinks refused, {} guest restarts, peak {:.0} tps",
        report.resizes.len(),
        report.upscale_requests,
        report.denied_downscales,
        report.guest_restarts,
        tps(f64::max, 0.0)
    ));
    if let Some(policy) = &report.policy {
        say(&format!(
            "policy: {} of {} answers equal the built-in goal, {} decided, {} faults",
            policy.equal, policy.answers, policy.decided, policy.faults
        ));
    }
    say("");
    say("milliseconds by stage:");
    say("  rev      t  decision  permit   patch monitor  controller     qmp  guest  change");
    for resize in &report.resizes {
        let ms = |stage: &str| {
            resize
                .stages_ms
                .get(stage)
                .map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"))
        };
        say(&format!(
            "{:5} {:6.1} {:>9} {:>7} {:>7} {:>7} {:>11} {:>7} {:>6}  {}",
            resize.revision,
            resize.t,
            ms("decision"),
            ms("permit"),
            ms("patch"),
            ms("monitor_approval"),
            ms("controller"),
            ms("qmp"),
            ms("guest_visible"),
            resize.change
        ));
    }
    say("");
    say(&format!("report: {}", file.display()));
    say(&format!(
        "plot:   {} and .png",
        file.with_extension("svg").display()
    ));
    say(if report.failures.is_empty() {
        "green"
    } else {
        "RED"
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_and_sparks_have_the_right_length() {
        assert_eq!(bar(0.25, 0.125), "██");
        assert_eq!(bar(0.0, 0.125), "");
        assert_eq!(spark(&[1.0, 8.0]), "▂█");
    }
}
