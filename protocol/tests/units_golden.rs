//! Units, quantities, revisions and the annotations that hold them, against the tables under
//! `testdata/units/`: one line per input, with what it reads as when written again, or `!` when it
//! is refused.
//!
//! Sources: docs/compatibility/agent.md §4.0, docs/compatibility/scheduler.md §2.2 ("Resources
//! JSON"), docs/compatibility/neonvm.md §1.1, §1.10.

use std::path::Path;

use protocol::annotations::{
    ANNOTATION_APPROVED, ANNOTATION_BOUNDS, ANNOTATION_REQUESTED, ANNOTATION_SCALING_UNIT,
    ANNOTATION_VM_OVERCOMMIT, ANNOTATION_VM_RESOURCES, ANNOTATION_VM_USAGE, Overcommit,
    ScalingBounds, VmResources, VmUsage,
};
use protocol::quantity::Quantity;
use protocol::revision::RevisionWithTime;
use protocol::units::{Bytes, MilliCpu, Resources};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The rows of a table, split at ` | `.
fn table(name: &str) -> Vec<Vec<String>> {
    let path = Path::new("testdata/units").join(name);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let rows: Vec<Vec<String>> = lines
        .map(|line| line.split(" | ").map(str::to_owned).collect())
        .collect();
    assert!(rows.len() > 5, "{name} is nearly empty");
    rows
}

fn check<T: Serialize + DeserializeOwned + std::fmt::Debug>(input: &str, expected: &str) {
    let read = serde_json::from_str::<T>(input);
    if expected == "!" {
        assert!(read.is_err(), "{input} was read as {read:?}");
        return;
    }
    let value = read.unwrap_or_else(|error| panic!("{input} was refused: {error}"));
    let written = serde_json::to_string(&value).expect("encodes");
    assert_eq!(written, expected, "{input}");
    let again = serde_json::from_str::<T>(&written).expect("our own output reads");
    assert_eq!(
        serde_json::to_string(&again).expect("encodes"),
        written,
        "{input}"
    );
}

fn check_table<T: Serialize + DeserializeOwned + std::fmt::Debug>(name: &str) {
    for row in table(name) {
        check::<T>(&row[0], &row[1]);
    }
}

#[test]
fn milli_cpus() {
    check_table::<MilliCpu>("milli_cpu.txt");
}

#[test]
fn bytes() {
    check_table::<Bytes>("bytes.txt");
}

#[test]
fn quantities() {
    check_table::<Quantity>("quantity.txt");
}

#[test]
fn quantity_of_64_characters_is_read_and_a_longer_one_is_refused() {
    for (digits, is_read) in [(64, true), (65, false)] {
        let text = format!("{:0>digits$}", 7);
        assert_eq!(text.parse::<Quantity>().is_ok(), is_read, "{text}");
    }
}

#[test]
fn quantities_are_compared_by_value_whatever_their_spelling() {
    let quantity = |text: &str| text.parse::<Quantity>().expect(text);
    assert_eq!(quantity("1Gi"), quantity("1024Mi"));
    assert_ne!(quantity("1Gi"), quantity("1G"));
}

#[test]
fn resources() {
    check_table::<Resources>("resources.txt");
}

#[test]
fn revisions() {
    check_table::<RevisionWithTime>("revisions.txt");
}

#[test]
fn annotations() {
    for row in table("annotations.txt") {
        let (key, input, expected) = (row[0].as_str(), row[1].as_str(), row[2].as_str());
        match key {
            ANNOTATION_VM_RESOURCES => check::<VmResources>(input, expected),
            ANNOTATION_VM_USAGE => check::<VmUsage>(input, expected),
            ANNOTATION_VM_OVERCOMMIT => check::<Overcommit>(input, expected),
            ANNOTATION_BOUNDS => check::<ScalingBounds>(input, expected),
            ANNOTATION_SCALING_UNIT | ANNOTATION_REQUESTED | ANNOTATION_APPROVED => {
                check::<Resources>(input, expected)
            }
            other => panic!("{other} is no annotation of ours"),
        }
    }
}
