//! Requirement: N50. The defaults in `docs/scaling.md` are those of the code.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// A file of the package in the checkout that the test runs in; checkouts share what is compiled.
fn read(path: &str) -> String {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| ".".into(), PathBuf::from);
    std::fs::read_to_string(package.join(path)).expect("is there")
}

/// `camelCase` for `snake_case`, but for names that the wire spells in capitals.
fn key_of(field: &str) -> String {
    let mut words = field.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |key, word| match word {
        "lfc" => key + "LFC",
        word => key + &word[..1].to_uppercase() + &word[1..],
    })
}

/// What `ScalingConfig::default` gives each key, as its source has it.
fn defaults() -> BTreeMap<String, String> {
    let source = read("src/core/scaling.rs");
    let (_, body) = source
        .split_once("impl Default for ScalingConfig {")
        .expect("it has defaults");
    let (body, _) = body.split_once("\n}").expect("it ends");
    let fields = body.lines().filter_map(|line| {
        let (field, value) = line.trim().trim_end_matches(',').split_once(": ")?;
        let value = value.rsplit("::").next().unwrap_or(value);
        Some((key_of(field), value.to_lowercase()))
    });
    fields.collect()
}

fn alike(a: &str, b: &str) -> bool {
    match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => (a - b).abs() < 1e-9,
        _ => a == b,
    }
}

/// Requirement: N50
#[test]
fn documented_defaults_equal_the_code() {
    let (text, defaults) = (read("../docs/scaling.md"), defaults());
    let mut seen = 0;
    let mut in_table = false;
    for line in text.lines() {
        if line.starts_with("| key | default ") {
            in_table = true;
        }
        if line.is_empty() {
            in_table = false;
        }
        if !in_table || !line.starts_with("| `") {
            continue;
        }
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let told = cells[1].trim_matches(['`', '"']);
        for key in cells[0].split('`').skip(1).step_by(2) {
            let known = defaults.get(key).unwrap_or_else(|| panic!("no key {key}"));
            assert!(alike(known, told), "{key} is {known}, not {told}");
            seen += 1;
        }
    }
    // All but the mode, which has a section of its own.
    assert_eq!(seen, defaults.len() - 1, "{defaults:?}");
}
