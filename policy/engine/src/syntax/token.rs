//! Words of a Luau source. The tokenizer holds for any text; what it misreads, the compiler
//! refuses.

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Name,
    /// One character that is no name, number or string.
    Symbol,
    /// A number, or a string without expressions in it.
    Literal,
    /// A comment that the compiler obeys.
    Directive,
}

/// A token and where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    pub(super) text: &'a str,
    /// Line of the source, from 1.
    pub(super) line: u32,
}

/// Directives that are for editors alone.
const FOR_EDITORS: [&str; 4] = ["strict", "nonstrict", "nocheck", "nolint"];

struct Reader<'a> {
    source: &'a str,
    at: usize,
    line: u32,
    tokens: Vec<Token<'a>>,
    /// Open braces of each interpolated string whose expression is being read.
    braces: Vec<u32>,
}

/// All tokens of a source.
pub(super) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut reader = Reader {
        source,
        at: 0,
        line: 1,
        tokens: Vec::new(),
        braces: Vec::new(),
    };
    while reader.token() {}
    reader.tokens
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        self.source.get(self.at..).unwrap_or_default()
    }

    /// Reads one token. Returns `false` at the end.
    fn token(&mut self) -> bool {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else {
            return false;
        };
        if rest.starts_with("--") {
            self.comment(rest);
        } else if let Some(length) = long_bracket(rest) {
            self.push(Kind::Literal, length);
        } else if first == '\'' || first == '"' {
            self.push(Kind::Literal, quoted(rest, first));
        } else if first == '`' {
            self.interpolated(1);
        } else if first == '}' && self.braces.last() == Some(&0) {
            self.braces.pop();
            self.interpolated(1);
        } else if first.is_ascii_digit() {
            let is_part = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '_';
            self.push(Kind::Literal, length_while(rest, is_part));
        } else if first.is_ascii_alphabetic() || first == '_' {
            let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
            self.push(Kind::Name, length_while(rest, is_part));
        } else if first.is_whitespace() {
            self.skip(first.len_utf8());
        } else {
            self.brace(first);
            self.push(Kind::Symbol, first.len_utf8());
        }
        true
    }

    fn brace(&mut self, symbol: char) {
        if let Some(open) = self.braces.last_mut() {
            match symbol {
                '{' => *open += 1,
                '}' => *open = open.saturating_sub(1),
                _ => {}
            }
        }
    }

    fn skip(&mut self, length: usize) {
        let text = self.rest().get(..length).unwrap_or_default();
        let lines = text.bytes().filter(|byte| *byte == b'\n').count();
        self.line = self
            .line
            .saturating_add(u32::try_from(lines).unwrap_or(u32::MAX));
        self.at += length;
    }

    fn push(&mut self, kind: Kind, length: usize) {
        let text = self.rest().get(..length).unwrap_or_default();
        let line = self.line;
        self.tokens.push(Token { kind, text, line });
        self.skip(length);
    }

    fn comment(&mut self, rest: &'a str) {
        let body = rest.get(2..).unwrap_or_default();
        if let Some(length) = long_bracket(body) {
            return self.skip(2 + length);
        }
        let length = length_while(rest, |c| c != '\n');
        let directive = body
            .strip_prefix('!')
            .map(|it| length_while(it, char::is_alphanumeric));
        let word = directive.and_then(|length| body.get(1..=length));
        if word.is_some_and(|word| !FOR_EDITORS.contains(&word)) {
            let trimmed = rest.get(..length).unwrap_or_default().trim_end().len();
            self.push(Kind::Directive, trimmed);
        } else {
            self.skip(length);
        }
    }

    /// Text of an interpolated string, up to its end or to an expression in it.
    fn interpolated(&mut self, skipped: usize) {
        let rest = self.rest();
        let mut is_escaped = false;
        for (at, c) in rest.char_indices().skip(skipped) {
            match c {
                _ if is_escaped => is_escaped = false,
                '\\' => is_escaped = true,
                '{' => {
                    self.braces.push(0);
                    return self.push(Kind::Literal, at + 1);
                }
                '`' => return self.push(Kind::Literal, at + 1),
                _ => {}
            }
        }
        self.push(Kind::Literal, rest.len());
    }
}

fn length_while(text: &str, is_part: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is_part(c)).unwrap_or(text.len())
}

/// Length of `[[…]]` or `[=[…]=]` at the start of a text.
fn long_bracket(text: &str) -> Option<usize> {
    let inner = text.strip_prefix('[')?;
    let level = length_while(inner, |c| c == '=');
    inner.get(level..)?.strip_prefix('[')?;
    let end = format!("]{}]", "=".repeat(level));
    let start = level + 2;
    let found = text.get(start..)?.find(&end);
    Some(found.map_or(text.len(), |at| start + at + end.len()))
}

/// Length of a string in quotes, which ends at its line's end at the latest. A line's end that a
/// backslash or `\z` skips does not end it.
fn quoted(text: &str, quote: char) -> usize {
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some((_, 'z')) => {
                    while chars.next_if(|(_, c)| c.is_ascii_whitespace()).is_some() {}
                }
                Some((_, '\r')) => drop(chars.next_if(|(_, c)| *c == '\n')),
                _ => {}
            },
            '\n' => return at,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}
