//! Ideas that several files build, found by markers in their text.

use std::collections::BTreeMap;

use super::sources::{Part, Source};

/// An idea that should be built once.
pub(super) struct Idea {
    pub(super) name: &'static str,
    within: Within,
    /// A file builds the idea if it has at least one marker of each list.
    pub(super) all_of: &'static [&'static [Marker]],
}

/// Which part of the files is searched.
#[derive(Clone, Copy)]
enum Within {
    Code,
    /// Product code outside of the cores.
    Shells,
    Tests,
    Both,
}

/// A text to look for.
#[derive(Clone, Copy)]
pub(super) enum Marker {
    /// In code. Comments and strings do not count.
    Code(&'static str),
    /// Anywhere, as the source spells it.
    Text(&'static str),
}

use Marker::{Code, Text};

pub(super) const IDEAS: &[Idea] = &[
    Idea {
        name: "accept loops",
        within: Within::Code,
        all_of: &[&[Code(".accept()")]],
    },
    Idea {
        name: "HTTP clients",
        within: Within::Both,
        // In two halves, so that this file does not find itself.
        all_of: &[&[Code("client::conn::http1"), Text(concat!("} HTTP", "/1."))]],
    },
    Idea {
        name: "TLS reloading",
        within: Within::Code,
        all_of: &[&[Code("Stamp")], &[Code("rustls"), Code("tls::")]],
    },
    Idea {
        name: "watches",
        within: Within::Code,
        all_of: &[&[
            Code("watcher("),
            Code("watch_object("),
            Code("WatchParams::"),
        ]],
    },
    Idea {
        name: "drivers",
        within: Within::Shells,
        all_of: &[&[
            Code(".poll_action("),
            Code(".next_actions("),
            Code(".poll_deadline("),
            // The agent's core polls itself.
            Code("Output::of("),
        ]],
    },
    Idea {
        name: "fake API servers",
        within: Within::Tests,
        all_of: &[
            &[
                Code("axum::serve("),
                Code("serve_connection("),
                Code("Router::new("),
                Code(".accept()"),
                Code("server::conn::http1"),
            ],
            &[Text("resourceVersion")],
        ],
    },
];

impl Marker {
    /// As the help shows it.
    pub(super) fn shown(self) -> String {
        match self {
            Code(text) => format!("`{text}`"),
            Text(text) => format!("text `{text}`"),
        }
    }

    /// How often a part holds it.
    fn count(self, part: &Part<'_>) -> usize {
        match self {
            Code(marker) => part.blank.matches(marker).count(),
            Text(marker) => part.text.matches(marker).count(),
        }
    }
}

impl Idea {
    /// The markers, as the help shows them.
    pub(super) fn shown(&self) -> String {
        let one_of = |markers: &&[Marker]| {
            let shown: Vec<String> = markers.iter().map(|marker| marker.shown()).collect();
            shown.join(" or ")
        };
        let lists: Vec<String> = self.all_of.iter().map(one_of).collect();
        let place = match self.within {
            Within::Code => "in code",
            Within::Shells => "in code outside of `core`",
            Within::Tests => "in tests",
            Within::Both => "in code and tests",
        };
        format!("{}, {place}", lists.join("; with it "))
    }

    /// How many markers a file has; 0 if it lacks those of a list.
    fn markers_in(&self, source: &Source<'_>) -> usize {
        let is_core = source.file.contains("/core/") || source.file.ends_with("/core.rs");
        let parts: &[&Part<'_>] = match self.within {
            Within::Shells if is_core => &[],
            Within::Code | Within::Shells => &[&source.code],
            Within::Tests => &[&source.tests],
            Within::Both => &[&source.code, &source.tests],
        };
        let of_list = |markers: &&[Marker]| -> usize {
            let in_part = |part: &&Part<'_>| -> usize {
                markers.iter().map(|marker| marker.count(part)).sum()
            };
            parts.iter().map(in_part).sum()
        };
        let counts: Vec<usize> = self.all_of.iter().map(of_list).collect();
        let is_whole = counts.iter().all(|count| *count > 0);
        if is_whole { counts.iter().sum() } else { 0 }
    }
}

/// Files that build each idea, with the number of their markers.
pub(super) fn of(sources: &[Source<'_>]) -> BTreeMap<&'static str, BTreeMap<String, usize>> {
    let files_of = |idea: &Idea| {
        let counted = sources
            .iter()
            .map(|source| (source.file.to_owned(), idea.markers_in(source)));
        counted.filter(|(_, count)| *count > 0).collect()
    };
    IDEAS
        .iter()
        .map(|idea| (idea.name, files_of(idea)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::sources;
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<(&'static str, String, usize)> {
        let files = files
            .iter()
            .map(|(file, text)| ((*file).to_owned(), (*text).to_owned()));
        let found = of(&sources::of(&files.collect())).into_iter();
        found
            .flat_map(|(idea, files)| {
                let named = move |(file, count)| (idea, file, count);
                files.into_iter().map(named)
            })
            .collect()
    }

    #[test]
    fn idea_is_found_by_each_file_with_a_marker() {
        let accepts = "fn f() {\n    loop { l.accept().await }\n}\n";
        let comment = "// .accept()\nconst T: &str = \".accept()\";\n";
        let unit = format!("fn f() {{}}\n\n#[cfg(test)]\nmod tests {{\n{accepts}}}\n");
        let all = [
            ("a/src/a.rs", accepts),
            ("a/src/b.rs", comment),
            ("a/src/c.rs", &unit),
            ("a/tests/d.rs", accepts),
        ];
        assert_eq!(found(&all), [("accept loops", "a/src/a.rs".to_owned(), 1)]);
    }

    #[test]
    fn file_needs_a_marker_of_each_list() {
        let serves = "fn f() { axum::serve(l); }\n";
        let both = "fn f() { axum::serve(l); g(\"resourceVersion\"); }\n";
        let all = [("a/tests/a.rs", serves), ("a/tests/b.rs", both)];
        let expected = ("fake API servers", "a/tests/b.rs".to_owned(), 2);
        assert_eq!(found(&all), [expected]);
    }

    #[test]
    fn core_drives_nothing() {
        let polls = "fn f() { core.poll_action(now); core.poll_deadline(); }\n";
        let all = [("a/src/core/a.rs", polls), ("a/src/shell/a.rs", polls)];
        assert_eq!(found(&all), [("drivers", "a/src/shell/a.rs".to_owned(), 2)]);
    }
}
