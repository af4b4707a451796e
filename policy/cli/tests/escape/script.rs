//! The scripts: the files of `hostile/`, and those that are long and alike.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::generated;

const FILES: [(&str, &str); 7] = [
    ("loops", include_str!("../hostile/loops.toml")),
    ("memory", include_str!("../hostile/memory.toml")),
    ("patterns", include_str!("../hostile/patterns.toml")),
    ("escapes", include_str!("../hostile/escapes.toml")),
    ("answers", include_str!("../hostile/answers.toml")),
    ("loading", include_str!("../hostile/loading.toml")),
    ("clock", include_str!("../hostile/clock.toml")),
];

/// A script and the ways in which it may end.
pub(crate) struct Script {
    pub(crate) theme: String,
    pub(crate) name: String,
    /// Words of faults; `bad`: not loaded; `answers`: twice the same.
    pub(crate) ends: Vec<String>,
    pub(crate) source: String,
}

/// A file: by name, the ends separated by `|`, and the script.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    /// Bodies of the policy's function.
    #[serde(default)]
    body: BTreeMap<String, (String, String)>,
    /// Whole sources by name, with the expected fault.
    #[serde(default)]
    source: BTreeMap<String, (String, String)>,
}

pub(crate) fn all() -> Vec<Script> {
    let files = FILES.iter().flat_map(|(theme, text)| {
        let page: Page = toml::from_str(text).unwrap_or_else(|error| panic!("{theme}: {error}"));
        let bodies = page.body.into_iter().map(|(name, (ends, body))| {
            let source = format!("return function(i) {body}\nend");
            script(theme, &name, &ends, source)
        });
        let sources = page.source.into_iter();
        let sources = sources.map(|(name, (ends, source))| script(theme, &name, &ends, source));
        bodies.chain(sources).collect::<Vec<_>>()
    });
    let made = generated::all().into_iter();
    let made = made.map(|(name, ends, source)| script("generated", name, ends, source));
    files.chain(made).collect()
}

fn script(theme: &str, name: &str, ends: &str, source: String) -> Script {
    Script {
        theme: theme.to_owned(),
        name: name.to_owned(),
        ends: ends.split('|').map(str::to_owned).collect(),
        source,
    }
}
