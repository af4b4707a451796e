//! The golden files as examples.

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value};

use super::source::{Member, Shape, Type};
use crate::shell;

/// Longest line of JSON that stays one line.
const LINE: usize = 96;

/// A golden file of a message.
pub(super) struct Example {
    pub(super) path: String,
    /// Its name without `.json`.
    pub(super) file: String,
    /// Which of the link's folders it is in.
    pub(super) folder: usize,
    pub(super) text: String,
    pub(super) json: Map<String, Value>,
}

impl Example {
    /// The golden files of these folders, in the order of their names.
    pub(super) fn read_all(folders: &[&str]) -> Result<Vec<Self>> {
        let mut examples = Vec::new();
        for (number, folder) in folders.iter().enumerate() {
            let files = std::fs::read_dir(shell::root().join("protocol/testdata").join(folder))?;
            let mut names = Vec::new();
            for file in files {
                let name = file?.file_name().into_string().unwrap_or_default();
                names.extend(name.strip_suffix(".json").map(str::to_owned));
            }
            names.sort();
            for file in names {
                examples.push(Self::read(number, folder, file)?);
            }
        }
        Ok(examples)
    }

    fn read(number: usize, folder: &str, file: String) -> Result<Self> {
        let path = format!("{folder}/{file}.json");
        let text = std::fs::read_to_string(shell::root().join("protocol/testdata").join(&path))?;
        let json = serde_json::from_str(&text).with_context(|| path.clone())?;
        Ok(Self {
            path,
            file,
            folder: number,
            text,
            json,
        })
    }
}

/// Fails when an example of a type has a member that the type has not.
pub(super) fn check_members(of_type: &Type, examples: &[&Example]) -> Result<()> {
    let known: Vec<&str> = match &of_type.shape {
        Shape::Object(members) => members.iter().map(|it: &Member| it.name.as_str()).collect(),
        Shape::Choice { variants, .. } => variants.iter().map(|it| it.word.as_str()).collect(),
        Shape::Wrapper => Vec::new(),
    };
    if examples.is_empty() {
        bail!("{} has no golden file", of_type.name);
    }
    for example in examples {
        if let Some(member) = example.json.keys().find(|it| !known.contains(&it.as_str())) {
            bail!("{}: {} has no member {member}", example.path, of_type.name);
        }
    }
    Ok(())
}

/// JSON as it is written, broken into lines where it is long.
pub(super) fn broken(json: &str) -> String {
    let json = json.trim();
    if json.lines().all(|line| line.len() <= LINE) {
        return json.to_owned();
    }
    let (mut out, mut depth) = (String::new(), 0_usize);
    let (mut in_text, mut is_escaped) = (false, false);
    let mut letters = json.chars().peekable();
    while let Some(letter) = letters.next() {
        let is_quote = letter == '"' && !is_escaped;
        in_text ^= is_quote;
        is_escaped = letter == '\\' && !is_escaped;
        if in_text || is_quote {
            out.push(letter);
            continue;
        }
        let closes_at_once = matches!(letters.peek(), Some('}' | ']'));
        match letter {
            '{' | '[' if !closes_at_once => {
                depth += 1;
                out.push(letter);
                new_line(&mut out, depth);
            }
            ',' => {
                out.push(letter);
                new_line(&mut out, depth);
            }
            '}' | ']' if !out.ends_with(['{', '[']) => {
                depth = depth.saturating_sub(1);
                new_line(&mut out, depth);
                out.push(letter);
            }
            ':' => out.push_str(": "),
            _ if letter.is_whitespace() => {}
            _ => out.push(letter),
        }
    }
    out
}

fn new_line(out: &mut String, depth: usize) {
    out.push('\n');
    out.push_str(&"  ".repeat(depth));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_broken_and_says_the_same() {
        let text = format!(
            r#"{{"a":"{}","b":{{}},"c":[],"d":{{"e":[1,0.0],"f":"x, {{\"y\": 1}}"}}}}"#,
            "z".repeat(LINE)
        );
        let lines = broken(&text);
        assert_eq!(
            lines.lines().skip(2).collect::<Vec<_>>(),
            [
                r#"  "b": {},"#,
                r#"  "c": [],"#,
                r#"  "d": {"#,
                r#"    "e": ["#,
                "      1,",
                "      0.0",
                "    ],",
                r#"    "f": "x, {\"y\": 1}""#,
                "  }",
                "}",
            ]
        );
        let value = |text: &str| serde_json::from_str::<Value>(text).expect("is JSON");
        assert_eq!(value(&lines), value(&text));
        assert_eq!(broken("{\"a\":1}\n"), "{\"a\":1}");
    }
}
