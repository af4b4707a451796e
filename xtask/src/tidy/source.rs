//! What several rules read off a Rust file: its code without unit tests, its text without comments
//! and strings, and the component to which it belongs.

/// The text above the first module of unit tests that has a body. A mere declaration, `mod tests;`,
/// ends nothing.
pub(crate) fn code_of(text: &str) -> &str {
    const GATE: &str = "\n#[cfg(test)]\n";
    for (start, gate) in text.match_indices(GATE) {
        let mut rest = text[start + gate.len()..].lines();
        let item = rest.find(|line| !line.starts_with(['#', ' ', ')']));
        if item.is_some_and(|item| item.starts_with("mod ") && item.ends_with('{')) {
            return &text[..start];
        }
    }
    text
}

/// The text with spaces in place of comments and of the contents of strings and characters. Lines
/// keep their numbers.
pub(crate) fn blanked(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut blank = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = opaque_end(&chars, at);
        if end == at {
            blank.push(chars[at]);
            at += 1;
        } else {
            let gone = chars[at..end].iter();
            blank.extend(gone.map(|c| if *c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    blank
}

/// The end of the comment, string or character that begins at a place; the place itself if none
/// does.
fn opaque_end(chars: &[char], at: usize) -> usize {
    let next = |offset: usize| chars.get(at + offset).copied();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let is_inside_word = at > 0 && is_word(chars[at - 1]);
    match chars[at] {
        '/' if next(1) == Some('/') => find(chars, at, |c| c == '\n'),
        '/' if next(1) == Some('*') => comment_end(chars, at),
        '"' => string_end(chars, at, '"'),
        'r' if !is_inside_word => raw_end(chars, at),
        '\'' if next(1) == Some('\\') || next(2) == Some('\'') => string_end(chars, at, '\''),
        _ => at,
    }
}

fn find(chars: &[char], from: usize, is_end: impl Fn(char) -> bool) -> usize {
    let found = chars[from..].iter().position(|c| is_end(*c));
    found.map_or(chars.len(), |offset| from + offset)
}

fn comment_end(chars: &[char], from: usize) -> usize {
    let (mut depth, mut at) = (0_usize, from);
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

fn string_end(chars: &[char], from: usize, quote: char) -> usize {
    let mut at = from + 1;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            c if c == quote => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

fn raw_end(chars: &[char], from: usize) -> usize {
    let open = find(chars, from + 1, |c| c != '#');
    if chars.get(open) != Some(&'"') {
        return from;
    }
    let hashes = open - from - 1;
    let mut at = open + 1;
    while at < chars.len() {
        let close = find(chars, at, |c| c == '"');
        let tail = chars[close.min(chars.len())..].iter().skip(1);
        if tail.take_while(|c| **c == '#').count() >= hashes {
            return (close + 1 + hashes).min(chars.len());
        }
        at = close + 1;
    }
    chars.len()
}

/// Whether the path of a file shows that it holds tests alone.
pub(crate) fn is_test(file: &str) -> bool {
    file.contains("/tests/") || file.ends_with("tests.rs")
}

/// A module that a file declares without a body, as in `mod name;`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Declared {
    pub(crate) name: String,
    /// It is compiled for tests alone.
    pub(crate) is_gated: bool,
}

/// Modules that blanked code declares.
pub(crate) fn declared(code: &str) -> Vec<Declared> {
    let lines: Vec<&str> = code.lines().collect();
    let is_gated = |number: usize| {
        let above = lines[..number].iter().rev();
        above
            .take_while(|line| line.trim_start().starts_with('#'))
            .any(|line| line.contains("cfg(test)"))
    };
    (0..lines.len())
        .filter_map(|number| {
            let (_, name) = lines[number].split_once("mod ")?;
            Some(Declared {
                name: name.strip_suffix(';')?.trim().to_owned(),
                is_gated: is_gated(number),
            })
        })
        .collect()
}

/// The folder in which the modules lie that a file declares. `is_root` says that the file is the
/// root of a crate.
pub(crate) fn folder_of_modules(file: &str, is_root: bool) -> &str {
    match file.rsplit_once('/') {
        Some((folder, _)) if is_root || file.ends_with("/mod.rs") => folder,
        _ => file.trim_end_matches(".rs"),
    }
}

/// The folder of a file's crate.
pub(crate) fn component(file: &str) -> &str {
    ["/src/", "/tests/", "/benches/", "/fuzz_targets/"]
        .iter()
        .filter_map(|folder| file.find(folder))
        .min()
        .map_or_else(
            || file.split('/').next().unwrap_or(file),
            |end| &file[..end],
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declaration_of_a_test_module_does_not_end_the_code() {
        let declared = "//! doc\n#[cfg(test)]\nmod tests;\nfn late() {}\n";
        assert_eq!(code_of(declared), declared);
        let written = "//! doc\n#[cfg(test)]\n#[expect(x)]\nmod tests {\n}\n";
        assert_eq!(code_of(written), "//! doc");
    }

    #[test]
    fn modules_of_tests_are_told_from_others() {
        let code = "mod one;\n#[cfg(test)]\n#[path = \"\"]\npub(crate) mod two;\nmod three {\n}\n";
        let found = declared(code).into_iter().map(|it| (it.name, it.is_gated));
        let expected = [("one".to_owned(), false), ("two".to_owned(), true)];
        assert!(found.eq(expected));
        assert_eq!(folder_of_modules("a/src/lib.rs", true), "a/src");
        assert_eq!(folder_of_modules("a/src/one.rs", false), "a/src/one");
    }

    #[test]
    fn comments_and_strings_are_blank_and_lifetimes_are_not() {
        let text = "a /* /* b */ c */ d // e\nf(\"\\\"g\", 'h', '\\n', r#\"i\"j\"#) fn k<'l>()";
        let words: Vec<String> = blanked(text)
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        assert_eq!(words, ["a", "d", "f(", ",", ",", ",", ")", "fn", "k<'l>()"]);
        assert_eq!(blanked(text).lines().count(), 2);
    }

    #[test]
    fn component_is_the_folder_of_the_crate() {
        assert_eq!(
            component("neonvm-shim/runner/src/a.rs"),
            "neonvm-shim/runner"
        );
        assert_eq!(component("tests/tests/a.rs"), "tests");
        assert_eq!(component("agent/tests/peers/mod.rs"), "agent");
    }
}
