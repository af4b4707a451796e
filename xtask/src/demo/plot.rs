//! The plot of a demo: load, CPUs, memory and permits over time, as SVG and PNG.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::report::{Report, Sample};

const SIZE: (u32, u32) = (1200, 900);
const FONT: &str = "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf";

/// One line of a panel.
struct Series<'a> {
    name: &'a str,
    color: RGBColor,
    points: Vec<(f64, f64)>,
    /// Held until the next point instead of joined straight.
    steps: bool,
}

/// Writes `base.svg` and `base.png`.
pub(super) fn write(report: &Report, base: &Path) -> Result<()> {
    let font: &'static [u8] = Box::leak(
        std::fs::read(FONT)
            .with_context(|| format!("{FONT} is missing: install fonts-dejavu-core"))?
            .into_boxed_slice(),
    );
    plotters::style::register_font("sans-serif", FontStyle::Normal, font)
        .map_err(|_| anyhow!("{FONT} is not a usable font"))?;
    draw(
        report,
        SVGBackend::new(&base.with_extension("svg"), SIZE).into_drawing_area(),
    )?;
    draw(
        report,
        BitMapBackend::new(&base.with_extension("png"), SIZE).into_drawing_area(),
    )
}

fn draw<B: DrawingBackend>(report: &Report, area: DrawingArea<B, Shift>) -> Result<()>
where
    B::ErrorType: 'static,
{
    area.fill(&WHITE)?;
    let end = report
        .samples
        .last()
        .map_or(1.0, |sample| sample.t.max(1.0));
    let panels = area.split_evenly((3, 1));
    let of = |value: fn(&Sample) -> Option<f64>| -> Vec<(f64, f64)> {
        report
            .samples
            .iter()
            .filter_map(|sample| value(sample).map(|v| (sample.t, v)))
            .collect()
    };
    let throughput: Vec<(f64, f64)> = report.pgbench.iter().map(|p| (p.t, p.tps)).collect();
    let top = throughput.iter().map(|p| p.1).fold(1.0, f64::max);
    let clients: Vec<(f64, f64)> = report
        .pgbench
        .iter()
        .map(|p| (p.t, f64::from(p.clients)))
        .collect();
    let per_client = (top / clients.iter().map(|c| c.1).fold(1.0, f64::max))
        .max(1.0)
        .round();
    let client_name = format!("clients (x {per_client})");
    panel(
        &panels[0],
        "pgbench: transactions per second",
        end,
        &[
            Series {
                name: "tps",
                color: BLUE,
                points: throughput,
                steps: false,
            },
            Series {
                name: &client_name,
                color: RGBColor(160, 160, 160),
                points: clients.iter().map(|c| (c.0, c.1 * per_client)).collect(),
                steps: true,
            },
        ],
    )?;
    panel(
        &panels[1],
        "CPUs",
        end,
        &[
            Series {
                name: "load1",
                color: RGBColor(190, 190, 190),
                points: of(|s| s.load1.map(|l| l.min(10.0))),
                steps: false,
            },
            Series {
                name: "runnable load1",
                color: RGBColor(90, 90, 90),
                points: of(|s| s.runnable_load1.map(|l| l.min(10.0))),
                steps: false,
            },
            Series {
                name: "permit",
                color: RGBColor(230, 150, 0),
                points: of(|s| s.permit_cpu),
                steps: true,
            },
            Series {
                name: "CPUs in the guest",
                color: RED,
                points: of(|s| Some(s.cpu_now)),
                steps: true,
            },
        ],
    )?;
    panel(
        &panels[2],
        "memory, GiB",
        end,
        &[
            Series {
                name: "permit",
                color: RGBColor(230, 150, 0),
                points: of(|s| s.permit_mem_gib),
                steps: true,
            },
            Series {
                name: "memory in the guest",
                color: RGBColor(0, 130, 60),
                points: of(|s| Some(s.mem_now_gib)),
                steps: true,
            },
        ],
    )?;
    area.present()?;
    Ok(())
}

fn panel<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    title: &str,
    end: f64,
    lines: &[Series<'_>],
) -> Result<()>
where
    B::ErrorType: 'static,
{
    let top = lines
        .iter()
        .flat_map(|l| &l.points)
        .map(|p| p.1)
        .fold(0.1, f64::max)
        * 1.15;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(8)
        .x_label_area_size(28)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..end, 0.0..top)?;
    chart
        .configure_mesh()
        .x_desc("seconds")
        .label_style(("sans-serif", 13))
        .light_line_style(WHITE)
        .draw()?;
    for line in lines {
        let points = if line.steps {
            stepped(&line.points)
        } else {
            line.points.clone()
        };
        let style = line.color.stroke_width(2);
        chart
            .draw_series(LineSeries::new(points, style))?
            .label(line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .label_font(("sans-serif", 13))
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

/// Each value held until the next point.
fn stepped(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut steps = Vec::with_capacity(points.len() * 2);
    for (index, point) in points.iter().enumerate() {
        if index > 0 {
            steps.push((point.0, points[index - 1].1));
        }
        steps.push(*point);
    }
    steps
}

#[cfg(test)]
mod tests {
    #[test]
    fn values_are_held_until_the_next_point() {
        assert_eq!(
            super::stepped(&[(0.0, 1.0), (2.0, 3.0)]),
            [(0.0, 1.0), (2.0, 1.0), (2.0, 3.0)]
        );
    }
}
