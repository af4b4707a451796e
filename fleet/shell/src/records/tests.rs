use daemon_kit::journal::{ActionChain, Identity, Limits, files};
use fleet_core::cause::EndCause;
use prometheus_client::registry::Registry;
use protocol::fleet::TurnResult;
use protocol::journal::Record;
use protocol::units::Resources;

use super::*;
use crate::changes::ChangeKind;

fn change(kind: ChangeKind, why: &str, failure: Option<&str>) -> Change {
    Change {
        kind,
        on: "default/vm-a".to_owned(),
        to: "bad".to_owned(),
        why: why.to_owned(),
        failure: failure.map(str::to_owned),
        end: (kind == ChangeKind::End).then_some((TurnResult::Bad, EndCause::Ended)),
    }
}

/// Requirement: B49
#[tokio::test]
async fn each_change_is_a_line_of_the_journal_and_a_count() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = Clock::new();
    let identity = Identity {
        part: "fleet".into(),
        node: "n".into(),
        build: "test".into(),
        compute_unit: Resources::default(),
        run: 1,
    };
    let journal = Journal::open(
        folder.path(),
        identity,
        Limits::default(),
        clock,
        Vec::new(),
    );
    let journal = journal.expect("a journal");
    let mut registry = Registry::default();
    let records = Records {
        journal: Some(journal.clone()),
        clock,
        metrics: Metrics::register(&mut registry),
    };
    records.tell(&change(ChangeKind::End, "it\nended", None));
    records.tell(&change(ChangeKind::Keep, "turn t", Some("no answer")));
    let long = "ä".repeat(MAX_TEXT_BYTES);
    records.tell(&change(ChangeKind::State, &long, None));
    journal.close().await;

    let files = files::list(folder.path()).expect("files");
    let bytes = files::read(&files[0].path).expect("bytes");
    let scan = protocol::journal::scan(&bytes);
    assert!(scan.damages.is_empty(), "{:?}", scan.damages);
    let lines = scan.lines.iter().filter_map(|line| match &line.record {
        Ok(Record::Action(line)) => Some(line.clone()),
        _ => None,
    });
    let lines: Vec<Line> = lines.collect();
    let words = |line: &Line| format!("{} {:?} {:?}", line.what, line.ok, line.note);
    assert_eq!(
        lines.iter().map(words).collect::<Vec<_>>(),
        [
            "fleet end Some(true) None",
            "fleet keep Some(false) Some(\"no answer\")",
            "fleet state Some(true) None",
        ]
    );
    let mut chain = ActionChain::of_new_run();
    assert!(lines.iter().all(|line| chain.follows(line)), "{lines:?}");
    let mut cut = ActionChain::of_new_run();
    let is_whole = lines[..1]
        .iter()
        .chain(&lines[2..])
        .all(|line| cut.follows(line));
    assert!(!is_whole, "a line is missing");
    assert_eq!(lines[0].why.as_deref(), Some("it ended"));
    let longest = lines[2].why.as_ref().map(String::len);
    assert_eq!(longest, Some(MAX_TEXT_BYTES));

    let mut page = String::new();
    prometheus_client::encoding::text::encode(&mut page, &registry).expect("a page");
    for sample in [
        "bellows_fleet_turns_total{result=\"bad\",reason=\"ended\"} 1",
        "bellows_fleet_changes_total{change=\"end\",outcome=\"success\"} 1",
        "bellows_fleet_changes_total{change=\"keep\",outcome=\"failure\"} 1",
        "bellows_fleet_changes_total{change=\"turn\",outcome=\"success\"} 0",
    ] {
        assert!(page.contains(sample), "{sample}: {page}");
    }
}
