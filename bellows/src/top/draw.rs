//! Draws a frame. Pure.

use std::collections::VecDeque;

use super::frame::{Frame, HISTORY};
use crate::output::{Cell, Table, age};
use crate::terminal::{Paint, Tone};
use crate::view::resize;
use crate::view::units::{cores, memory};
use crate::view::vm::{VmView, phase_cell};

/// Width of a view that is printed once, in columns.
pub(crate) const ONCE_WIDTH: usize = 200;
/// Most resizes in the view.
const RESIZES: usize = 8;
/// Bars of a sparkline, lowest first.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Width of a gauge in characters.
const GAUGE: usize = 20;

/// The whole view, cut to `width` columns if nothing is painted.
pub(crate) fn draw(frame: &Frame, width: usize, paint: Paint) -> Vec<String> {
    let mut lines = vec![head(frame, paint)];
    for node in &frame.nodes {
        lines.push(format!(
            "node {}  CPU {} {}/{}   MEM {} {}/{}",
            paint.paint(if node.ready { Tone::Good } else { Tone::Bad }, &node.name),
            gauge(
                node.granted_cpu_milli.into(),
                node.allocatable_cpu_milli.into()
            ),
            cores(node.granted_cpu_milli),
            cores(node.allocatable_cpu_milli),
            gauge(node.granted_memory_bytes, node.allocatable_memory_bytes),
            memory(node.granted_memory_bytes),
            memory(node.allocatable_memory_bytes),
        ));
    }
    lines.push(String::new());
    if frame.vms.is_empty() {
        lines.push("no VMs; create one: bellows vm create pg".into());
    } else {
        lines.extend(vm_table(frame).lines(paint));
    }
    if let Some(text) = &frame.unasked {
        lines.push(String::new());
        lines.push(text.clone());
    } else if !frame.resizes.is_empty() {
        lines.push(String::new());
        let last: Vec<_> = frame.resizes.iter().take(RESIZES).cloned().collect();
        lines.extend(resize::table(&last, frame.at).lines(paint));
    }
    if paint == Paint::PLAIN {
        for line in &mut lines {
            *line = line.chars().take(width).collect();
        }
    }
    lines
}

fn head(frame: &Frame, paint: Paint) -> String {
    let autoscaled = frame.vms.iter().filter(|(vm, _)| vm.autoscaled).count();
    let resizing = frame
        .vms
        .iter()
        .filter(|(vm, _)| vm.phase == "Scaling")
        .count();
    paint.paint(
        Tone::Strong,
        &format!(
            "bellows  {}  {} VMs, {autoscaled} autoscaled, {resizing} resizing",
            frame.at,
            frame.vms.len()
        ),
    )
}

fn vm_table(frame: &Frame) -> Table {
    let mut table = Table::new(&[
        "VM",
        "PHASE",
        "CPU",
        "NOW/WANT/MAX",
        "MEMORY",
        "NOW/WANT/MAX",
        "LOAD",
        "PERMIT",
        "RESIZED",
        "REASON",
    ]);
    for (vm, trail) in &frame.vms {
        let permit = vm.decision.as_ref().and_then(|decision| decision.permit);
        let load = vm.decision.as_ref().and_then(|decision| decision.load1);
        let dash = || "-".to_owned();
        table.row(vec![
            vm.key().into(),
            phase_cell(&vm.phase),
            spark(&trail.cpu_milli, vm.cpu_milli.max.into()).into(),
            sizes(vm.cpu_milli.now, vm.cpu_milli.want, vm.cpu_milli.max, cores),
            spark(&trail.memory_bytes, vm.memory_bytes.max).into(),
            sizes(
                vm.memory_bytes.now,
                vm.memory_bytes.want,
                vm.memory_bytes.max,
                memory,
            ),
            load.map_or_else(dash, |load| format!("{load:.2}")).into(),
            permit
                .map_or_else(dash, |size| {
                    format!("{}/{}", cores(size.cpu.0), memory(size.mem.0))
                })
                .into(),
            vm.last_resize
                .as_ref()
                .map_or_else(dash, |resize| age(resize.age_s))
                .into(),
            vm.reason().into(),
        ]);
    }
    table
}

/// `now/want/max`, highlighted while now and want differ.
fn sizes<T: Copy + PartialEq>(now: Option<T>, want: T, max: T, show: impl Fn(T) -> String) -> Cell {
    let shown = now.map_or_else(|| "-".into(), &show);
    let text = format!("{shown}/{}/{}", show(want), show(max));
    if now == Some(want) {
        text.into()
    } else {
        Cell::toned(Tone::Warn, text)
    }
}

/// Sparkline of the last samples, right-aligned. A full bar is the largest size.
fn spark(values: &VecDeque<u64>, max: u64) -> String {
    let bar = |value: &u64| {
        if max == 0 || *value == 0 {
            return ' ';
        }
        let step = value.saturating_mul(8).div_ceil(max).clamp(1, 8);
        BARS[usize::try_from(step - 1).unwrap_or(7)]
    };
    let bars: String = values.iter().map(bar).collect();
    format!("{}{bars}", " ".repeat(HISTORY.saturating_sub(values.len())))
}

fn gauge(part: u64, whole: u64) -> String {
    let cells = u64::try_from(GAUGE).unwrap_or(0);
    let full = if whole == 0 {
        0
    } else {
        (u128::from(part) * u128::from(cells)).div_ceil(u128::from(whole))
    };
    let full = usize::try_from(full).unwrap_or(GAUGE).min(GAUGE);
    format!("[{}{}]", "#".repeat(full), ".".repeat(GAUGE - full))
}

/// One line per VM for logs: `2026-01-02T03:04:05Z vm=default/pg phase=Running cpu_milli=250 …`.
pub(crate) fn plain(frame: &Frame) -> Vec<String> {
    frame
        .vms
        .iter()
        .map(|(vm, _)| plain_line(frame, vm))
        .collect()
}

fn plain_line(frame: &Frame, vm: &VmView) -> String {
    let number = |value: Option<u64>| value.map_or_else(|| "-".into(), |value| value.to_string());
    let decision = vm.decision.as_ref();
    format!(
        "{} vm={} phase={} cpu_milli={} cpu_milli_want={} memory_bytes={} memory_bytes_want={} load1={} permit_cpu_milli={} reason={:?}",
        frame.at,
        vm.key(),
        if vm.phase.is_empty() {
            "New"
        } else {
            &vm.phase
        },
        number(vm.cpu_milli.now.map(u64::from)),
        vm.cpu_milli.want,
        number(vm.memory_bytes.now),
        vm.memory_bytes.want,
        decision
            .and_then(|decision| decision.load1)
            .map_or_else(|| "-".into(), |load| format!("{load:.2}")),
        number(
            decision
                .and_then(|decision| decision.permit)
                .map(|permit| permit.cpu.0.into())
        ),
        vm.reason(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::frame::History;
    use super::*;
    use crate::view::{node, vm};

    fn frame(unasked: Option<&str>) -> Frame {
        let mut history = History::default();
        history.push(vm::tests::sample_views());
        let pods = node::pods(&[node::tests::pod("pg-abcde", "Running")], vm::tests::now());
        Frame {
            at: vm::tests::now(),
            nodes: node::nodes(&[node::tests::node()], &pods, vm::tests::now()),
            vms: history.push(vm::tests::sample_views()),
            resizes: vm::tests::resizes(),
            unasked: unasked.map(str::to_owned),
        }
    }

    #[test]
    fn the_view_shows_nodes_vms_and_resizes() {
        insta::assert_snapshot!(
            "top",
            draw(&frame(None), ONCE_WIDTH, Paint::PLAIN).join("\n")
        );
        let lines = draw(&frame(Some("nobody to ask")), 60, Paint::PLAIN);
        assert!(lines.iter().all(|line| line.chars().count() <= 60));
        assert!(lines.iter().any(|line| line == "nobody to ask"));
        insta::assert_snapshot!("top_plain", plain(&frame(None)).join("\n"));
    }

    #[test]
    fn bars_and_gauges_stay_within_their_cells() {
        let values: VecDeque<u64> = [0, 250, 1000, 2000, 9000].into();
        assert_eq!(spark(&values, 2000).trim_start(), "▁▄██");
        assert_eq!(spark(&values, 2000).chars().count(), HISTORY);
        assert_eq!(spark(&values, 0).trim(), "");
        assert_eq!(gauge(0, 0), format!("[{}]", ".".repeat(GAUGE)));
        assert_eq!(gauge(5, 2), format!("[{}]", "#".repeat(GAUGE)));
        assert_eq!(gauge(1, 1_000_000), format!("[#{}]", ".".repeat(GAUGE - 1)));
    }
}
