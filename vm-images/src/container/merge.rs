//! Parses the Dockerfile lines of a specification: `USER`, `WORKDIR`, `ENV`, `RUN` and `COPY`.
//!
//! `RUN` has no network, so that a build does not depend on remote content. `COPY` copies only
//! files of the specification.

use std::collections::BTreeMap;

/// Why a line is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("merge, line {line}: {problem}")]
pub struct MergeError {
    /// Line number, from 1.
    pub line: usize,
    /// The problem and its fix.
    pub problem: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) line: usize,
    pub(super) what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    /// User of the following `RUN` lines.
    User(String),
    Workdir(String),
    /// Variables of the following `RUN` lines.
    Env(BTreeMap<String, String>),
    /// A program and its arguments.
    Run(Vec<String>),
    /// Copies files into the image.
    Copy {
        from: Vec<String>,
        to: String,
        mode: Option<u32>,
        owner: Option<String>,
    },
}

/// Parses the lines. `files` are the files that may be copied.
pub(super) fn parse(
    text: &str,
    files: &BTreeMap<String, Vec<u8>>,
) -> Result<Vec<Instruction>, MergeError> {
    let mut instructions = Vec::new();
    let mut lines = text
        .lines()
        .enumerate()
        .map(|(number, line)| (number + 1, line));
    while let Some((line, first)) = lines.next() {
        if first.trim().is_empty() || first.trim_start().starts_with('#') {
            continue;
        }
        let mut whole = first.trim().to_owned();
        while let Some(begun) = whole.strip_suffix('\\') {
            whole = begun.to_owned();
            let Some((_, next)) = lines.next() else {
                break;
            };
            // Comments and empty lines inside a continued line are skipped.
            if next.trim().is_empty() || next.trim_start().starts_with('#') {
                whole.push('\\');
                continue;
            }
            whole.push_str(next.trim_end());
        }
        let (word, rest) = whole
            .split_once(char::is_whitespace)
            .unwrap_or((&whole, ""));
        let what = instruction(word, rest.trim(), files);
        let what = what.map_err(|problem| MergeError { line, problem })?;
        instructions.push(Instruction { line, what });
    }
    Ok(instructions)
}

fn instruction(word: &str, rest: &str, files: &BTreeMap<String, Vec<u8>>) -> Result<What, String> {
    if rest.is_empty() {
        return Err(format!("{word} of nothing"));
    }
    match word.to_ascii_uppercase().as_str() {
        "USER" => Ok(What::User(rest.to_owned())),
        "WORKDIR" => Ok(What::Workdir(rest.to_owned())),
        "ENV" => env(rest).map(What::Env),
        "RUN" if rest.contains("<<") && !rest.contains("<<<") => {
            Err("documents in the text (<<) are not supported: put them into files".to_owned())
        }
        "RUN" if rest.starts_with("--") => {
            Err("flags of RUN are not supported: leave them out".to_owned())
        }
        "RUN" => Ok(What::Run(match exec_form(rest) {
            Some(words) => words,
            None => ["/bin/sh", "-c", rest].map(str::to_owned).to_vec(),
        })),
        "COPY" => copy(rest, files),
        _ => Err(format!(
            "{word} is not supported, only USER, WORKDIR, ENV, RUN and COPY: do it in the base image"
        )),
    }
}

fn exec_form(rest: &str) -> Option<Vec<String>> {
    let words: Vec<String> = serde_json::from_str(rest).ok()?;
    (!words.is_empty()).then_some(words)
}

fn copy(rest: &str, files: &BTreeMap<String, Vec<u8>>) -> Result<What, String> {
    let (mut mode, mut owner) = (None, None);
    let mut rest = rest;
    while rest.starts_with("--") {
        let (flag, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        rest = after.trim_start();
        match flag.split_once('=') {
            Some(("--chmod", digits)) => {
                let bits = u32::from_str_radix(digits, 8)
                    .ok()
                    .filter(|bits| *bits <= 0o7777);
                mode = Some(bits.ok_or(format!("--chmod={digits} is not a mode in octal digits"))?);
            }
            Some(("--chown", name)) => owner = Some(name.to_owned()),
            Some(("--from", stage)) => {
                return Err(format!(
                    "--from={stage}: there are no stages; take files of the specification"
                ));
            }
            _ => return Err(format!("COPY does not know {flag}")),
        }
    }
    let mut words = match exec_form(rest) {
        Some(words) => words,
        None => rest.split_whitespace().map(str::to_owned).collect(),
    };
    let to = words.pop().unwrap_or_default();
    if words.is_empty() {
        return Err("COPY needs a file and a place".to_owned());
    }
    if words.len() > 1 && !to.ends_with('/') {
        return Err(
            "several files can be copied into a directory only: end it with '/'".to_owned(),
        );
    }
    for name in &mut words {
        *name = name.trim_start_matches("./").to_owned();
        if !files.contains_key(name) {
            return Err(format!("COPY {name}: the specification has no such file"));
        }
    }
    Ok(What::Copy {
        from: words,
        to,
        mode,
        owner,
    })
}

/// Parses `NAME=value OTHER="two words"`, or the older form `NAME the rest`.
fn env(rest: &str) -> Result<BTreeMap<String, String>, String> {
    let name = rest.split(char::is_whitespace).next().unwrap_or_default();
    if !name.contains('=') {
        let value = rest[name.len()..].trim();
        return Ok(BTreeMap::from([(name.to_owned(), value.to_owned())]));
    }
    let mut variables = BTreeMap::new();
    for word in words(rest)? {
        match word.split_once('=') {
            Some((name, value)) if !name.is_empty() => {
                variables.insert(name.to_owned(), value.to_owned());
            }
            _ => return Err(format!("ENV {word}: NAME=value is needed")),
        }
    }
    Ok(variables)
}

/// Splits a text into words, as a shell does. Quotes and backslashes are removed.
fn words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (Some(open), c) if c == open => quote = None,
            (None | Some('"'), '\\') => word.get_or_insert_default().extend(chars.next()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed".to_owned());
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<What>, MergeError> {
        let files = BTreeMap::from([("a.conf".to_owned(), vec![]), ("b".to_owned(), vec![])]);
        let all = parse(text, &files)?;
        Ok(all.into_iter().map(|one| one.what).collect())
    }

    /// Requirement: N46
    #[test]
    fn lines_of_a_merge_are_read() {
        let all = parsed(
            "# tools\nUSER root\nRUN set -e \\\n    && adduser vm-monitor \\\n    # with a remark\n    && true\n\
             RUN [\"/bin/x\", \"a b\"]\nENV A=1 B=\"two words\"\nENV C the rest\nWORKDIR /srv\n\
             COPY --chmod=0755 --chown=1:2 a.conf /etc/a.conf\ncopy a.conf ./b /etc/\n",
        )
        .unwrap();
        let What::Run(shell) = &all[1] else {
            panic!("{all:?}")
        };
        assert_eq!(shell[..2], ["/bin/sh", "-c"]);
        assert!(
            shell[2].contains("adduser vm-monitor") && shell[2].ends_with("&& true"),
            "{shell:?}"
        );
        assert!(!shell[2].contains("remark"), "{shell:?}");
        assert_eq!(all[2], What::Run(vec!["/bin/x".into(), "a b".into()]));
        let env = |pairs: &[(&str, &str)]| {
            What::Env(
                pairs
                    .iter()
                    .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                    .collect(),
            )
        };
        assert_eq!(all[3], env(&[("A", "1"), ("B", "two words")]));
        assert_eq!(all[4], env(&[("C", "the rest")]));
        let What::Copy {
            from, mode, owner, ..
        } = &all[6]
        else {
            panic!("{all:?}")
        };
        assert_eq!(
            (from.len(), *mode, owner.as_deref()),
            (1, Some(0o755), Some("1:2"))
        );
        assert!(matches!(&all[7], What::Copy { from, .. } if from.len() == 2));
    }

    /// Requirement: N46
    #[test]
    fn unsupported_line_of_a_merge_is_named() {
        for (text, line, words) in [
            ("\nFROM alpine", 2, "FROM is not supported"),
            ("COPY --from=builder /x /y", 1, "there are no stages"),
            ("COPY gone /y", 1, "no such file"),
            ("COPY a.conf", 1, "a file and a place"),
            ("COPY a.conf b /etc", 1, "end it with '/'"),
            ("COPY --chmod=9 a.conf /etc", 1, "octal"),
            ("RUN --mount=x y", 1, "flags of RUN"),
            ("USER", 1, "of nothing"),
            ("ENV A=\"x", 1, "not closed"),
            ("ENV A=1 B", 1, "NAME=value"),
        ] {
            let error = parsed(text).unwrap_err();
            assert_eq!(error.line, line, "{text}");
            assert!(error.problem.contains(words), "{text}: {error}");
        }
    }
}
