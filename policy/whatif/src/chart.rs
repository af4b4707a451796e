//! A VM's sizes and need over time, as SVG. Classes of the page's style sheet give the colours, so
//! that light and dark pages show it. Lines differ by their dashes too.

use std::fmt::Write as _;

use protocol::time::WallTime;

use crate::tried::Curves;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 240.0;
/// Place for the numbers beside and below.
const LEFT: f64 = 44.0;
const BOTTOM: f64 = 24.0;
const TOP: f64 = 8.0;
/// Lines of the grid.
const MARKS: u32 = 4;

struct Scale {
    from: i64,
    to: i64,
    top: f64,
}

impl Scale {
    fn of(curves: &Curves) -> Option<Self> {
        let all = [
            &curves.recorded,
            &curves.modelled,
            &curves.candidate,
            &curves.need,
        ];
        let points = || all.iter().flat_map(|curve| curve.iter());
        let (from, to) = (
            points().map(|(at, _)| *at).min()?,
            points().map(|(at, _)| *at).max()?,
        );
        let top = points().map(|(_, units)| *units).fold(1.0, f64::max);
        Some(Self {
            from,
            to,
            top: top.ceil(),
        })
    }

    fn x(&self, at: i64) -> f64 {
        let span = (self.to - self.from).max(1) as f64;
        LEFT + (WIDTH - LEFT) * (at - self.from) as f64 / span
    }

    fn y(&self, units: f64) -> f64 {
        TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - units / self.top)
    }

    /// A path that holds each value until the next point.
    fn path(&self, curve: &[(i64, f64)]) -> String {
        let mut path = String::new();
        for (number, (at, units)) in curve.iter().enumerate() {
            let (x, y) = (self.x(*at), self.y(*units));
            let _ = match number {
                0 => write!(path, "M{x:.1} {y:.1}"),
                _ => write!(path, "H{x:.1}V{y:.1}"),
            };
        }
        path
    }
}

/// The picture, with `label` as its name. Empty without a curve.
pub(crate) fn svg(curves: &Curves, label: &str) -> String {
    let Some(scale) = Scale::of(curves) else {
        return String::new();
    };
    let mut svg =
        format!("<svg role=\"img\" aria-label=\"{label}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\">");
    for mark in 0..=MARKS {
        let units = scale.top * f64::from(mark) / f64::from(MARKS);
        let y = scale.y(units);
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{WIDTH}\"/><text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{units:.1}</text>",
            LEFT - 6.0,
            y + 4.0
        );
        let at = scale.from + (scale.to - scale.from) * i64::from(mark) / i64::from(MARKS);
        let anchor = match mark {
            0 => "start",
            MARKS => "end",
            _ => "middle",
        };
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"{anchor}\">{}</text>",
            scale.x(at),
            HEIGHT - 6.0,
            clock(at)
        );
    }
    for (class, curve) in [
        ("need", &curves.need),
        ("truth", &curves.modelled),
        ("candidate", &curves.candidate),
    ] {
        let _ = write!(svg, "<path class=\"{class}\" d=\"{}\"/>", scale.path(curve));
    }
    svg + "</svg>"
}

/// Day, hour and minute of a calendar time, UTC.
fn clock(at: i64) -> String {
    let text = WallTime(at).to_string();
    let minute = text.get(5..16).unwrap_or(&text);
    minute.replace('T', " ")
}
