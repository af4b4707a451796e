//! Messages that member `type` tells apart. An enum of each version has them as variants; the
//! golden files tell how their members are spelled and where they stand.

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::examples::Example;
use super::source::{Kind, Member, Payload, Shape, Variant};
use super::sources::Sources;

/// Members of every frame.
const ENVELOPE: [&str; 3] = ["type", "id", "content"];

/// One kind of message, in all versions.
pub(super) struct FrameKind<'a> {
    /// Value of member `type`.
    pub(super) word: String,
    /// What it means, by the version that says so.
    pub(super) docs: Vec<(usize, &'a str)>,
    pub(super) members: Vec<Placed<'a>>,
    pub(super) examples: Vec<&'a Example>,
}

/// A member at its place in the frame.
pub(super) struct Placed<'a> {
    pub(super) path: String,
    /// The first version that has it.
    pub(super) since: usize,
    pub(super) is_optional: bool,
    pub(super) kind: Kind,
    pub(super) member: &'a Member,
}

impl FrameKind<'_> {
    /// The first version that has it.
    pub(super) fn since(&self) -> usize {
        self.docs.first().map_or(0, |(version, _)| *version)
    }

    pub(super) fn types(&self) -> Vec<String> {
        let kinds = self.members.iter().map(|it| &it.kind);
        kinds.filter_map(Kind::type_name).collect()
    }
}

/// The kinds of messages of these enums, the enum of the first version first.
pub(super) fn kinds<'a>(
    sources: &'a Sources,
    enums: &[&str],
    examples: &[&'a Example],
) -> Result<Vec<FrameKind<'a>>> {
    let mut kinds: Vec<FrameKind<'a>> = Vec::new();
    for (version, name) in enums.iter().enumerate() {
        let of_type = sources.find(name)?;
        let Shape::Choice { variants, .. } = &of_type.shape else {
            bail!("{name} is no enum");
        };
        for variant in variants {
            // A variant without a word of its own holds the messages of an earlier version.
            let Some(word) = of_type.wire_types.get(&variant.name) else {
                continue;
            };
            let at = kinds.iter().position(|kind| kind.word == *word);
            let at = at.unwrap_or_else(|| {
                kinds.push(FrameKind::new(word, examples));
                kinds.len() - 1
            });
            kinds[at].add(version, variant, sources)?;
        }
    }
    for kind in &kinds {
        kind.check()?;
    }
    for example in examples {
        let word = example.json.get("type").and_then(Value::as_str);
        if !kinds.iter().any(|kind| Some(kind.word.as_str()) == word) {
            bail!("{}: no enum has a message {word:?}", example.path);
        }
    }
    Ok(kinds)
}

impl<'a> FrameKind<'a> {
    fn new(word: &str, examples: &[&'a Example]) -> Self {
        let is_it = |it: &&&Example| it.json.get("type").and_then(Value::as_str) == Some(word);
        Self {
            word: word.to_owned(),
            docs: Vec::new(),
            members: Vec::new(),
            examples: examples.iter().filter(is_it).copied().collect(),
        }
    }

    fn add(&mut self, version: usize, variant: &'a Variant, sources: &'a Sources) -> Result<()> {
        self.docs.push((version, &variant.doc));
        let members: &[Member] = match &variant.payload {
            Payload::Nothing => &[],
            Payload::Members(members) => members,
            Payload::Of(Kind::Type(name)) => match &sources.find(name)?.shape {
                Shape::Object(members) => members,
                _ => bail!("{} holds {name}, which is no object", variant.name),
            },
            Payload::Of(_) => bail!("{} holds a value without a name", variant.name),
        };
        for member in members {
            let path = self.path_of(&member.name)?;
            if self.members.iter().any(|it| it.path == path) {
                continue;
            }
            // A frame counts a time in a unit of its own.
            let kind = match path.to_lowercase().ends_with(&member.name) {
                true => member.kind.clone(),
                false => Kind::Json("whole number"),
            };
            self.members.push(Placed {
                kind,
                is_optional: member.is_optional || !self.examples.iter().all(|it| has(it, &path)),
                path,
                since: version,
                member,
            });
        }
        Ok(())
    }

    /// Where a member stands in the examples.
    fn path_of(&self, name: &str) -> Result<String> {
        let paths: Vec<String> = self.examples.iter().flat_map(|it| paths(it)).collect();
        let key = |path: &str| {
            let last = path.rsplit('.').next().unwrap_or(path);
            last.to_lowercase()
        };
        // A unit may stand behind the name, as in `again_ms`.
        let in_unit = |path: &str| {
            let key = key(path);
            let unit = key.strip_prefix(name).and_then(|it| it.strip_prefix('_'));
            matches!(unit, Some("ms" | "us" | "s" | "bytes"))
        };
        let exact = paths.iter().find(|path| key(path) == name);
        let found = exact.or_else(|| paths.iter().find(|path| in_unit(path)));
        let found =
            found.with_context(|| format!("no golden file of {} has a member {name}", self.word));
        found.cloned()
    }

    /// Fails without an example, and when an example has a member that no version has.
    fn check(&self) -> Result<()> {
        if self.examples.is_empty() {
            bail!("{} has no golden file", self.word);
        }
        for example in &self.examples {
            for path in paths(example) {
                if !self.members.iter().any(|it| it.path == path) {
                    bail!("{}: {} has no member {path}", example.path, self.word);
                }
            }
        }
        Ok(())
    }
}

/// The members of a frame that are its kind's own.
fn paths(example: &Example) -> Vec<String> {
    let top = example.json.keys();
    let own = top.filter(|key| !ENVELOPE.contains(&key.as_str()));
    let content = example.json.get("content").and_then(Value::as_object);
    let inner = content
        .into_iter()
        .flat_map(|it| it.keys())
        .map(|key| format!("content.{key}"));
    own.cloned().chain(inner).collect()
}

fn has(example: &Example, path: &str) -> bool {
    paths(example).iter().any(|it| it == path)
}

#[cfg(test)]
mod tests {
    use super::super::source::Module;
    use super::*;

    const SOURCE: &str = r#"
pub enum Body {
    Ask {
        /// Waits so long.
        again: Option<u64>,
    },
}

impl Body {
    pub fn wire_type(&self) -> &'static str {
        match self {
            Self::Ask { .. } => "Ask",
        }
    }
}
"#;

    fn example(text: &str) -> Example {
        Example {
            path: "x".to_owned(),
            file: "x".to_owned(),
            folder: 0,
            text: text.to_owned(),
            json: serde_json::from_str(text).expect("is JSON"),
        }
    }

    fn made(text: &str) -> Result<String> {
        let sources = Sources(vec![Module::read(SOURCE).expect("parses")]);
        let example = example(text);
        let kinds = kinds(&sources, &["Body"], &[&example])?;
        Ok(kinds[0].members[0].path.clone())
    }

    #[test]
    fn a_member_stands_where_the_golden_file_has_it() {
        let flat = made(r#"{"type":"Ask","again_ms":1,"id":2}"#);
        assert_eq!(flat.expect("is made"), "again_ms");
        let wrapped = made(r#"{"content":{"again":1},"type":"Ask","id":2}"#);
        assert_eq!(wrapped.expect("is made"), "content.again");
    }

    #[test]
    fn code_and_golden_files_that_disagree_are_an_error() {
        for (text, why) in [
            (r#"{"type":"Ask","id":2}"#, "has a member again"),
            (
                r#"{"type":"Ask","again":1,"more":1,"id":2}"#,
                "no member more",
            ),
            (r#"{"type":"Tell","id":2}"#, "golden file of Ask"),
        ] {
            let error = made(text).expect_err(text);
            assert!(error.to_string().contains(why), "{error}");
        }
        let sources = Sources(vec![Module::read(SOURCE).expect("parses")]);
        let [known, unknown] = [
            r#"{"type":"Ask","again":1,"id":2}"#,
            r#"{"type":"Tell","id":2}"#,
        ]
        .map(example);
        let error = kinds(&sources, &["Body"], &[&known, &unknown]).err();
        let error = error.expect("is refused").to_string();
        assert!(error.contains("no enum has a message"), "{error}");
    }
}
