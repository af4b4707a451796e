//! A small checkout for tests, with one of each figure.

use std::collections::BTreeMap;

use super::figures::Census;
use crate::tidy::text;

/// Its figures, with three dead citations.
pub(super) fn census() -> Census {
    let wide = "word ".repeat(text::COLUMNS / 4);
    let texts = [
        ("a/src/lib.rs", "mod x;\nmod y;\n".to_owned()),
        (
            "a/src/x.rs",
            format!(
                "/// An X.\nfn x() {{\n    let n = y::m();\n    let n = n.k();\n}}\n\n// {wide}\n"
            ),
        ),
        (
            "a/src/y.rs",
            "fn y() { x::x(); }\nuse crate::x;\n\n#[cfg(test)]\nmod tests {\n    // It is.\n    \
             fn t() {\n        l.accept();\n    }\n}\n"
                .to_owned(),
        ),
        ("b/src/lib.rs", "fn b() { l.accept() }\n".to_owned()),
        ("b/tests/c.rs", "\n".repeat(500)),
    ];
    let texts = texts.map(|(file, text)| (file.to_owned(), text));
    Census::of(&BTreeMap::from(texts), 3)
}
