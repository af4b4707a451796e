//! Which words of a source cannot mean what they say, and what to write instead.
//!
//! * Some are refused when a policy is loaded: a power by operator is computed by the machine's C
//!   library, and a directive to the compiler would have it fold calls that are replaced here.
//! * The others name what is absent. Such a policy loads, and fails when it gets there; `check`
//!   shows them first.

mod token;

use std::collections::BTreeSet;

use token::{Kind, Token};

/// A finding in a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Line in the source, from 1.
    pub line: u32,
    /// What the source breaks.
    pub rule: String,
    /// What to write instead.
    pub instead: &'static str,
    /// The policy is not loaded.
    pub is_refused: bool,
}

const LOCAL_STATE: &str = "a local variable; nothing is kept between two calls";
const NO_CLOCK: &str = "i.time, or the ages in i: a policy has no clock";
const NO_CHANCE: &str = "a rule over i: the same input has the same answer";
const NO_OUTPUT: &str = "`note` of the answer";
const NO_CATCH: &str = "a test for nil before the call: an error is a fault of the policy";
const NO_OBJECTS: &str = "plain tables and functions";
const NO_CODE: &str = "the function in this file: a policy is one file";

/// Globals of other Lua programs, and what stands in their place.
const ABSENT: [(&str, &str); 32] = [
    ("os", NO_CLOCK),
    ("io", "i, and feeds for figures of the guest"),
    ("debug", NO_OUTPUT),
    ("coroutine", "a loop"),
    ("require", NO_CODE),
    ("load", NO_CODE),
    ("loadstring", NO_CODE),
    ("loadfile", NO_CODE),
    ("dofile", NO_CODE),
    ("getfenv", LOCAL_STATE),
    ("setfenv", LOCAL_STATE),
    ("newproxy", NO_OBJECTS),
    ("collectgarbage", "nothing: memory is freed after the call"),
    ("gcinfo", "nothing: memory is freed after the call"),
    ("pcall", NO_CATCH),
    ("xpcall", NO_CATCH),
    ("setmetatable", NO_OBJECTS),
    ("getmetatable", NO_OBJECTS),
    ("rawget", "t[k]"),
    ("rawset", "t[k] = v"),
    ("rawequal", "a == b"),
    ("rawlen", "#t"),
    ("print", NO_OUTPUT),
    ("warn", NO_OUTPUT),
    ("typeof", "type"),
    ("unpack", "table.unpack"),
    ("buffer", "a table or a string"),
    ("vector", "a table"),
    ("utf8", "string"),
    ("_G", LOCAL_STATE),
    (
        "_VERSION",
        "nothing: the engine's version is in the journal",
    ),
    ("shared", LOCAL_STATE),
];

/// Members of libraries that are absent.
const ABSENT_MEMBERS: [(&str, &str, &str); 4] = [
    ("math", "random", NO_CHANCE),
    ("math", "randomseed", NO_CHANCE),
    ("math", "noise", NO_CHANCE),
    ("table", "move", "a loop: table.move cannot be stopped"),
];

/// All findings of a source, in its order.
#[must_use]
pub fn lint(source: &str) -> Vec<Finding> {
    let tokens = token::tokens(source);
    let declared = declared(&tokens);
    let mut findings: Vec<Finding> = (0..tokens.len())
        .filter_map(|at| finding(&tokens, at, &declared))
        .collect();
    findings.dedup();
    findings
}

/// Methods of `i.h`; each has the name of a series as its first argument.
const PAST: [&str; 9] = [
    "last", "age", "mean", "min", "max", "q", "slope", "delta", "seen",
];

/// Names of series that a source writes out in calls of `i.h`, with their lines.
#[must_use]
pub fn series_named(source: &str) -> Vec<(u32, &str)> {
    let tokens = token::tokens(source);
    let calls = tokens.windows(4).filter(|call| {
        let [colon, method, open, name] = call else {
            return false;
        };
        colon.text == ":"
            && PAST.contains(&method.text)
            && open.text == "("
            && name.kind == Kind::Literal
    });
    calls
        .filter_map(|call| {
            let name = call.last()?;
            let quote = name.text.chars().next().filter(|c| "'\"".contains(*c))?;
            let inner = name.text.strip_prefix(quote)?.strip_suffix(quote)?;
            Some((name.line, inner))
        })
        .collect()
}

/// Names of locals and parameters anywhere in the source. They may be those of globals elsewhere.
fn declared<'a>(tokens: &[Token<'a>]) -> BTreeSet<&'a str> {
    let mut declared = BTreeSet::new();
    for (at, token) in tokens.iter().enumerate() {
        let mut after = tokens.iter().skip(at + 1).peekable();
        match token.text {
            "local" => drop(after.next_if(|next| next.text == "function")),
            "for" => {}
            // Parameters stand in parentheses, behind the function's name if it has one.
            "function" => while after.next().is_some_and(|next| next.text != "(") {},
            _ => continue,
        }
        let is_list = |next: &&Token<'_>| next.kind == Kind::Name || next.text == ",";
        let names = after.take_while(is_list);
        declared.extend(
            names
                .filter(|next| next.kind == Kind::Name)
                .map(|it| it.text),
        );
    }
    declared
}

fn finding(tokens: &[Token<'_>], at: usize, declared: &BTreeSet<&str>) -> Option<Finding> {
    let token = tokens.get(at)?;
    let text = |at: Option<usize>| at.and_then(|at| tokens.get(at)).map(|token| token.text);
    let make = |rule: String, instead, is_refused| Finding {
        line: token.line,
        rule,
        instead,
        is_refused,
    };
    let before = text(at.checked_sub(1));
    match token.kind {
        Kind::Directive => Some(make(
            format!("`{}` changes how the source is compiled", token.text),
            "no such line; `--!strict` is allowed",
            true,
        )),
        Kind::Symbol if token.text == "^" => Some(make(
            "a power by `^` depends on the machine's C library".to_owned(),
            "math.pow(a, b), or a * a",
            true,
        )),
        Kind::Name
            if !declared.contains(token.text)
                && !matches!(before, Some("." | ":" | "function")) =>
        {
            let next = text(Some(at + 1));
            let member = (next == Some(".")).then(|| text(Some(at + 2))).flatten();
            let (name, instead) = absent(token.text, member)?;
            // A field of a table, or a local that is assigned.
            (next != Some("=")).then(|| make(format!("`{name}` is not there"), instead, false))
        }
        Kind::Name | Kind::Symbol | Kind::Literal => None,
    }
}

fn absent(name: &str, member: Option<&str>) -> Option<(String, &'static str)> {
    let global = ABSENT.iter().find(|(absent, _)| *absent == name);
    if let Some((name, instead)) = global {
        return Some(((*name).to_owned(), instead));
    }
    let is_absent = |it: &&(&str, &str, &str)| it.0 == name && Some(it.1) == member;
    let (library, member, instead) = ABSENT_MEMBERS.iter().find(is_absent)?;
    Some((format!("{library}.{member}"), instead))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(source: &str) -> Vec<(u32, String, bool)> {
        let findings = lint(source).into_iter();
        findings
            .map(|it| (it.line, it.rule, it.is_refused))
            .collect()
    }

    #[test]
    fn power_by_operator_is_refused() {
        let found = rules("local a = 2\nreturn a ^ 0.3");
        let rule = "a power by `^` depends on the machine's C library".to_owned();
        assert_eq!(found, [(2, rule, true)]);
        assert_eq!(rules("a ^= 2").len(), 1);
        assert_eq!(rules("return `{a ^ 2}`").len(), 1);
        assert!(rules("return 'a^b' .. \"^\" .. [[ ^ ]] .. `^` -- ^\n--[==[ ^ ]] ]==]").is_empty());
    }

    #[test]
    fn power_is_found_after_a_string_of_several_lines() {
        for source in [
            "return 'a\\z\n b' .. 2 ^ 3 .. ''",
            "return 'a\\\r\nb' .. 2 ^ 3 .. ''",
            "return 'a\\\nb' .. 2 ^ 3 .. ''",
        ] {
            assert_eq!(rules(source).len(), 1, "{source:?}");
        }
    }

    #[test]
    fn directives_to_the_compiler_are_refused() {
        let found = rules("--!strict\n--!optimize 2\nreturn 1");
        let rule = "`--!optimize 2` changes how the source is compiled".to_owned();
        assert_eq!(found, [(2, rule, true)]);
        assert_eq!(rules("--!native").len(), 1);
    }

    #[test]
    fn series_are_found_where_they_are_written_out() {
        let source = "local a = i.h:mean(\"load1\", 300)\nlocal b = i.h : last( 'used' )
            local c = i.h:max(name, 60) .. 'x:max(\"no\")' -- h:min(\"no\")
            local d = s:rep(\"no\", 2)";
        assert_eq!(series_named(source), [(1, "load1"), (2, "used")]);
    }

    #[test]
    fn absent_names_are_found_where_they_are_read() {
        let found = rules("local t = os.time()\nlocal r = math.random(3)");
        let expected = [
            (1, "`os` is not there".to_owned(), false),
            (2, "`math.random` is not there".to_owned(), false),
        ];
        assert_eq!(found, expected);
        assert!(rules("return {os = 1, x = i.os, y = math.floor(2)}").is_empty());
        let locals = "local used, load = 1, 2 for time, io in f do end
            local function print(warn, debug) return load + warn(io) end";
        assert!(rules(locals).is_empty(), "{:?}", rules(locals));
    }
}
