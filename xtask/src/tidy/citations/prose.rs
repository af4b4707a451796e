//! The words of a file that may cite something, and what a word cites.

/// A piece of a file.
pub(super) enum Prose<'a> {
    /// A paragraph, list item or table row ends.
    Break,
    /// Number of a line, and its words.
    Words(usize, &'a str),
    /// Number of a line, and the name of a function in it.
    TestName(usize, &'a str),
}

/// Everything in a file that may cite something, by the kind of the file.
pub(super) fn lines<'a>(file: &str, text: &'a str) -> Vec<Prose<'a>> {
    if file.ends_with(".rs") {
        rust(text)
    } else if file.ends_with(".md") {
        markdown(text)
    } else {
        let whole = |(number, line)| Prose::Words(number + 1, line);
        text.lines().enumerate().map(whole).collect()
    }
}

fn rust(text: &str) -> Vec<Prose<'_>> {
    let mut pieces = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let (number, code) = (number + 1, line.trim_start());
        if let Some(comment) = code.strip_prefix("//") {
            pieces.push(Prose::Words(number, comment.trim_start_matches(['/', '!'])));
            continue;
        }
        if let Some((_, name)) = code.split_once("fn ") {
            pieces.push(Prose::TestName(number, name));
        }
        if let Some((_, reason)) = code.split_once("reason = \"") {
            pieces.push(Prose::Words(number, reason));
        }
        if let Some((_, comment)) = code.split_once(" // ") {
            pieces.push(Prose::Words(number, comment));
        }
    }
    pieces
}

fn markdown(text: &str) -> Vec<Prose<'_>> {
    let mut pieces = Vec::new();
    let mut is_fenced = false;
    for (number, line) in text.lines().enumerate() {
        let content = line.trim_start();
        if content.starts_with("```") {
            is_fenced = !is_fenced;
            continue;
        }
        if is_fenced {
            continue;
        }
        if content.is_empty() || content.starts_with(['#', '|', '-', '*']) {
            pieces.push(Prose::Break);
        }
        pieces.push(Prose::Words(number + 1, line));
    }
    pieces
}

/// A document ends with `.md`; a section and an id have a digit. Most words have neither.
pub(super) fn may_cite(word: &str) -> bool {
    word.contains(".md") || word.bytes().any(|byte| byte.is_ascii_digit())
}

/// Paths of documents in a word, neither absolute nor of the web, and no pattern of names.
pub(super) fn documents_in(word: &str) -> impl Iterator<Item = &str> {
    let is_of_a_path = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    word.split(move |c| !is_of_a_path(c))
        .map(|path| path.trim_end_matches('.'))
        .filter(|path| {
            path.strip_suffix(".md")
                .is_some_and(|name| !name.is_empty())
        })
        .filter(|path| !path.starts_with('/'))
        .filter(|path| !path.contains("NNNN") && !path.contains("YYYY"))
}

/// Numbers of the sections in a word.
pub(super) fn sections_in(word: &str) -> impl Iterator<Item = &str> {
    word.split('§')
        .skip(1)
        .map(|rest| {
            let is_of_a_number = |c: char| c.is_ascii_digit() || c == '.';
            let end = rest.find(|c| !is_of_a_number(c)).unwrap_or(rest.len());
            rest[..end].trim_end_matches('.')
        })
        .filter(|section| !section.is_empty())
}

/// The two words before a section are `RFC` and its number.
pub(super) fn is_rfc(before: &[String; 2]) -> bool {
    before[0].ends_with("RFC") && before[1].starts_with(|c: char| c.is_ascii_digit())
}

/// Ids of the kinds that nothing else looks like: `N17`, `W1`, `D5`.
pub(super) fn ids_in(word: &str) -> impl Iterator<Item = &str> {
    word.split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|part| {
            let (kind, number) = part.split_at(part.chars().next().map_or(0, char::len_utf8));
            let digits = number.chars().all(|c| c.is_ascii_digit());
            let length = match kind {
                "N" => number.len() == 2,
                "W" => (1..=2).contains(&number.len()),
                "D" => number.len() == 1,
                _ => false,
            };
            digits && length
        })
}

/// Names of functions, and of cases that a list names as text.
pub(super) fn names_in(text: &str) -> impl Iterator<Item = &str> {
    let is_of_a_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let functions = text.split("fn ").skip(1).map(move |rest| {
        let end = rest.find(|c| !is_of_a_name(c)).unwrap_or(rest.len());
        &rest[..end]
    });
    let cases = text
        .split('"')
        .filter(move |part| part.contains('_') && part.chars().all(is_of_a_name));
    functions.chain(cases)
}

/// Ids that the name of a test begins with: `N01` and `N02` of `n01_n02_it_starts`.
pub(super) fn ids_of_name(name: &str) -> Vec<String> {
    name.split('_')
        .map_while(|part| {
            let number = part.strip_prefix('n')?;
            let is_id = number.len() == 2 && number.chars().all(|c| c.is_ascii_digit());
            is_id.then(|| part.to_uppercase())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_told_from_addresses_and_patterns() {
        let all = |word| documents_in(word).collect::<Vec<_>>();
        assert_eq!(all("[x.md](../docs/x.md#part),"), ["x.md", "../docs/x.md"]);
        assert_eq!(all("`docs/peer.md`."), ["docs/peer.md"]);
        assert!(all("https://example.org/README.md").is_empty());
        assert!(all("docs/decisions/NNNN-title.md").is_empty());
        assert!(all("*.md").is_empty());
    }

    #[test]
    fn tests_are_functions_and_named_cases() {
        let text = "async fn it_holds() {} // it_fails\n(\"case_holds\", |world| {})";
        assert_eq!(
            names_in(text).collect::<Vec<_>>(),
            ["it_holds", "case_holds"]
        );
    }

    #[test]
    fn sections_and_ids_are_cut_out_of_punctuation() {
        let sections = |word| sections_in(word).collect::<Vec<_>>();
        assert_eq!(sections("(§3.5-3.7,"), ["3.5"]);
        assert_eq!(sections("§1.1/§1.2."), ["1.1", "1.2"]);
        let ids = |word| ids_in(word).collect::<Vec<_>>();
        assert_eq!(ids("(N31-N37)"), ["N31", "N37"]);
        assert_eq!(ids("**W12**,"), ["W12"]);
        assert!(ids("0xD5 N2 W-METRICS NN01 V1").is_empty());
        assert_eq!(ids_of_name("n06_n16_it_holds()"), ["N06", "N16"]);
        assert!(ids_of_name("name_of_n06()").is_empty());
    }
}
