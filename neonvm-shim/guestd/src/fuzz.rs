//! Properties of units and templates, as a body for the coverage-guided fuzzer of `fuzz/` and for a
//! property test.

#![expect(
    clippy::missing_panics_doc,
    reason = "to panic is what this is for: a panic is a finding"
)]

use std::collections::BTreeMap;

use protocol::units::Bytes;

use crate::core::render::unit::{Template, parse};
use crate::core::render::{Content, Values, WatchedFile, template};

/// Most bytes that the fuel of a rendering pays for, with room for the text of the template itself.
const MAX_RENDERED: usize = 4 << 20;

/// The text of a unit, then a zero byte and the text of a watched file. A unit names no relative
/// path. Its templates render alike twice, within their fuel. A refusal or failure is one line.
pub fn render_unit(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (unit, watched) = text.split_once('\0').unwrap_or((&text, "{}"));
    let unit = match parse(unit) {
        Ok(unit) => unit,
        Err(refusal) => {
            assert!(!refusal.to_string().is_empty());
            return;
        }
    };
    assert!(unit.destination.is_absolute() && unit.mode.0 <= 0o777);
    let commands = unit.check.iter();
    assert!(
        commands
            .flatten()
            .next()
            .is_none_or(|program| program.starts_with('/'))
    );
    let file = match serde_json::from_str(watched) {
        Ok(document) => WatchedFile::Json(document),
        Err(_) => WatchedFile::Text(watched.to_owned()),
    };
    let values = Values {
        cpus: 3,
        memory: Bytes::gib(2),
        files: unit
            .files
            .keys()
            .map(|name| (name.clone(), file.clone()))
            .collect(),
    };
    let rendered = template::render(&unit.template, &values);
    assert_eq!(rendered, template::render(&unit.template, &values));
    match (rendered, &unit.template) {
        (Ok(Content::File(text)), Template::File(_)) => assert!(text.len() <= MAX_RENDERED),
        (Ok(Content::Folder(files)), Template::Folder(templates)) => {
            assert!(files.keys().eq(templates.keys()));
            assert!(files.values().all(|text| text.len() <= MAX_RENDERED));
        }
        (Ok(content), templates) => panic!("{content:?} of {templates:?}"),
        (Err(error), _) => assert!(!error.is_empty()),
    }
    // Files that do not exist are no more than undefined values.
    let none = Values {
        files: BTreeMap::new(),
        ..values
    };
    let _ = template::render(&unit.template, &none);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn v27_every_seed_of_units_holds() {
        test_seeds::hold(&[("render_unit", render_unit)]);
    }

    proptest! {
        #[test]
        fn v27_units_and_templates_hold(
            template in r"(\{\{|\}\}|\{%|%\}|for |in |if |endfor|endif|set |x|cpus|files|\.a|\[0\]| ~ | \* |9|=|\||join|sort|int|replace|\(|\)|'| ){0,24}",
            watched in r#"(\{|\}|\[|\]|"a"|:|1|,|null){0,8}"#,
            member in "(mode = '[0-7]{0,5}'|owner = '[a-z:]{0,3}'|signal = \\{ http = 'http://[0-9:.]{0,12}' \\})?",
        ) {
            let text = format!(
                "destination = '/a/b'\n{member}\ntemplate = \"\"\"{template}\"\"\"\n[files]\nfiles = {{ path = '/c' }}\n\0{watched}"
            );
            render_unit(text.as_bytes());
        }
    }
}
