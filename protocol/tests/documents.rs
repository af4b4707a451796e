//! Requirement: N50. What the documents say of ports, messages and defaults is what the code says.

use std::collections::BTreeSet;
use std::path::PathBuf;

use protocol::vm::VirtualMachineMigration;
use serde_json::{Value, json};

/// A file of the checkout that the test runs in; checkouts share what is compiled.
fn read(path: &str) -> String {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| ".".into(), PathBuf::from);
    let path = package.join("..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The part of a document under a heading.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let (_, rest) = text.split_once(heading).expect("the heading is there");
    rest.split("\n## ").next().unwrap_or(rest)
}

/// The cells of each row of the tables in a text, but for the first two rows of each.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let lines: Vec<&str> = text.lines().collect();
    let mut rows = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let is_head = lines
            .get(at + 1)
            .is_some_and(|next| next.starts_with("|--"));
        if line.starts_with("| ") && !is_head {
            let cells = line.trim_matches('|').split(" | ").map(str::trim);
            rows.push(cells.collect());
        }
    }
    rows
}

/// What stands between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Whether a line has both, the number not as a part of another.
fn says(text: &str, name: &str, number: &str) -> bool {
    let words = |line: &str| -> Vec<String> {
        let words = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        words.map(str::to_owned).collect()
    };
    text.lines().any(|line| {
        let has = |word: &str| words(line).iter().any(|it| it == word);
        line.contains(name) && has(number)
    })
}

/// The variants of an enum, by its source.
fn variants(source: &str, name: &str) -> BTreeSet<String> {
    let (_, body) = source
        .split_once(&format!("pub enum {name} {{\n"))
        .expect("the enum is there");
    let (body, _) = body.split_once("\n}").expect("it ends");
    let lines = body.lines().filter_map(|line| line.strip_prefix("    "));
    let names = lines.filter(|line| line.starts_with(|letter: char| letter.is_uppercase()));
    names
        .map(|line| line.trim_end_matches([',', '{', ' ']).to_owned())
        .collect()
}

#[test]
fn n50_the_ports_in_the_documents_are_those_of_the_code() {
    let text = read("docs/reference/ports.md");
    let rows = rows(section(&text, "## Who dials whom"));
    assert!(rows.len() > 10, "{rows:?}");
    let mut told = BTreeSet::new();
    for row in &rows {
        let (port, said) = (row[2], quoted(row[4]));
        let [file, name] = said[..] else {
            panic!("{row:?} does not say where")
        };
        assert!(says(&read(file), name, port), "{file} has no {name} {port}");
        told.insert(port.to_owned());
    }
    // And none is left out that the wire knows.
    for file in ["permit.rs", "monitor.rs", "migration.rs", "runner.rs"] {
        let source = read(&format!("protocol/src/{file}"));
        let consts = source.lines().filter(|line| line.contains("PORT: u16 = "));
        for line in consts {
            let port = line.rsplit(' ').next().expect("a number");
            let port = port.trim_end_matches(';');
            assert!(told.contains(port), "{file}: {line}");
        }
    }
}

#[test]
fn n50_the_messages_in_the_documents_are_those_of_the_code() {
    let text = read("docs/reference/ports.md");
    let (_, sentence) = text
        .split_once("The link carries from the agent ")
        .expect("the sentence is there");
    let (agents, monitors) = sentence
        .split_once("from the monitor ")
        .expect("both sides are there");
    let monitors = monitors.split(".\n").next().expect("it ends");
    let source = read("protocol/src/monitor.rs");
    for (told, name) in [(agents, "AgentBody"), (monitors, "MonitorBody")] {
        let told: BTreeSet<String> = quoted(told).into_iter().map(str::to_owned).collect();
        assert_eq!(told, variants(&source, name), "{name}");
    }
}

#[test]
fn n50_the_capabilities_in_the_documents_are_those_of_the_code() {
    let text = read("docs/monitor.md");
    let rows = rows(section(&text, "## The link"));
    let told: BTreeSet<&str> = rows
        .iter()
        .map(|row| quoted(row[0])[0].trim_end_matches("MS"))
        .collect();
    let all = protocol::monitor_v2::Capabilities::all(protocol::time::Span::from_secs(5));
    let names = all.names();
    let known: BTreeSet<&str> = names
        .iter()
        .map(|name| name.trim_end_matches(|letter: char| letter.is_ascii_digit()))
        .collect();
    assert_eq!(told, known);
}

#[test]
fn n50_the_defaults_of_migrations_are_those_of_the_code() {
    let text = read("docs/migration.md");
    let object = json!({"metadata": {"name": "m"}, "spec": {"vmName": "pg"}});
    let object: VirtualMachineMigration = serde_json::from_value(object).expect("reads");
    let made = serde_json::to_value(&object.spec).expect("encodes");
    let (_, table) = text.split_once("| `spec` | default |").expect("a table");
    let table = table.split("\n\n").next().unwrap_or(table);
    let mut seen = 0;
    for row in rows(table) {
        let key = quoted(row[0])[0];
        let Some(member) = made.get(key) else {
            assert_eq!(row[1], "–", "{key} has no default");
            continue;
        };
        if key == "vmName" || row[1] == "–" {
            continue;
        }
        let told = row[1].trim_matches('`');
        let told: Value = serde_json::from_str(told).unwrap_or_else(|_| json!(told));
        assert_eq!(&told, member, "{key}");
        seen += 1;
    }
    assert!(seen >= 5, "{seen}");
}
