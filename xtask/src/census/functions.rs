//! Where functions begin and end, read off blanked text.

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function<'a> {
    pub(super) name: &'a str,
    /// Number of the line with `fn`, from 1.
    pub(super) line: usize,
    /// From `fn` to the closing brace.
    pub(super) lines: usize,
    /// Byte at which the opening brace stands.
    pub(super) body: usize,
}

/// Functions of a text without comments and strings, in their order. An inner function is listed
/// beside the outer one.
pub(super) fn of(blank: &str) -> Vec<Function<'_>> {
    blank
        .match_indices("fn ")
        .filter(|(at, _)| !blank[..*at].ends_with(is_of_a_word))
        .filter_map(|(at, keyword)| {
            let start = at + keyword.len();
            let name = word(&blank[start..]);
            let body = start + body(&blank[start..])?;
            let end = body + end(&blank[body..]);
            (!name.is_empty()).then(|| Function {
                name,
                line: 1 + blank[..at].matches('\n').count(),
                lines: 1 + blank[at..end].matches('\n').count(),
                body,
            })
        })
        .collect()
}

pub(super) fn is_of_a_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The word that a text begins with; empty if it begins with none.
pub(super) fn word(text: &str) -> &str {
    let end = text.find(|c| !is_of_a_word(c));
    &text[..end.unwrap_or(text.len())]
}

/// The opening brace behind a signature; `None` if a semicolon ends it.
fn body(signature: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, c) in signature.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            '{' if depth == 0 => return Some(at),
            ';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// The brace that closes the one at the start.
fn end(body: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in body.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    body.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_with_their_lines() {
        let text = "trait T {\n    fn none(a: [u8; 2]);\n}\n\
                    fn outer<F>(f: F)\nwhere\n    F: Fn(fn (u8) -> u8),\n{\n    fn inner() {}\n}\n";
        let found = of(text);
        let shown: Vec<_> = found
            .iter()
            .map(|it| (it.name, it.line, it.lines))
            .collect();
        assert_eq!(shown, [("outer", 4, 6), ("inner", 8, 1)]);
        assert!(found.iter().all(|it| text[it.body..].starts_with('{')));
    }
}
