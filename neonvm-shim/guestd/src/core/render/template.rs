//! Templates: the language of Jinja, reduced to what cannot read files or run without end.

use std::collections::BTreeMap;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, filters, tests};

use super::unit::Template;
use super::{Content, Values, WatchedFile};

/// Steps of one rendering, which also bound its memory: the engine counts one for each instruction
/// and for each 64 bytes.
const FUEL: u64 = 50_000;
/// Deepest nesting of calls and loops.
const MAX_DEPTH: usize = 50;

/// Checks the syntax of all templates.
///
/// # Errors
/// The first mistake, with its line.
pub fn compile(template: &Template) -> Result<(), String> {
    let environment = environment();
    for (name, text) in named(template) {
        let compiled = environment.template_from_named_str(name, text);
        compiled.map_err(|error| said(name, &error))?;
    }
    Ok(())
}

/// Renders all templates of a destination.
///
/// # Errors
/// A watched file has no value, or a template fails: an undefined value, a wrong type, too many
/// steps.
pub fn render(template: &Template, values: &Values) -> Result<Content, String> {
    let context = context(values)?;
    let environment = environment();
    let one = |(name, text): (&str, &str)| {
        let compiled = environment.template_from_named_str(name, text);
        let rendered = compiled.and_then(|compiled| compiled.render(context.clone()));
        rendered.map_err(|error| said(name, &error))
    };
    match template {
        Template::File(text) => Ok(Content::File(one(("", text))?)),
        Template::Folder(files) => {
            let rendered = files
                .iter()
                .map(|(name, text)| Ok((name.clone(), one((name, text))?)));
            Ok(Content::Folder(rendered.collect::<Result<_, String>>()?))
        }
    }
}

fn named(template: &Template) -> Vec<(&str, &str)> {
    match template {
        Template::File(text) => vec![("", text)],
        Template::Folder(files) => files
            .iter()
            .map(|(name, text)| (name.as_str(), text.as_str()))
            .collect(),
    }
}

fn environment<'source>() -> Environment<'source> {
    let mut environment = Environment::empty();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(MAX_DEPTH);
    environment.set_syntax(syntax());
    environment.add_filter("abs", filters::abs);
    environment.add_filter("default", filters::default);
    environment.add_filter("float", filters::float);
    environment.add_filter("int", filters::int);
    environment.add_filter("join", filters::join);
    environment.add_filter("length", filters::length);
    environment.add_filter("lower", filters::lower);
    environment.add_filter("max", filters::max);
    environment.add_filter("min", filters::min);
    environment.add_filter("replace", filters::replace);
    environment.add_filter("round", filters::round);
    environment.add_filter("sort", filters::sort);
    environment.add_filter("trim", filters::trim);
    environment.add_filter("upper", filters::upper);
    environment.add_test("defined", tests::is_defined);
    environment
}

/// Lines with nothing but a statement leave no line in the text.
fn syntax() -> SyntaxConfig {
    let mut syntax = SyntaxConfig::builder();
    syntax.keep_trailing_newline(true);
    syntax.trim_blocks(true).lstrip_blocks(true);
    // The delimiters are those of the engine, which it does not refuse.
    syntax.build().unwrap_or_default()
}

fn context(values: &Values) -> Result<Value, String> {
    let mut files = BTreeMap::new();
    for (name, file) in &values.files {
        let value = match file {
            WatchedFile::Text(text) => Value::from(text.as_str()),
            WatchedFile::Json(document) => Value::from(Serde(document)),
            WatchedFile::Unusable(reason) => return Err(format!("files.{name}: {reason}")),
        };
        files.insert(name.as_str(), value);
    }
    let bytes = values.memory.0;
    Ok(Value::from_pairs([
        ("cpus", Value::from(values.cpus)),
        ("memory_bytes", Value::from(bytes)),
        ("memory_mib", Value::from(bytes >> 20)),
        ("files", Value::from_pairs(files)),
    ]))
}

/// Where and why a template failed, in one line.
fn said(name: &str, error: &Error) -> String {
    let why = match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => format!("it takes more than {FUEL} steps"),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    };
    let line = error.line().map(|line| format!("line {line}: "));
    let file = if name.is_empty() {
        String::new()
    } else {
        format!("{name}: ")
    };
    format!("{file}{}{why}", line.unwrap_or_default())
}

#[cfg(test)]
mod golden;
