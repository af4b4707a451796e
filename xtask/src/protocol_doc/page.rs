//! The page itself, in Markdown.

use super::examples::{Example, broken};
use super::frames::FrameKind;
use super::source::{Kind, Member, Module, Payload, Shape, Type, Variant};

/// Longest line of prose.
const WIDTH: usize = 100;

const HEAD: &str = "# Protocol

`cargo xtask protocol-doc` makes this page from the types in `protocol/src` and from the golden
files in `protocol/testdata`. `cargo xtask tidy` fails when the page differs from them. Change the
types, not the page.

A member that is *optional* may be absent or `null`. An example is what the parts write, byte for
byte, but for the line breaks of long ones.";

pub(super) struct Page(String);

impl Page {
    pub(super) fn new() -> Self {
        Self(format!("{HEAD}\n"))
    }

    pub(super) fn finish(self) -> String {
        self.0
    }

    pub(super) fn heading(&mut self, level: usize, title: &str) {
        self.0 += &format!("\n{} {title}\n", "#".repeat(level));
    }

    /// Paragraphs that are wrapped already.
    pub(super) fn text(&mut self, text: &str) {
        self.0 += &format!("\n{text}\n");
    }

    pub(super) fn code(&mut self, language: &str, text: &str) {
        self.0 += &format!("\n```{language}\n{}\n```\n", text.trim_end());
    }

    fn list(&mut self, items: impl IntoIterator<Item = String>) {
        for (number, item) in items.into_iter().enumerate() {
            if number == 0 {
                self.0.push('\n');
            }
            self.0 += &wrapped(&format!("* {item}"), "  ");
        }
    }

    pub(super) fn constants<'a>(&mut self, modules: impl Iterator<Item = &'a Module>) {
        let constants: Vec<_> = modules.flat_map(|module| &module.constants).collect();
        if constants.is_empty() {
            return;
        }
        self.heading(3, "Constants");
        self.list(
            constants
                .into_iter()
                .map(|it| format!("`{}` = `{}`: {}", it.name, it.value, one_line(&it.doc))),
        );
    }

    pub(super) fn frame(&mut self, kind: &FrameKind<'_>, versions: &[String]) {
        self.heading(4, &format!("`{}`", kind.word));
        let since = kind.since();
        for (number, (version, doc)) in kind.docs.iter().enumerate() {
            let word = if number == 0 { "Since" } else { "Also since" };
            let line = format!("{word} version {}. {}", versions[*version], one_line(doc));
            self.0.push('\n');
            self.0 += &wrapped(&line, "");
        }
        self.list(kind.members.iter().map(|it| {
            let mut notes = Vec::new();
            if it.is_optional {
                notes.push("optional".to_owned());
            }
            if it.since != since {
                notes.push(format!("since version {}", versions[it.since]));
            }
            item(&it.path, Some(&it.kind), &notes, &it.member.doc)
        }));
        self.examples(&kind.examples, versions);
    }

    pub(super) fn whole(&mut self, of_type: &Type, versions: &[String], examples: &[&Example]) {
        let since = versions.first();
        let since = since.map(|version| format!("Since version {version}. "));
        let line = since.unwrap_or_default() + &one_line(&of_type.doc);
        self.0.push('\n');
        self.0 += &wrapped(&line, "");
        self.shape(&of_type.shape);
        self.examples(examples, versions);
    }

    pub(super) fn of_type(&mut self, of_type: &Type) {
        self.heading(3, &format!("`{}`", of_type.name));
        self.0.push('\n');
        self.0 += &wrapped(&one_line(&of_type.doc), "");
        self.shape(&of_type.shape);
    }

    fn shape(&mut self, shape: &Shape) {
        match shape {
            Shape::Wrapper => {}
            Shape::Object(members) => self.list(members.iter().map(member)),
            Shape::Choice { tag, variants } => {
                self.list(variants.iter().map(|it| choice(tag.as_deref(), it)));
            }
        }
    }

    /// The examples. One that is the same in a later version is shown once.
    fn examples(&mut self, examples: &[&Example], versions: &[String]) {
        let mut shown: Vec<&str> = Vec::new();
        for example in examples {
            if shown.contains(&example.text.as_str()) {
                continue;
            }
            shown.push(&example.text);
            let version = match versions.get(example.folder) {
                Some(version) if versions.len() > 1 => format!(", version {version}"),
                _ => String::new(),
            };
            self.text(&format!("`{}`{version}:", example.path));
            self.code("json", &broken(&example.text));
        }
    }
}

fn member(member: &Member) -> String {
    let notes: Vec<String> = match member.is_optional {
        true => vec!["optional".to_owned()],
        false => Vec::new(),
    };
    item(&member.name, Some(&member.kind), &notes, &member.doc)
}

fn choice(tag: Option<&str>, variant: &Variant) -> String {
    if variant.is_rest {
        return format!("any other word: {}", one_line(&variant.doc));
    }
    let word = match tag {
        Some(tag) => format!("\"{tag}\": \"{}\"", variant.word),
        None => variant.word.clone(),
    };
    match &variant.payload {
        Payload::Nothing => item(&word, None, &[], &variant.doc),
        Payload::Of(kind) => item(&word, Some(kind), &[], &variant.doc),
        Payload::Members(members) => {
            let members = members.iter().map(|it| {
                let doc = one_line(&it.doc);
                let doc = doc.trim_end_matches('.');
                format!("`{}` ({}): {doc}", it.name, kind_text(&it.kind))
            });
            let members: Vec<String> = members.collect();
            let doc = format!("{} With {}.", variant.doc, members.join("; "));
            item(&word, None, &[], &doc)
        }
    }
}

fn item(name: &str, kind: Option<&Kind>, notes: &[String], doc: &str) -> String {
    let kind = kind.map(kind_text);
    let notes: Vec<&str> = kind.iter().chain(notes).map(String::as_str).collect();
    let notes = match notes.is_empty() {
        true => String::new(),
        false => format!(" ({})", notes.join(", ")),
    };
    format!("`{name}`{notes}: {}", one_line(doc))
}

fn kind_text(kind: &Kind) -> String {
    match kind {
        Kind::Json(word) => (*word).to_owned(),
        Kind::Type(name) => format!("[`{name}`](#{})", name.to_lowercase()),
        Kind::List(of) => format!("list of {}", kind_text(of)),
        Kind::Map(of) => format!("object of {} by name", kind_text(of)),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Lines of at most [`WIDTH`] columns where the words allow it, each but the first after `indent`.
fn wrapped(text: &str, indent: &str) -> String {
    let (mut out, mut line) = (String::new(), String::new());
    for word in text.split(' ') {
        let is_full = line.chars().count() + 1 + word.chars().count() > WIDTH;
        if is_full && !line.trim().is_empty() {
            out += line.trim_end();
            out.push('\n');
            line = indent.to_owned();
        } else if !line.is_empty() && !line.ends_with("  ") {
            line.push(' ');
        }
        line += word;
    }
    out + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_wrapped_and_keeps_its_words() {
        let text = format!("* {}", "word ".repeat(60).trim_end());
        let lines = wrapped(&text, "  ");
        assert!(lines.lines().count() > 2);
        assert!(lines.lines().all(|line| line.len() <= WIDTH), "{lines}");
        assert!(lines.lines().skip(1).all(|line| line.starts_with("  word")));
        assert_eq!(one_line(&lines), text);
    }
}
