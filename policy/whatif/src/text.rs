//! The report as text.

use crate::columns::Columns;
use crate::report::{Report, VmReport};

/// Titles of the columns, as text and page have them.
pub(crate) const TITLES: [&str; 10] = [
    "OOM-risk min",
    "CPU-short min",
    "unit-hours",
    "slack %",
    "resizes",
    "reversals",
    "refused shrinks",
    "cut permits",
    "censored min",
    "min",
];

/// Cells of a row, in the order of [`TITLES`].
pub(crate) fn cells(columns: &Columns) -> [String; 10] {
    [
        format!("{:.1}", columns.oom_risk_minutes),
        format!("{:.1}", columns.cpu_short_minutes),
        format!("{:.2}", columns.unit_hours),
        format!("{:.1}", columns.slack_percent),
        columns.resizes.to_string(),
        columns.reversals.to_string(),
        columns.refused_shrinks.to_string(),
        columns.cut_permits.to_string(),
        format!("{:.1}", columns.censored_minutes),
        format!("{:.1}", columns.minutes),
    ]
}

impl VmReport {
    /// The rows that stand beside each other.
    pub(crate) fn rows(&self) -> [(&'static str, [String; 10]); 2] {
        [
            ("in truth", cells(&self.modelled)),
            ("candidate", cells(&self.candidate)),
        ]
    }
}

impl Report {
    /// What was asked, and what came of it.
    #[must_use]
    pub fn questions_line(&self) -> String {
        let questions = &self.total.questions;
        let faults: Vec<String> = questions
            .faults
            .iter()
            .map(|(kind, count)| format!("{count} {kind}"))
            .collect();
        let faults = if faults.is_empty() {
            "no fault".to_owned()
        } else {
            faults.join(", ")
        };
        format!("{} questions to the candidate: {faults}.", questions.asked)
    }

    /// The report for people. Its first line is the model's error.
    #[must_use]
    pub fn text(&self) -> String {
        let mut rows: Vec<Vec<String>> = Vec::new();
        let mut head = vec!["VM".to_owned(), "DECIDES".to_owned()];
        head.extend(TITLES.iter().map(|title| title.to_uppercase()));
        rows.push(head);
        let each = self.vms.iter().map(|(name, vm)| (name.as_str(), vm));
        for (name, vm) in each.chain([("all", &self.total)]) {
            for (who, cells) in vm.rows() {
                let mut row = vec![name.to_owned(), who.to_owned()];
                row.extend(cells);
                rows.push(row);
            }
        }
        format!(
            "{}\n{}\n{}",
            self.first_line(),
            self.questions_line(),
            aligned(&rows)
        )
    }
}

/// Columns side by side: the first two to the left, numbers to the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| match column {
            0 | 1 => format!("{cell:width$}"),
            _ => format!("{cell:>width$}"),
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        text += line.trim_end();
        text.push('\n');
    }
    text
}
