//! `cargo xtask protocol-doc`: writes `docs/protocol.md`.
//!
//! The page is made from two sources alone. Kinds, members, types and their meaning are those of
//! the types in `protocol/src`; versions and examples are those of the golden files, which the
//! tests of crate `protocol` compare with what it writes. A message without an example, an example
//! of an unknown message, and a member that only one of the two sources has, are errors.

mod examples;
mod frames;
mod page;
mod source;
mod sources;
mod spelling;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail};

use crate::shell;
use examples::Example;
use page::Page;
use source::{Kind, Shape, Type};
use sources::Sources;

/// The page, below the root.
const PAGE: &str = "docs/protocol.md";

/// One link of the system.
struct Link {
    title: &'static str,
    /// Modules of the link itself: their heads and constants are on the page.
    modules: &'static [&'static str],
    /// Folders of golden files, one for each version.
    folders: &'static [&'static str],
    /// The golden file and the member in it that hold the version of a folder.
    version: Option<(&'static str, &'static str)>,
    sections: &'static [Section],
    /// A golden file with the text of every refusal.
    refusals: Option<&'static str>,
}

/// Messages whose golden files begin alike.
struct Section {
    title: &'static str,
    prefixes: &'static [&'static str],
    body: Body,
}

enum Body {
    /// The variants of these enums, one for each version. Member `type` tells which.
    Frames(&'static [&'static str]),
    Whole(&'static str),
}

/// Modules with types that several links use.
const SHARED: [&str; 5] = ["units", "trace", "time", "migration", "parts"];

const LINKS: [Link; 3] = [
    Link {
        title: "Agent and monitor",
        modules: &["monitor", "monitor_v2"],
        folders: &["monitor", "monitor_v2"],
        version: Some(("handshake_version", "version")),
        sections: &[
            Section {
                title: "Handshake: the agent's range",
                prefixes: &["handshake_range"],
                body: Body::Whole("VersionRange"),
            },
            Section {
                title: "Handshake: the monitor's answer",
                prefixes: &["handshake_version", "handshake_error"],
                body: Body::Whole("VersionResponse"),
            },
            Section {
                title: "From agent to monitor",
                prefixes: &["agent_"],
                body: Body::Frames(&["AgentBody", "AgentBodyV2"]),
            },
            Section {
                title: "From monitor to agent",
                prefixes: &["monitor_"],
                body: Body::Frames(&["MonitorBody", "MonitorBodyV2"]),
            },
        ],
        refusals: None,
    },
    Link {
        title: "Agent and scheduler",
        modules: &["permit"],
        folders: &["permit"],
        version: Some(("request_increase", "protoVersion")),
        sections: &[
            Section {
                title: "Request",
                prefixes: &["request_"],
                body: Body::Whole("AgentRequest"),
            },
            Section {
                title: "Answer",
                prefixes: &["response_"],
                body: Body::Whole("PluginResponse"),
            },
        ],
        refusals: Some("permit/errors.txt"),
    },
    Link {
        title: "Controller, runner and guest daemon",
        modules: &["runner"],
        folders: &["runner"],
        version: None,
        sections: &[
            Section {
                title: "Order of a size",
                prefixes: &["size_order"],
                body: Body::Whole("SizeOrder"),
            },
            Section {
                title: "Order to stop",
                prefixes: &["stop_order"],
                body: Body::Whole("StopOrder"),
            },
            Section {
                title: "State of a runner",
                prefixes: &["state_"],
                body: Body::Whole("RunnerState"),
            },
            Section {
                title: "State of a guest",
                prefixes: &["guest_state"],
                body: Body::Whole("GuestState"),
            },
        ],
        refusals: None,
    },
];

/// Writes the page.
pub(crate) fn run() -> Result<()> {
    let page = make()?;
    std::fs::write(shell::root().join(PAGE), page)?;
    shell::say(&format!("wrote {PAGE}"));
    Ok(())
}

/// What is wrong with the page on disk.
pub(crate) fn findings() -> Result<Vec<String>> {
    let page = match make() {
        Ok(page) => page,
        Err(error) => return Ok(vec![format!("{PAGE} cannot be made: {error:#}")]),
    };
    let path = shell::root().join(PAGE);
    let on_disk = std::fs::read_to_string(path).unwrap_or_default();
    Ok(difference(&on_disk, &page).into_iter().collect())
}

fn difference(on_disk: &str, made: &str) -> Option<String> {
    if on_disk == made {
        return None;
    }
    let same = on_disk.lines().zip(made.lines());
    let line = same.take_while(|(old, new)| old == new).count() + 1;
    Some(format!(
        "{PAGE}:{line}: differs from protocol/src and protocol/testdata: run \
         `cargo xtask protocol-doc`"
    ))
}

fn make() -> Result<String> {
    let mut page = Page::new();
    let mut named = Vec::new();
    for link in &LINKS {
        named.push(link_page(link, &mut page).with_context(|| link.title.to_owned())?);
    }
    types_page(named, &mut page)?;
    Ok(page.finish())
}

/// Writes a link, and returns its sources and the types that its messages name.
fn link_page(link: &Link, page: &mut Page) -> Result<(Sources, Vec<String>)> {
    let sources = Sources::read(&[link.modules, &SHARED].concat())?;
    let examples = Example::read_all(link.folders)?;
    let versions = versions(link, &examples)?;
    page.heading(2, link.title);
    for module in &sources.0[..link.modules.len()] {
        page.text(&module.doc);
    }
    page.constants(sources.0[..link.modules.len()].iter());
    let mut named = Vec::new();
    let mut used = BTreeSet::new();
    for section in link.sections {
        page.heading(3, section.title);
        let is_ours = |it: &&Example| section.prefixes.iter().any(|p| it.file.starts_with(p));
        let ours: Vec<&Example> = examples.iter().filter(is_ours).collect();
        used.extend(ours.iter().map(|example| &example.path));
        match section.body {
            Body::Frames(enums) => {
                for kind in frames::kinds(&sources, enums, &ours)? {
                    named.extend(kind.types());
                    page.frame(&kind, &versions);
                }
            }
            Body::Whole(name) => {
                let of_type = sources.find(name)?;
                examples::check_members(of_type, &ours)?;
                named.extend(types_of(of_type));
                page.whole(of_type, &versions, &ours);
            }
        }
    }
    if let Some(example) = examples.iter().find(|it| !used.contains(&it.path)) {
        bail!("{} is in no section", example.path);
    }
    if let Some(file) = link.refusals {
        let path = shell::root().join("protocol/testdata").join(file);
        page.heading(3, "Refusals");
        page.code("text", &std::fs::read_to_string(path)?);
    }
    Ok((sources, named))
}

/// The version of each folder, by the golden file that tells it.
fn versions(link: &Link, examples: &[Example]) -> Result<Vec<String>> {
    let Some((file, member)) = link.version else {
        return Ok(Vec::new());
    };
    let of_folder = |folder| {
        let is_it = |it: &&Example| it.folder == folder && it.file == file;
        let example = examples.iter().find(is_it);
        let version = example.and_then(|it| it.json.get(member));
        let version = version.with_context(|| format!("no version in {file}"))?;
        Ok(version.to_string())
    };
    (0..link.folders.len()).map(of_folder).collect()
}

/// The types that a type names.
fn types_of(of_type: &Type) -> Vec<String> {
    let mut kinds = Vec::new();
    match &of_type.shape {
        Shape::Wrapper => {}
        Shape::Object(members) => kinds.extend(members.iter().map(|it| &it.kind)),
        Shape::Choice { variants, .. } => {
            for variant in variants {
                match &variant.payload {
                    source::Payload::Nothing => {}
                    source::Payload::Of(kind) => kinds.push(kind),
                    source::Payload::Members(members) => {
                        kinds.extend(members.iter().map(|it| &it.kind));
                    }
                }
            }
        }
    }
    kinds.into_iter().filter_map(Kind::type_name).collect()
}

/// Writes every type that is named, and what these name in turn, once.
fn types_page(named: Vec<(Sources, Vec<String>)>, page: &mut Page) -> Result<()> {
    page.heading(2, "Types");
    let mut done: BTreeMap<String, String> = BTreeMap::new();
    for (sources, mut names) in named {
        names.reverse();
        while let Some(name) = names.pop() {
            let of_type = sources.find(&name)?;
            match done.get(&name) {
                Some(doc) if *doc == of_type.doc => continue,
                Some(_) => bail!("two links have a type {name} of their own"),
                None => {}
            }
            done.insert(name, of_type.doc.clone());
            names.extend(types_of(of_type).into_iter().rev());
            page.of_type(of_type);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_on_disk_is_what_code_and_golden_files_say() {
        let findings = findings().expect("reads");
        assert!(findings.is_empty(), "{findings:?}");
    }

    #[test]
    fn page_has_every_message_of_the_monitor_link() {
        let page = make().expect("is made");
        let sources = Sources::read(&["monitor", "monitor_v2"]).expect("reads");
        let types = sources.0.iter().flat_map(|module| &module.types);
        let words: BTreeSet<&String> = types.flat_map(|it| it.wire_types.values()).collect();
        assert!(words.len() >= 10, "{words:?}");
        for word in words {
            assert!(page.contains(&format!("#### `{word}`\n")), "{word}");
        }
    }

    #[test]
    fn a_page_that_differs_is_named_by_its_first_wrong_line() {
        assert_eq!(difference("a\nb\n", "a\nb\n"), None);
        for (on_disk, line) in [("a\nx\n", ":2:"), ("a\n", ":2:"), ("", ":1:")] {
            let finding = difference(on_disk, "a\nb\n").expect("differs");
            assert!(finding.contains(line), "{finding}");
        }
    }
}
