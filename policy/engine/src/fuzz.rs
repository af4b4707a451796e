//! What holds for any source of a policy before it runs, as a body for the coverage-guided fuzzer
//! of `fuzz/` and for the property tests beside it.

#![expect(
    clippy::missing_panics_doc,
    reason = "to panic is what these are for: a panic is a finding"
)]

use mlua::chunk::ChunkMode;
use policy_contract::Spec;

use crate::failure::{CHUNK, LoadError};
use crate::{Finding, globals, lint};

/// A source. Findings stand in its order, each on a line that it has, and a comment at its end
/// changes none. The compiler refuses it with a line that it has, or makes a program; the program
/// is not run.
pub fn policy_source(data: &[u8]) {
    let Ok(source) = std::str::from_utf8(data) else {
        return;
    };
    let lines = source.matches('\n').count() + 1;
    let findings = lint(source);
    let has_line = |line: u32| usize::try_from(line).is_ok_and(|line| line <= lines);
    for finding in &findings {
        assert!(finding.line > 0 && has_line(finding.line), "{finding:?}");
        assert!(!finding.rule.is_empty() && !finding.instead.is_empty());
    }
    assert!(findings.is_sorted_by_key(|finding| finding.line));
    if Spec::of_source(source).check().is_err() {
        return;
    }
    match compile(source) {
        Ok(()) => assert_eq!(lint(&format!("{source}\n-- a comment")), findings),
        Err(error) => {
            // An unfinished text ends behind the last line.
            assert!(has_line(error.line.saturating_sub(1)), "{error:?}");
            assert!(!error.rule.is_empty());
        }
    }
}

fn compile(source: &str) -> Result<(), LoadError> {
    let made = globals::interpreter().and_then(|lua| {
        lua.load(source)
            .set_name(format!("={CHUNK}"))
            .set_mode(ChunkMode::Text)
            .set_compiler(globals::compiler())
            .into_function()
            .map(drop)
    });
    made.map_err(|error| LoadError::of(&error))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_seed_of_sources_holds() {
        test_seeds::hold(&[("policy_source", policy_source)]);
        let read = |name: &str| {
            std::fs::read_to_string(format!("../../fuzz/seeds/policy_source/{name}")).expect(name)
        };
        let refused = |source: &str| lint(source).iter().any(|it: &Finding| it.is_refused);
        assert_eq!(compile(&read("database")), Ok(()));
        assert!(!refused(&read("database")) && refused(&read("power")));
        assert!(compile(&read("torn")).is_err());
    }

    fn any_source() -> impl Strategy<Value = String> {
        let word = "(local|function|end|return|if|then|else|for|in|do|while|not|and|i|x|os|math\\.random|table\\.move|pcall|std|=|==|\\^|\\.\\.|\\(|\\)|\\{|\\}|,|;|[0-9]{1,3}|0x[0-9a-f]|\"[^\"\n]{0,3}\"|'|`|`\\{x\\}`|\\[\\[|\\]\\]|\\[=\\[|--|--!strict|--!native|--\\[\\[|\n)";
        let text = format!("({word} ?){{0,24}}");
        proptest::string::string_regex(&text).expect("a pattern")
    }

    proptest! {
        #[test]
        fn sources_hold(text in any_source(), other in ".{0,40}") {
            policy_source(text.as_bytes());
            policy_source(other.as_bytes());
        }
    }
}
