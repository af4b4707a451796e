//! Sources that are long and alike: they aim at the compiler.

/// Longest source of a policy.
const LONGEST: usize = 64 << 10;

/// Name, ends and source.
pub(crate) fn all() -> Vec<(&'static str, &'static str, String)> {
    vec![
        ("parentheses", "bad", nested("(", "1", ")", 30_000)),
        ("tables", "bad", nested("{", "1", "}", 30_000)),
        (
            "functions",
            "bad",
            nested("(function() return ", "1", " end)()", 2_500),
        ),
        ("nots", "bad", nested("not ", "1", "", 15_000)),
        ("minuses", "bad", nested("- ", "1", "", 30_000)),
        ("interpolations", "bad", nested("`{", "1", "}`", 15_000)),
        ("calls", "bad", nested("f(", "1", ")", 20_000)),
        ("indices", "bad", nested("i[", "1", "]", 20_000)),
        ("powers", "bad", nested("2 ^ ", "1", "", 10_000)),
        (
            "ands",
            "bad|answers",
            nested("i and ", "{cu = 0, reason = 'x'}", "", 9_000),
        ),
        (
            "concatenations",
            "bad|syntax|output",
            nested("'x' .. ", "'y'", "", 8_000),
        ),
        ("sums", "bad|output", nested("1 + ", "1", "", 15_000)),
        (
            "if_elses",
            "bad",
            nested("if i then 1 else ", "1", "", 3_500),
        ),
        (
            "dos",
            "bad",
            body(&format!("{}{}", "do ".repeat(9_000), "end ".repeat(9_000))),
        ),
        (
            "ifs",
            "bad",
            body(&format!(
                "{}{}",
                "if i then ".repeat(4_000),
                "end ".repeat(4_000)
            )),
        ),
        (
            "elseifs",
            "bad|output",
            body(&format!(
                "if i.x then {} end",
                "elseif i.y then ".repeat(3_800)
            )),
        ),
        (
            "loops_in_loops",
            "bad",
            body(&format!(
                "{}{}",
                "while true do ".repeat(3_000),
                "end ".repeat(3_000)
            )),
        ),
        (
            "locals",
            "bad|output",
            body(&numbered("local v# = # ", 300)),
        ),
        (
            "locals_in_a_list",
            "bad|output",
            body(&format!("local {} = 1", vec!["v"; 20_000].join(","))),
        ),
        ("upvalues", "bad|output", upvalues()),
        (
            "parameters",
            "bad",
            format!("return function({}) end", vec!["v"; 20_000].join(",")),
        ),
        (
            "arguments",
            "bad|syntax",
            body(&format!("f({})", vec!["1"; 20_000].join(","))),
        ),
        (
            "constants",
            "bad|output",
            body(&numbered("i.v# = # ", 4_000)),
        ),
        (
            "members",
            "bad|output",
            body(&format!("local t = {{{}}}", numbered("v# = #,", 5_000))),
        ),
        (
            "items",
            "bad|output",
            body(&format!("local t = {{{}}}", "1,".repeat(30_000))),
        ),
        (
            "dots",
            "bad|syntax",
            body(&format!("return i{}", ".x".repeat(30_000))),
        ),
        (
            "methods",
            "bad|syntax",
            body(&format!("return i{}", ":x()".repeat(15_000))),
        ),
        (
            "returns",
            "bad|output",
            body(&format!("return {}", vec!["1"; 20_000].join(","))),
        ),
        (
            "digits",
            "bad|output",
            body(&format!("return {}", "9".repeat(60_000))),
        ),
        (
            "hex_digits",
            "bad|output",
            body(&format!("return 0x{}", "f".repeat(60_000))),
        ),
        (
            "one_long_text",
            "output",
            body(&format!("return '{}'", "x".repeat(60_000))),
        ),
        (
            "one_long_name",
            "syntax|output|bad",
            body(&format!("return {}", "x".repeat(60_000))),
        ),
        (
            "one_long_comment",
            "output",
            body(&format!("--[[{}]]", "x".repeat(60_000))),
        ),
        (
            "long_brackets",
            "bad",
            format!("return [{}[", "=".repeat(60_000)),
        ),
        (
            "escapes_in_a_text",
            "output",
            body(&format!("return '{}'", "\\u{10FFFF}".repeat(6_000))),
        ),
        (
            "wrong_escapes",
            "bad",
            body(&format!("return '{}'", "\\u{110000}".repeat(100))),
        ),
        ("semicolons", "bad|output", body(&";".repeat(60_000))),
        (
            "empty_functions",
            "bad|output",
            body(&"local _ = function() end ".repeat(190)),
        ),
        (
            "types",
            "bad",
            format!(
                "type T = {}number{}",
                "{x: ".repeat(10_000),
                "}".repeat(10_000)
            ),
        ),
        (
            "type_unions",
            "bad",
            format!("type T = {}nil", "number | ".repeat(7_000)),
        ),
        (
            "generics",
            "bad",
            format!(
                "local x: {}number{}",
                "A<".repeat(15_000),
                ">".repeat(15_000)
            ),
        ),
        (
            "attributes",
            "bad",
            format!("{} function f() end", "@native ".repeat(7_000)),
        ),
        ("too_long", "bad", " ".repeat(LONGEST + 1)),
        ("not_text", "bad", "\u{FFFD}".repeat(20_000)),
        (
            "right_to_left",
            "bad",
            "return \u{202e} function(i) end".to_owned(),
        ),
        (
            "byte_order_mark",
            "bad|output",
            "\u{feff}return function(i) end".to_owned(),
        ),
        (
            "carriage_returns",
            "output",
            "return\rfunction(i)\rend".to_owned(),
        ),
    ]
}

fn body(text: &str) -> String {
    format!("return function(i) {text} end")
}

fn nested(open: &str, inner: &str, close: &str, depth: usize) -> String {
    let (open, close) = (open.repeat(depth), close.repeat(depth));
    body(&format!("return {open}{inner}{close}"))
}

/// The text so many times, with `#` the number.
fn numbered(text: &str, count: usize) -> String {
    (0..count)
        .map(|n| text.replace('#', &n.to_string()))
        .collect()
}

fn upvalues() -> String {
    let blocks = (0..3).map(|block| {
        let locals = numbered(&format!("local b{block}v# = # "), 90);
        format!("{locals} return function()")
    });
    let uses: String = (0..3)
        .map(|block| numbered(&format!("i = b{block}v# "), 90))
        .collect();
    let blocks: String = blocks.collect::<Vec<_>>().join(" ");
    body(&format!("{blocks} {uses} end end end"))
}
