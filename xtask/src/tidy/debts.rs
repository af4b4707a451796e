//! Findings of today that a rule lets pass, in `debts.txt`. The list may only shrink: more than is
//! listed is a finding, and so is less.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};

use crate::shell;

/// The list, below the root of the checkout.
const FILE: &str = "xtask/src/tidy/debts.txt";

/// How often each thing is found, by its key: a component, a file, or both.
pub(super) type Found = BTreeMap<String, usize>;

/// The list: `rule key amount reason` a line.
#[derive(Default)]
pub(super) struct Debts(BTreeMap<(String, String), usize>);

impl Debts {
    pub(super) fn read() -> Result<Self> {
        let text = std::fs::read_to_string(shell::root().join(FILE)).context(FILE)?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self> {
        let mut debts = BTreeMap::new();
        for line in text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            let mut words = line.split_whitespace();
            let mut next = || {
                words
                    .next()
                    .with_context(|| format!("{FILE}: {line:?} is short"))
            };
            let (rule, key) = (next()?.to_owned(), next()?.to_owned());
            let amount = next()?
                .parse()
                .with_context(|| format!("{FILE}: {line:?}"))?;
            next().with_context(|| format!("{FILE}: {line:?} has no reason"))?;
            debts.insert((rule, key), amount);
        }
        Ok(Self(debts))
    }

    /// How many findings of a rule are listed under a key.
    pub(super) fn of(&self, rule: &str, key: &str) -> usize {
        let key = (rule.to_owned(), key.to_owned());
        self.0.get(&key).copied().unwrap_or(0)
    }

    /// Entries of a rule that list more than is found.
    pub(super) fn paid(&self, rule: &str, found: &Found) -> Vec<String> {
        let of_rule = self.0.iter().filter(|((it, _), _)| it == rule);
        of_rule
            .filter_map(|((_, key), listed)| {
                let now = found.get(key).copied().unwrap_or(0);
                let mend = match now {
                    0 => "strike the entry".to_owned(),
                    now => format!("write {now}"),
                };
                (now < *listed)
                    .then(|| format!("{FILE}: {rule} {key}: {listed} are listed: {mend}"))
            })
            .collect()
    }
}

/// Writes the amounts that are found now into the list. It raises none and adds none.
pub(super) fn settle(found: &BTreeMap<&str, Found>) -> Result<()> {
    let file = shell::root().join(FILE);
    let text = std::fs::read_to_string(&file).context(FILE)?;
    std::fs::write(&file, settled(&text, found)).context(FILE)
}

fn settled(text: &str, found: &BTreeMap<&str, Found>) -> String {
    let mut kept = String::new();
    for line in text.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        let [rule, key, listed, reason] = words[..] else {
            kept.push_str(line);
            kept.push('\n');
            continue;
        };
        let now = found.get(rule).and_then(|all| all.get(key)).copied();
        match (now.unwrap_or(0), listed.parse::<usize>()) {
            (0, Ok(_)) => {}
            (now, Ok(listed)) => {
                kept.push_str(&format!("{rule} {key} {} {reason}\n", now.min(listed)));
            }
            (_, Err(_)) => {
                kept.push_str(line);
                kept.push('\n');
            }
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# head of the list\nstub agent 3 renamed crate by crate\nstub sim 1 same\n";

    fn found(agent: usize) -> Found {
        BTreeMap::from([("agent".to_owned(), agent)])
    }

    #[test]
    fn entry_that_lists_more_than_is_found_is_named() {
        let debts = Debts::parse(TEXT).expect("a list");
        assert_eq!(debts.of("stub", "agent"), 3);
        let paid = debts.paid("stub", &found(2));
        assert_eq!(
            paid,
            [
                format!("{FILE}: stub agent: 3 are listed: write 2"),
                format!("{FILE}: stub sim: 1 are listed: strike the entry"),
            ]
        );
        assert!(Debts::parse("stub agent 3\n").is_err());
    }

    #[test]
    fn settling_lowers_and_strikes_and_raises_nothing() {
        let all = |amount| BTreeMap::from([("stub", found(amount))]);
        let head = "# head of the list\nstub agent";
        assert_eq!(
            settled(TEXT, &all(2)),
            format!("{head} 2 renamed crate by crate\n")
        );
        assert_eq!(
            settled(TEXT, &all(9)),
            format!("{head} 3 renamed crate by crate\n")
        );
    }
}
