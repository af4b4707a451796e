//! Formats of an answer: a table, a wider table, JSON and YAML.

use clap::ValueEnum;
use daemon_kit::exit::Exit;
use serde::Serialize;

use crate::fail::{Fail, Outcome};
use crate::terminal::{Paint, Tone, out};

/// How to print an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// Columns for people.
    #[default]
    Table,
    /// More columns for people.
    Wide,
    /// JSON; the shape is stable.
    Json,
    /// The same as YAML.
    Yaml,
}

/// Prints a value as JSON or YAML.
pub(crate) fn print_value<T: Serialize>(format: Format, value: &T) -> Outcome {
    out(render_value(format, value)?.trim_end());
    Ok(())
}

/// A value as YAML, or as JSON for all other formats. A table has no shape of its own.
pub(crate) fn render_value<T: Serialize>(format: Format, value: &T) -> Outcome<String> {
    let broken =
        |error: String| Fail::new(Exit::Bug, format!("the answer cannot be printed: {error}"));
    if format == Format::Yaml {
        serde_saphyr::to_string(value).map_err(|error| broken(error.to_string()))
    } else {
        serde_json::to_string_pretty(value).map_err(|error| broken(error.to_string()))
    }
}

/// A cell of a table: text with an optional tone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Cell {
    text: String,
    tone: Option<Tone>,
}

impl Cell {
    pub(crate) fn toned(tone: Tone, text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            tone: Some(tone),
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self {
            text: text.into(),
            tone: None,
        }
    }
}

/// A table of left-aligned text columns, separated by two blanks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    header: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new(header: &[&str]) -> Self {
        Self {
            header: header.iter().map(|name| (*name).to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. Missing cells are empty.
    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// Lines of text, the header first.
    pub(crate) fn lines(&self, paint: Paint) -> Vec<String> {
        let columns = self
            .rows
            .iter()
            .map(Vec::len)
            .chain([self.header.len()])
            .max()
            .unwrap_or(0);
        let width = |column: usize| {
            let header = self
                .header
                .get(column)
                .map_or(0, |name| name.chars().count());
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells
                .map(|cell| cell.text.chars().count())
                .chain([header])
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let header: Vec<Cell> = self
            .header
            .iter()
            .map(|name| Cell::toned(Tone::Strong, name.clone()))
            .collect();
        std::iter::once(&header)
            .chain(&self.rows)
            .map(|row| line(row, &widths, paint))
            .collect()
    }

    /// Prints the table to standard output.
    pub(crate) fn print(&self, paint: Paint) {
        for line in self.lines(paint) {
            out(&line);
        }
    }
}

fn line(row: &[Cell], widths: &[usize], paint: Paint) -> String {
    let mut text = String::new();
    for (column, cell) in row.iter().enumerate() {
        text.push_str(
            &cell
                .tone
                .map_or_else(|| cell.text.clone(), |tone| paint.paint(tone, &cell.text)),
        );
        if column + 1 < row.len() {
            let blanks = widths[column].saturating_sub(cell.text.chars().count()) + 2;
            text.extend(std::iter::repeat_n(' ', blanks));
        }
    }
    text.truncate(text.trim_end().len());
    text
}

/// A duration for people, such as `42s`, `5m` or `3h`, with a second unit where it helps (`1m30s`).
pub(crate) fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 if !seconds.is_multiple_of(60) => format!("{}m{}s", seconds / 60, seconds % 60),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..36_000 if seconds % 3_600 >= 60 => {
            format!("{}h{}m", seconds / 3_600, seconds % 3_600 / 60)
        }
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Milliseconds with two significant digits or more, such as `0.42`, `7.3` and `120`.
pub(crate) fn millis(micros: u64) -> String {
    match micros {
        0..1_000 => format!("0.{:02}", micros / 10),
        1_000..100_000 => format!("{}.{}", micros / 1_000, micros % 1_000 / 100),
        _ => format!("{}", micros / 1_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_have_no_trailing_blanks() {
        let mut table = Table::new(&["NAME", "PHASE", "REASON"]);
        table.row(vec![
            "pg".into(),
            Cell::toned(Tone::Good, "Running"),
            "".into(),
        ]);
        table.row(vec!["a-long-name".into(), "".into(), "µ".into()]);
        insta::assert_snapshot!(table.lines(Paint::PLAIN).join("\n"), @r"
        NAME         PHASE    REASON
        pg           Running
        a-long-name           µ
        ");
    }

    #[test]
    fn ages_read_like_kubectl() {
        let shown: Vec<String> = [0, 119, 120, 130, 600, 7_199, 7_200, 7_500, 36_000, 172_800]
            .map(age)
            .into();
        assert_eq!(
            shown,
            [
                "0s", "119s", "2m", "2m10s", "10m", "119m", "2h", "2h5m", "10h", "2d"
            ]
        );
    }

    #[test]
    fn milliseconds_keep_useful_digits() {
        let shown: Vec<String> = [0, 420, 7_345, 99_999, 120_400].map(millis).into();
        assert_eq!(shown, ["0.00", "0.42", "7.3", "99.9", "120"]);
    }

    #[test]
    fn yaml_and_json_carry_the_same_value() {
        let value = serde_json::json!({"items": [{"name": "pg", "port": 5432}]});
        let yaml = render_value(Format::Yaml, &value).unwrap();
        assert_eq!(
            serde_saphyr::from_str::<serde_json::Value>(&yaml).unwrap(),
            value
        );
        let json = render_value(Format::Json, &value).unwrap();
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&json).unwrap(),
            value
        );
    }
}
