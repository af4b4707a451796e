//! How long each test binary of a run took, from the output of cargo.

/// How many binaries are printed.
const SHOWN: usize = 20;

/// Reads the seconds of test binaries out of the lines of one cargo command.
#[derive(Debug, Default)]
pub(super) struct Seconds {
    running: Option<String>,
    ended: Vec<(String, f64)>,
    tests: usize,
}

impl Seconds {
    /// How many tests ran, those of documents included.
    pub(super) fn tests(&self) -> usize {
        self.tests
    }

    /// Takes the next line of the output.
    pub(super) fn hear(&mut self, line: &str) {
        self.tests += tests(line).unwrap_or(0);
        if let Some(name) = binary(line) {
            self.running = Some(name.to_owned());
        } else if let Some(seconds) = seconds(line) {
            self.ended
                .extend(self.running.take().map(|name| (name, seconds)));
        }
    }
}

/// The lines about the slowest binaries of several commands.
pub(super) fn slowest<'a>(all: impl Iterator<Item = &'a Seconds>) -> Vec<String> {
    let mut ended: Vec<&(String, f64)> = all.flat_map(|seconds| &seconds.ended).collect();
    ended.sort_by(|one, other| other.1.total_cmp(&one.1));
    let count = ended.len();
    let mut lines = vec![format!(
        "\n==> seconds of {count} test binaries, the slowest:"
    )];
    let shown = ended.iter().take(SHOWN);
    lines.extend(shown.map(|(name, seconds)| format!("    {seconds:7.1} s: {name}")));
    lines
}

/// Name of the binary that cargo starts: `a` in `Running tests/a.rs (target/debug/deps/a-0123)`.
fn binary(line: &str) -> Option<&str> {
    let path = line.trim_start().strip_prefix("Running ")?;
    let path = path.rsplit_once('(')?.1.strip_suffix(')')?;
    let file = path.rsplit('/').next()?;
    Some(file.rsplit_once('-').map_or(file, |(name, _)| name))
}

/// Tests that passed or failed, by the last line of a binary.
fn tests(line: &str) -> Option<usize> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let counts = counts.split("; ").filter_map(|part| part.split_once(' '));
    let ran = counts.filter(|(_, word)| ["passed", "failed"].contains(word));
    ran.map(|(count, _)| count.parse::<usize>().ok()).sum()
}

fn seconds(line: &str) -> Option<f64> {
    let end = line.strip_prefix("test result: ")?;
    let seconds = end.rsplit_once("finished in ")?.1.strip_suffix('s')?;
    seconds.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowest_binaries_are_shown_with_their_seconds() {
        let output = "
     Running unittests src/lib.rs (/cache/target/debug/deps/agent-4fe0)
test a ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.22s
     Running tests/cluster_vms.rs (/cache/target/debug/deps/cluster_vms-01ab)
test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 756.01s
     Running tests/ended.rs (/cache/target/debug/deps/ended-01ab)
error: test failed";
        let mut heard = Seconds::default();
        output.lines().for_each(|line| heard.hear(line));
        assert_eq!(heard.tests(), 3);
        assert_eq!(
            slowest([&heard, &Seconds::default()].into_iter()),
            [
                "\n==> seconds of 2 test binaries, the slowest:",
                "      756.0 s: cluster_vms",
                "        1.2 s: agent",
            ]
        );
    }
}
