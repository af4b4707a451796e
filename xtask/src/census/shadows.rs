//! Shadow chains: names that a function binds again and again, each time from the value before.

use std::collections::BTreeMap;

use super::functions::{Function, is_of_a_word, word};

/// What counts as a chain, for the help.
pub(super) const HOW: &str = "a name that a function binds by `let` and rebinds by `let x = x...`: \
                              the value begins\n                   with the name, behind `&*!(` at \
                              most. Parameters, patterns and other blocks begin none";

/// A chain of two or more bindings.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chain<'a> {
    pub(super) name: &'a str,
    /// Number of the line of its first binding, from 1.
    pub(super) line: usize,
    /// How many `let` it has.
    pub(super) bindings: usize,
}

/// Names bound so far within a pair of braces.
struct Block<'a> {
    is_function: bool,
    names: BTreeMap<&'a str, Binding>,
}

/// A `let`, as the last one of a possible chain.
#[derive(Clone, Copy)]
struct Binding {
    /// Byte at which the first `let` of the chain stands.
    first: usize,
    bindings: usize,
}

/// Chains of a text without comments and strings. `functions` are those of the same text.
pub(super) fn of<'a>(blank: &'a str, functions: &[Function<'_>]) -> Vec<Chain<'a>> {
    let mut blocks: Vec<Block<'a>> = Vec::new();
    let mut longest: BTreeMap<usize, (&'a str, usize)> = BTreeMap::new();
    for (at, c) in blank.char_indices() {
        match c {
            '{' => blocks.push(Block {
                is_function: functions.iter().any(|it| it.body == at),
                names: BTreeMap::new(),
            }),
            '}' => drop(blocks.pop()),
            'l' if !blank[..at].ends_with(is_of_a_word) => {
                let Some((name, value)) = blank[at..].strip_prefix("let ").and_then(binding) else {
                    continue;
                };
                let earlier = visible(&blocks, name).filter(|_| begins_with(value, name));
                let binding = Binding {
                    first: earlier.map_or(at, |it| it.first),
                    bindings: earlier.map_or(0, |it| it.bindings) + 1,
                };
                let most = longest.entry(binding.first).or_insert((name, 1));
                most.1 = most.1.max(binding.bindings);
                if let Some(block) = blocks.last_mut() {
                    block.names.insert(name, binding);
                }
            }
            _ => {}
        }
    }
    let chains = longest
        .into_iter()
        .filter(|(_, (_, bindings))| *bindings > 1);
    chains
        .map(|(first, (name, bindings))| Chain {
            name,
            line: 1 + blank[..first].matches('\n').count(),
            bindings,
        })
        .collect()
}

/// The binding of a name that a function sees.
fn visible(blocks: &[Block<'_>], name: &str) -> Option<Binding> {
    for block in blocks.iter().rev() {
        if let Some(binding) = block.names.get(name) {
            return Some(*binding);
        }
        if block.is_function {
            return None;
        }
    }
    None
}

/// Name and value of what follows `let`, unless it is a pattern.
fn binding(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let text = text.strip_prefix("mut ").unwrap_or(text).trim_start();
    let name = word(text);
    let rest = text[name.len()..].trim_start();
    let is_name = name.starts_with(|c: char| c.is_lowercase() || c == '_');
    if !is_name || !rest.starts_with([':', '=']) || rest.starts_with("::") {
        return None;
    }
    let statement = rest.split(';').next()?;
    let (_, value) = statement.split_once('=')?;
    Some((name, value))
}

/// Whether a value begins with a variable of that name, not with a call, macro or path.
fn begins_with(value: &str, name: &str) -> bool {
    let value = value.trim_start_matches(|c: char| c.is_whitespace() || "&*!(".contains(c));
    let rest = &value[word(value).len()..];
    word(value) == name && !rest.starts_with(['(', '!']) && !rest.starts_with("::")
}

#[cfg(test)]
mod tests {
    use super::super::functions;
    use super::*;

    fn chains(text: &str) -> Vec<(&str, usize, usize)> {
        let found = of(text, &functions::of(text)).into_iter();
        found.map(|it| (it.name, it.line, it.bindings)).collect()
    }

    #[test]
    fn name_that_is_bound_from_itself_is_a_chain() {
        let text = "fn f() {\n    let x = g();\n    let x: u8 = x\n        .h();\n    \
                    let mut x = &(x + 1);\n    let y = x;\n}\n";
        assert_eq!(chains(text), [("x", 2, 3)]);
        let inner = "fn f() {\n    let x = g();\n    if a {\n        let x = x.h();\n    }\n    \
                     let x = x.i();\n}\n";
        assert_eq!(chains(inner), [("x", 2, 2)]);
    }

    #[test]
    fn names_of_other_blocks_and_functions_begin_no_chain() {
        let blocks = "fn f() {\n    {\n        let x = g();\n    }\n    let x = x.h();\n}\n";
        assert!(chains(blocks).is_empty());
        let inner =
            "fn f() {\n    let x = g();\n    fn h(x: u8) {\n        let x = x.i();\n    }\n}\n";
        assert!(chains(inner).is_empty());
    }

    #[test]
    fn parameters_calls_and_patterns_begin_no_chain() {
        assert!(chains("fn f(x: u8) {\n    let x = x + 1;\n}\n").is_empty());
        let like = |value| format!("fn f() {{ let x = g(); let x = {value}; }}");
        for value in ["x(1)", "x::g()", "x!(1)", "xs.g()", "self.x", "g(x)"] {
            assert!(chains(&like(value)).is_empty(), "{value}");
        }
        let pattern = "fn f() { let (x, y) = g(); if let Some(x) = x { h(x) } }";
        assert!(chains(pattern).is_empty());
    }
}
