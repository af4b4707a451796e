//! A census as a table for people.

use super::figures::{Census, Lengths, Lines};

/// Columns of the first column.
const NAME: usize = 28;

/// The lines of the table.
pub(super) fn lines(census: &Census) -> Vec<String> {
    let mut lines = Vec::new();
    let mut add = |name: &str, figure: String| lines.push(format!("{name:<NAME$}{figure}"));
    add("stub comments", census.stub_comments.to_string());
    let comments = &census.comments;
    add(
        "wide comment lines",
        format!(
            "{} of {} ({} %)",
            comments.over_100_columns, comments.lines, comments.share_percent
        ),
    );
    let chains = &census.shadow_chains;
    add(
        "shadow chains",
        format!(
            "{}, {} of them of three bindings or more",
            chains.count, chains.of_three_or_more
        ),
    );
    let circles = &census.circles;
    let largest = circles.largest_has.iter();
    let largest: String = largest
        .map(|file| format!("; the largest has {} with {file}", circles.largest))
        .collect();
    add(
        "circles",
        format!(
            "{}, {} of them of three files or more{largest}",
            circles.count, circles.of_three_or_more
        ),
    );
    add("dead citations", census.dead_citations.to_string());
    lines.extend(lengths("file", &census.files));
    lines.extend(lengths("function", &census.functions));
    lines.extend(components(census));
    lines.extend(doubled(census));
    lines
}

fn lengths(kind: &str, lengths: &Lengths) -> Vec<String> {
    let mut lines = Vec::new();
    for (place, longest) in [("", &lengths.in_code), (" of tests", &lengths.in_tests)] {
        let name = format!("longest {kind}{place}");
        let longest = longest.iter();
        lines.extend(longest.map(|it| format!("{name:<NAME$}{} {}", it.lines, it.place)));
    }
    let name = format!("{kind}s over {} lines", lengths.limit);
    lines.push(format!("{name:<NAME$}{}", lengths.over_limit));
    lines
}

fn components(census: &Census) -> Vec<String> {
    let row = |name: &str, lines: &Lines| {
        let Lines {
            code,
            comments,
            tests,
        } = lines;
        format!("{name:<NAME$}{code:>8} {comments:>8} {tests:>8}")
    };
    let head = ["code", "comments", "tests"].map(|it| format!("{it:>8}"));
    let mut lines = vec![format!("\n{:<NAME$}{}", "lines of", head.join(" "))];
    let components = census.components.iter();
    lines.extend(components.map(|(name, lines)| row(name, lines)));
    lines.push(row("all", &census.all_lines()));
    lines
}

fn doubled(census: &Census) -> Vec<String> {
    let mut lines = Vec::new();
    for (idea, files) in &census.doubled {
        lines.push(format!("\n{idea}: {} files, markers of each", files.len()));
        let row = |(file, count): (&String, &usize)| format!("{count:>4}  {file}");
        lines.extend(files.iter().map(row));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::fixture::census;
    use super::*;

    #[test]
    fn table_shows_each_figure() {
        let table = lines(&census()).join("\n");
        for line in [
            "stub comments               1",
            "wide comment lines          1 of 3 (33.3 %)",
            "shadow chains               1, 0 of them of three bindings or more",
            "circles                     0, 0 of them of three files or more",
            "dead citations              3",
            "longest file                10 a/src/y.rs",
            "longest file of tests       500 b/tests/c.rs",
            "files over 400 lines        1",
            "longest function            4 a/src/x.rs:2: x",
            "lines of                        code comments    tests",
            "a                                  8        2        7",
            "all                                9        2        7",
            "accept loops: 1 files, markers of each",
            "   1  b/src/lib.rs",
        ] {
            assert!(table.lines().any(|it| it == line), "{line}:\n{table}");
        }
    }
}
