//! Names of types that the glossary replaces, and module files of the old style.

use super::source;

/// A banned name, and the term that stands for it.
const BANNED: [(&str, &str); 46] = [
    ("Desk", "a runtime, a state or a queue"),
    ("Door", "TlsAcceptor"),
    ("Hall", "OpenConnections"),
    ("Seat", "Slot"),
    ("Seats", "ConnectionLimiter"),
    ("Stay", "Accepted"),
    ("Visit", "Accepted"),
    ("Told", "LastReported or a message"),
    ("Ask", "a request, named after its peer"),
    ("Asked", "a request, named after its peer"),
    ("Answer", "a response, named after its peer"),
    ("Reply", "a response, named after its peer"),
    ("Wish", "UpscaleRequest or DesiredNode"),
    ("Bench", "Context"),
    ("Means", "Context"),
    ("Ground", "Context or Inputs"),
    ("Place", "StateSlot"),
    ("Book", "UsageMeter"),
    ("Board", "PartRegistry"),
    ("Left", "Handoff"),
    ("Calm", "Stabilization"),
    ("Weather", "FaultSchedule"),
    ("Whims", "GuestFaults"),
    ("Dice", "Rng"),
    ("Scribe", "Recorder"),
    ("Fate", "an outcome"),
    ("Life", "QuotaBound"),
    ("Course", "CertificateState"),
    ("Outlook", "NextStep"),
    ("Trouble", "CertificateFailure"),
    ("Taker", "MigrationClaim"),
    ("TakenBy", "ClaimedBy"),
    ("Oddities", "anomaly counters"),
    ("Remark", "a pod warning"),
    ("Letter", "a Kubernetes Event"),
    ("News", "an update"),
    ("Note", "VmEvent"),
    ("Marks", "resource-version watermarks"),
    ("Reach", "watch progress"),
    ("Garbled", "malformed"),
    ("Noted", "an annotation value"),
    ("Verdict", "Decision"),
    ("Flight", "PermitRequest"),
    ("Ticket", "PermitRequest"),
    ("Harm", "a known TCG bug"),
    ("Room", "headroom or a component"),
];

/// Words that begin the definition of a type.
const DEFINES: [&str; 4] = ["struct ", "enum ", "trait ", "type "];

/// Banned names that a file defines: the number of the line, the name and its replacement.
pub(super) fn banned(text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let code = source::blanked(text);
    let defined = code.lines().enumerate().filter_map(|(number, line)| {
        let item = without_visibility(line.trim_start()).trim_start();
        let name = DEFINES.iter().find_map(|word| item.strip_prefix(word))?;
        let end = name.find(|c: char| !(c.is_alphanumeric() || c == '_'));
        let name = &name[..end.unwrap_or(name.len())];
        let (name, instead) = BANNED.iter().find(|(banned, _)| *banned == name)?;
        Some((number + 1, *name, *instead))
    });
    defined.collect()
}

/// An item without the `pub` or `pub(scope)` before it.
fn without_visibility(item: &str) -> &str {
    let Some(rest) = item.strip_prefix("pub") else {
        return item;
    };
    match rest.strip_prefix('(').and_then(|it| it.split_once(')')) {
        Some((_, rest)) => rest,
        None => rest,
    }
}

/// Whether a file is a module of the old style, below `src`.
pub(super) fn is_old_style(file: &str) -> bool {
    file.ends_with("/mod.rs") && file.contains("src/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn banned_name_of_a_type_is_found() {
        let text = "//! Desk\npub(super) struct Desk<T>(T);\nenum Deskless {}\nfn f(x: Told) {}\npub type Whims = u8;\n";
        let found: Vec<_> = banned(text).into_iter().map(|it| (it.0, it.1)).collect();
        assert_eq!(found, [(2, "Desk"), (5, "Whims")]);
    }

    #[test]
    fn module_file_of_the_old_style_is_found_below_src_alone() {
        assert!(is_old_style("agent/src/core/mod.rs"));
        assert!(!is_old_style("agent/tests/peers/mod.rs"));
        assert!(!is_old_style("agent/src/core.rs"));
    }
}
