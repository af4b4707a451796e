//! A journal that the agent of an earlier version wrote, before policies: format 1. Today's
//! programs read it as that version did.
//!
//! `testdata/journal_format_1/` holds two segments of one run about one VM. The agent's core,
//! recorder and encoder of commit 32017b8 wrote them, fed by chance: metrics, answers of every
//! kind, changed objects and settings, lost connections, checkpoints. That version's own replay
//! found in them what the expected line says.

mod support;

use std::path::PathBuf;

use protocol::journal::{crc, hash_text};
use support::Site;

const REPLAYED: &str = "1 VMs, 440 steps decided again; equal: 176 decisions, 110 checksums over \
    440 outputs; different: 0; warm-up: 0, tail: 0, gaps: 0";

fn folder() -> PathBuf {
    PathBuf::from("testdata/journal_format_1")
}

fn segment(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).expect("a segment")
}

fn lines() -> String {
    segment("0000000001.bj") + &segment("0000000002.bj")
}

/// Requirement: V05
#[test]
fn journal_of_format_1_replays_as_its_own_version_replayed_it() {
    let site = Site::new();
    let folder = folder().display().to_string();
    let replayed = site.run(&["replay", &folder]).succeeds();
    assert_eq!(replayed.out, format!("{REPLAYED}\n"));
}

#[test]
fn journal_of_format_1_is_whole_and_read_without_a_change() {
    let site = Site::new();
    let folder = folder().display().to_string();
    let count = lines().lines().count();
    let verified = site.run(&["journal", "verify", &folder]).succeeds();
    let expected =
        format!("2 segments, {count} lines, 0 gaps: every line and every link is good\n");
    assert_eq!(verified.out, expected);
    let printed = site.run(&["journal", "cat", &folder]).succeeds();
    assert_eq!(printed.out, lines());
    assert!(lines().starts_with(|first: char| first.is_ascii_hexdigit()));
    assert!(lines().contains(",\"v\":1,"), "the format is 1");
}

#[test]
fn altered_line_of_format_1_is_named() {
    let site = Site::new();
    let text = segment("0000000001.bj");
    let decision = text.find("\"k\":\"D\"").expect("a decision");
    let start = text[..decision].rfind('\n').expect("a line before") + 1;
    let end = start + text[start..].find('\n').expect("its end");
    let json = text[start + 9..end].replacen("\"want\":", "\"want\":1", 1);
    let checksum = hash_text(crc(0, json.as_bytes()));
    let altered = format!("{}{checksum} {json}{}", &text[..start], &text[end..]);
    let copy = tempfile::tempdir().expect("a folder");
    std::fs::write(copy.path().join("0000000001.bj"), altered).expect("written");
    let replayed = site.run(&["replay", copy.path().to_str().expect("text")]);
    assert_eq!(replayed.code, Some(1), "{replayed:#?}");
    assert!(replayed.out.contains("different: 1;"), "{replayed:#?}");
}
