//! Circles of files within a crate: each file of a circle needs all others to be understood.
//!
//! Modules and paths are read as text. A name that a file passes on with `use` counts for the file
//! that defines it.

use std::collections::{BTreeMap, BTreeSet};

use super::source;

/// Longest chain of `use` declarations that is followed.
const CHAIN: usize = 8;

type Path = Vec<String>;

/// One file as a module of its crate.
struct Module {
    file: String,
    /// Every path that the file names, in `use` or elsewhere.
    named: Vec<Path>,
    children: BTreeSet<String>,
    /// Names that `use` declares, and what they stand for.
    imports: BTreeMap<String, Path>,
}

/// A crate, by the paths of its modules.
struct Crate(BTreeMap<Path, Module>);

/// Circles of two files or more, the largest first. `files` maps a file to its text.
pub(crate) fn of(files: &BTreeMap<String, String>) -> Vec<Vec<String>> {
    let mut circles: Vec<Vec<String>> = Vec::new();
    for root in files.keys().filter(|file| is_root(file)) {
        circles.extend(rings(&Crate::read(root, files).arrows()));
    }
    circles.sort_by_key(|circle| (usize::MAX - circle.len(), circle.clone()));
    circles.dedup();
    circles
}

/// Whether a file is the root of a crate.
pub(crate) fn is_root(file: &str) -> bool {
    let Some((_, inner)) = file.rsplit_once("src/") else {
        return false;
    };
    match inner.strip_prefix("bin/") {
        Some(program) => !program.contains('/') || program.ends_with("/main.rs"),
        None => inner == "lib.rs" || inner == "main.rs",
    }
}

impl Crate {
    fn read(root: &str, files: &BTreeMap<String, String>) -> Self {
        let mut modules = BTreeMap::new();
        let mut waiting = vec![(Path::new(), root.to_owned())];
        while let Some((path, file)) = waiting.pop() {
            let Some(text) = files.get(&file) else {
                continue;
            };
            let code = source::blanked(source::code_of(text));
            let folder = source::folder_of_modules(&file, path.is_empty());
            let mut children = BTreeSet::new();
            let declared = source::declared(&code).into_iter();
            for name in declared.filter(|it| !it.is_gated).map(|it| it.name) {
                let places = [
                    format!("{folder}/{name}.rs"),
                    format!("{folder}/{name}/mod.rs"),
                ];
                if let Some(place) = places.into_iter().find(|place| files.contains_key(place)) {
                    waiting.push((
                        [path.as_slice(), std::slice::from_ref(&name)].concat(),
                        place,
                    ));
                    children.insert(name);
                }
            }
            let declared: Vec<(String, Path)> = declared_by_use(&code).collect();
            let in_use = declared.iter().map(|(_, meant)| meant.clone());
            let module = Module {
                file,
                named: in_use.chain(inline(&code)).collect(),
                children,
                imports: declared.into_iter().collect(),
            };
            modules.insert(path, module);
        }
        Self(modules)
    }

    /// For each file, the files whose names it uses.
    fn arrows(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut arrows: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (path, module) in &self.0 {
            let named = module.named.iter();
            let used = named
                .filter_map(|name| self.resolve(path, name, CHAIN))
                .map(|(target, _)| self.0[&target].file.as_str())
                .filter(|file| *file != module.file);
            arrows.entry(&module.file).or_default().extend(used);
        }
        arrows
    }

    /// The module that a path leads to or whose item it names, and whether it is the module.
    fn resolve(&self, from: &Path, name: &Path, chain: usize) -> Option<(Path, bool)> {
        let mut at = from.clone();
        for (index, part) in name.iter().enumerate() {
            let module = self.0.get(&at)?;
            match part.as_str() {
                "crate" => at.clear(),
                "super" => at.pop().map(|_| ())?,
                "self" => {}
                _ if module.children.contains(part) => at.push(part.clone()),
                _ => {
                    let meant = module.imports.get(part).filter(|_| chain > 0);
                    let Some((target, is_module)) =
                        meant.and_then(|meant| self.resolve(&at, meant, chain - 1))
                    else {
                        return (index > 0).then_some((at, false));
                    };
                    if !is_module {
                        return Some((target, false));
                    }
                    at = target;
                }
            }
        }
        self.0.contains_key(&at).then_some((at, true))
    }
}

/// What `use` declares: the name in this file, and the path behind it.
fn declared_by_use(code: &str) -> impl Iterator<Item = (String, Path)> {
    let trees = code.split(';').filter_map(|part| split_at_use(part).1);
    trees.flat_map(|tree| {
        let mut found = Vec::new();
        spread(tree, &Path::new(), &mut found);
        found
    })
}

/// Takes apart what stands between two semicolons: the code, and the tree of the `use` behind it.
fn split_at_use(part: &str) -> (&str, Option<&str>) {
    const USE: &str = "use ";
    let Some(start) = part.rfind(USE) else {
        return (part, None);
    };
    let before = &part[..start];
    let is_word = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
    let code = before.trim_end();
    if is_word && (code.is_empty() || code.ends_with(['}', '{', ']', ')', 'b'])) {
        (code, Some(&part[start + USE.len()..]))
    } else {
        (part, None)
    }
}

/// Takes a tree of `use` apart.
fn spread(tree: &str, prefix: &Path, found: &mut Vec<(String, Path)>) {
    let tree = tree.trim();
    if let Some((head, group)) = tree.split_once('{') {
        let mut path = prefix.clone();
        path.extend(parts(head));
        let group = group.strip_suffix('}').unwrap_or(group);
        top_level(group).for_each(|branch| spread(branch, &path, found));
        return;
    }
    let (name, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
    let mut path = prefix.clone();
    path.extend(parts(name));
    if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
        path.pop();
    }
    let Some(last) = path.last().cloned() else {
        return;
    };
    let is_unnamed = alias.trim() == "_" || last == "*";
    let key = match alias.trim() {
        "" if !is_unnamed => last,
        alias if !is_unnamed => alias.to_owned(),
        _ => path.join("::"),
    };
    path.retain(|part| part != "*");
    found.push((key, path));
}

fn parts(path: &str) -> impl Iterator<Item = String> {
    let all = path.split("::").map(str::trim);
    all.filter(|part| !part.is_empty()).map(str::to_owned)
}

/// Branches of a group, cut at the commas outside of inner groups.
fn top_level(group: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    group
        .split(move |c| {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            c == ',' && depth == 0
        })
        .filter(|branch| !branch.trim().is_empty())
}

/// Paths that stand within the code, outside of `use`. A word before or in a group of `use` is a
/// part of a path, not a path.
fn inline(code: &str) -> Vec<Path> {
    let code = without_visibilities(code);
    let code = code.split(';').map(|part| split_at_use(part).0);
    let words =
        code.flat_map(|part| part.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')));
    words
        .filter(|word| word.contains("::") && !word.starts_with(':'))
        .map(|word| parts(word).collect())
        .collect()
}

/// The code without the modules to which `pub(in …)` shows items: a file needs nothing of them.
fn without_visibilities(code: &str) -> String {
    let mut pieces = code.split("pub(in ");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| {
        text + piece.split_once(')').map_or("", |(_, rest)| rest)
    })
}

/// Groups of files each of which reaches all others.
fn rings(arrows: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<Vec<String>> {
    let reach: BTreeMap<&str, BTreeSet<&str>> = arrows
        .keys()
        .map(|file| (*file, reachable(file, arrows)))
        .collect();
    let mut done = BTreeSet::new();
    let mut rings = Vec::new();
    for file in arrows.keys() {
        let returns = |other: &&&str| reach.get(**other).is_some_and(|all| all.contains(file));
        let ring: Vec<&str> = reach[file].iter().filter(returns).copied().collect();
        if ring.len() > 1 && done.insert(ring.clone()) {
            rings.push(ring.into_iter().map(str::to_owned).collect());
        }
    }
    rings
}

fn reachable<'a>(from: &str, arrows: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut waiting: Vec<&str> = arrows.get(from).into_iter().flatten().copied().collect();
    while let Some(file) = waiting.pop() {
        if seen.insert(file) {
            waiting.extend(arrows.get(file).into_iter().flatten().copied());
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let all = files
            .iter()
            .map(|(file, text)| ((*file).to_owned(), (*text).to_owned()));
        of(&all.collect())
    }

    #[test]
    fn circle_of_three_files_is_found() {
        let found = circles(&[
            ("a/src/lib.rs", "mod x;\nmod y;\nmod z;\n"),
            ("a/src/x.rs", "use crate::{y::{Y, self}, z as w};\n"),
            ("a/src/y.rs", "fn f() { super::z::g(); }\n"),
            ("a/src/z.rs", "// a comment\npub use super::x::X;\n"),
        ]);
        assert_eq!(found, [["a/src/x.rs", "a/src/y.rs", "a/src/z.rs"]]);
    }

    #[test]
    fn module_to_which_an_item_is_shown_makes_no_circle() {
        let found = circles(&[
            ("a/src/lib.rs", "mod x;\nfn f() { x::g(); }\n"),
            ("a/src/x.rs", "mod y;\nfn g() { y::h(); }\n"),
            ("a/src/x/y.rs", "pub(in crate::x) fn h() {}\n"),
        ]);
        assert!(found.is_empty(), "{found:?}");
        let found = circles(&[
            ("a/src/lib.rs", "mod x;\nfn f() { x::g(); }\n"),
            ("a/src/x.rs", "mod y;\nfn g() { y::h(); }\n"),
            (
                "a/src/x/y.rs",
                "pub(in crate::x) fn h() { crate::x::g(); }\n",
            ),
        ]);
        assert_eq!(found, [["a/src/x.rs", "a/src/x/y.rs"]]);
    }

    #[test]
    fn name_that_is_passed_on_counts_for_its_definition() {
        let found = circles(&[
            ("a/src/lib.rs", "mod x;\nmod y;\npub use x::X;\n"),
            ("a/src/x.rs", "pub struct X;\n"),
            ("a/src/y.rs", "use crate::X;\n"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn group_of_names_counts_for_the_names_and_not_for_the_module_before_it() {
        let found = circles(&[
            ("a/src/lib.rs", "mod x;\nmod y;\nmod z;\nuse x::X;\n"),
            ("a/src/x.rs", "mod z;\nuse crate::{y::Y, z::{W, Z}};\n"),
            ("a/src/x/z.rs", "fn f() { super::g(); }\n"),
            ("a/src/y.rs", "pub struct Y;\n"),
            ("a/src/z.rs", "pub struct Z;\n"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn module_in_a_group_and_every_use_of_one_name_count() {
        let found = circles(&[
            ("a/src/lib.rs", "mod x;\nmod y;\nmod z;\nuse x::X;\n"),
            (
                "a/src/x.rs",
                "fn f() { use crate::{y::T, self}; }\nfn g() { use crate::{z::T}; }\n",
            ),
            ("a/src/y.rs", "use super::x::X;\n"),
            ("a/src/z.rs", "use super::x::X;\n"),
        ]);
        let all = ["a/src/lib.rs", "a/src/x.rs", "a/src/y.rs", "a/src/z.rs"];
        assert_eq!(found, [all]);
    }

    #[test]
    fn tests_comments_and_strings_make_no_circle() {
        let found = circles(&[
            ("a/src/lib.rs", "mod x;\nfn f() { x::g(); }\n"),
            (
                "a/src/x.rs",
                "//! crate::f\nconst T: &str = \"crate::f\";\n#[cfg(test)]\nmod tests {\nuse crate::f;\n}\n",
            ),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }
}
