//! Nothing that reads a clock, chance or the machine is reachable by any road.

use policy_contract::{Fault, History, Input, Spec};
use policy_engine::{Engine, Evaluation, Failed, LoadError};

const GLOBALS: [&str; 40] = [
    "os",
    "io",
    "debug",
    "coroutine",
    "require",
    "load",
    "loadstring",
    "loadfile",
    "dofile",
    "getfenv",
    "setfenv",
    "newproxy",
    "collectgarbage",
    "gcinfo",
    "pcall",
    "xpcall",
    "setmetatable",
    "getmetatable",
    "rawget",
    "rawset",
    "rawequal",
    "rawlen",
    "print",
    "warn",
    "typeof",
    "unpack",
    "buffer",
    "vector",
    "utf8",
    "integer",
    "_G",
    "_VERSION",
    "shared",
    "package",
    "module",
    "tick",
    "time",
    "settings",
    "script",
    "game",
];

const MEMBERS: [(&str, &str); 6] = [
    ("math", "random"),
    ("math", "randomseed"),
    ("math", "noise"),
    ("table", "move"),
    ("string", "dump"),
    ("std", "ask"),
];

/// Calls that the compiler has built in, with arguments that they accept.
const BUILT_IN: [&str; 14] = [
    "rawget({}, 1)",
    "rawset({}, 1, 1)",
    "rawequal(1, 1)",
    "rawlen({})",
    "typeof(1)",
    "unpack({})",
    "getmetatable({})",
    "setmetatable({}, nil)",
    "vector.create(1, 2, 3)",
    "vector.magnitude(1)",
    "buffer.readi8(1, 0)",
    "buffer.writei8(1, 0, 0)",
    "integer.add(1, 2)",
    "integer.create(1)",
];

fn ask(source: &str) -> Result<Evaluation, Failed> {
    let engine = Engine::load(&Spec::of_source(source)).expect(source);
    engine.ask(&Input::sample(), &History::new(&[]), 0.0)
}

fn ask_body(body: &str) -> Result<Evaluation, Failed> {
    ask(&format!("return function(i) {body}\nend"))
}

/// The note of an answer, for texts.
fn text(expression: &str) -> String {
    let body = format!("return {{cu = 0, reason = 'x', note = {expression}}}");
    let reply = ask_body(&body).unwrap_or_else(|failed| panic!("{expression}: {failed}"));
    let note = reply.answer.note.expect("a note");
    note.as_str().to_owned()
}

#[test]
fn v01_absent_globals_are_nil_as_a_global_a_local_and_an_argument() {
    for name in GLOBALS {
        assert_eq!(text(&format!("type({name})")), "nil", "{name}");
        let body = format!("local f = {name} return {{cu = f == nil and 1 or 0, reason = 'x'}}");
        let reply = ask_body(&body).expect(name);
        assert_eq!(reply.answer.to_value()["cu"], 1.0, "{name}");
        let failed = ask_body(&format!("return {name}()")).expect_err(name);
        assert_eq!(failed.fault, Fault::Syntax, "{name}: {failed}");
    }
}

#[test]
fn v01_absent_members_are_nil_by_a_field_a_local_and_an_index() {
    for (library, member) in MEMBERS {
        let roads = [
            format!("type({library}.{member})"),
            format!("type({library}[\"{member}\"])"),
            format!(
                "type({library}[\"{}\" .. \"{}\"])",
                &member[..1],
                &member[1..]
            ),
        ];
        for road in roads {
            assert_eq!(text(&road), "nil", "{road}");
        }
        let alias = format!("local l = {library} local f = l.{member} return f(1)");
        assert_eq!(ask_body(&alias).expect_err(&alias).fault, Fault::Syntax);
    }
}

#[test]
fn v01_calls_that_the_compiler_has_built_in_are_absent() {
    for call in BUILT_IN {
        let name = call.split('(').next().unwrap_or_default();
        let member = name.rsplit('.').next().unwrap_or_default();
        let arguments = &call[name.len()..];
        let roads = [
            format!("return {call}"),
            format!("local f = {name} return f{arguments}"),
            // A global of this name would switch the compiler's list off.
            format!("if false then {member} = 1 end return {call}"),
        ];
        for road in roads {
            let failed = ask_body(&road).expect_err(&road);
            assert_eq!(failed.fault, Fault::Syntax, "{road}: {failed}");
        }
    }
}

#[test]
fn v01_functions_of_the_c_library_are_replaced_by_every_road() {
    let x = 0.731_f64;
    let expected = [
        ("exp", libm::exp(x)),
        ("log", libm::log(x)),
        ("sin", libm::sin(x)),
        ("cos", libm::cos(x)),
        ("tan", libm::tan(x)),
        ("tanh", libm::tanh(x)),
        ("log10", libm::log10(x)),
    ];
    for (name, value) in expected {
        let roads = [
            format!("math.{name}({x})"),
            format!("math[\"{name}\"]({x})"),
            format!("(function() local f = math.{name} return f({x}) end)()"),
            format!("(function() if false then {name} = 1 end return math.{name}({x}) end)()"),
        ];
        for road in roads {
            let text = text(&format!("string.format(\"%.17g\", {road})"));
            let read: f64 = text.parse().expect("a number");
            assert_eq!(read.to_bits(), value.to_bits(), "{road}");
        }
    }
    let power = text("string.format(\"%.17g\", math.pow(1.7, 0.3))");
    let read: f64 = power.parse().expect("a number");
    assert_eq!(read.to_bits(), libm::pow(1.7, 0.3).to_bits());
}

#[test]
fn v01_texts_carry_no_address() {
    let named = [
        ("tostring({})", "table"),
        ("tostring(type)", "function"),
        ("tostring(i.h)", "userdata"),
        ("string.format('%*', {})", "table"),
        ("string.format('%s', i.h)", "userdata"),
        ("`{math.abs} {i}`", "function table"),
        ("('%*'):format(string.format)", "function"),
        (
            "tostring(nil) .. tostring(1.5) .. tostring(true)",
            "nil1.5true",
        ),
    ];
    for (expression, expected) in named {
        assert_eq!(text(expression), expected, "{expression}");
    }
}

#[test]
fn v01_nothing_is_kept_between_calls() {
    let source = "local n = 0 local t = {} return function(i) n += 1 t[#t + 1] = 1
        return {cu = n + #t, reason = 'x'} end";
    let engine = Engine::load(&Spec::of_source(source)).expect("it loads");
    let past = History::new(&[]);
    let ask = || engine.ask(&Input::sample(), &past, 0.0).expect("an answer");
    let first = ask();
    for _ in 0..100 {
        assert_eq!(ask(), first);
    }
    assert_eq!(first.answer.to_value()["cu"], 2.0);
}

#[test]
fn v03_sources_that_are_not_loaded_name_line_and_rule() {
    let load = |source: &str| Engine::load(&Spec::of_source(source)).expect_err(source);
    let cases = [
        ("return function(i)\n  return {cu = }\nend", 2),
        ("return function(i)\n\n return 2 ^ 3 end", 3),
        ("--!optimize 2\nreturn function(i) end", 1),
        ("local a\nerror('x')", 2),
        ("return 5", 1),
        ("\u{1b}Lua", 0),
    ];
    for (source, line) in cases {
        let LoadError { line: found, rule } = load(source);
        assert_eq!(found, line, "{source:?}: {rule}");
        assert!(!rule.is_empty());
    }
}
