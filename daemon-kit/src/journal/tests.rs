//! Tests of a journal on real files: written, reopened, torn, rotated, and on a disk that hangs.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;

use protocol::journal::{Gap, Head, Tick, Why, crc, decode, hash_text, scan};
use protocol::units::Resources;

use super::files::SegmentFile;
use super::*;

/// Longest wait for a thread of a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn identity() -> Identity {
    Identity {
        part: "agent".into(),
        node: "node-1".into(),
        build: "0.1.0".into(),
        compute_unit: Resources::new(250, 1 << 30),
        run: 7,
    }
}

fn tick(n: u32) -> Record {
    Record::Tick(Tick {
        h: n,
        n,
        t: 1,
        vm: 1,
    })
}

fn open(folder: &Path, limits: Limits) -> Journal {
    Journal::open(folder, identity(), limits, Clock::new(), Vec::new()).expect("opens")
}

/// Every segment: its head and its other records. Panics on any malformed one.
fn segments(folder: &Path) -> Vec<(SegmentFile, Head, Vec<Record>)> {
    let files = files::list(folder).expect("lists");
    let mut last = None;
    let read = files.into_iter().map(|file| {
        let found = scan(&files::read(&file.path).expect("reads"));
        assert!(found.is_good() && found.torn == 0, "{found:?}");
        let head = found.head.expect("a head");
        if let Some((seq, h)) = last {
            assert_eq!(
                head.prev.map(|prev| (prev.seq, prev.h)),
                Some((seq, h)),
                "the chain holds"
            );
        }
        last = found.last.map(|h| (file.seq, h));
        let records = found
            .lines
            .into_iter()
            .skip(1)
            .filter_map(|line| line.record.ok());
        (file, head, records.collect())
    });
    read.collect()
}

#[tokio::test]
async fn lines_are_handed_over_synced_and_continued_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    for run in 1..=3_u32 {
        let journal = open(folder.path(), Limits::default());
        assert!(matches!(
            Journal::open(
                folder.path(),
                identity(),
                Limits::default(),
                Clock::new(),
                Vec::new()
            ),
            Err(OpenError::Lock(LockError::Locked(_)))
        ));
        // The limit of a hand-over is short; a loaded machine may need many attempts.
        let (began, mut lines) = (tokio::time::Instant::now(), 1);
        while !journal
            .append(&tick(run), true)
            .unwrap()
            .handed_over()
            .await
        {
            assert!(began.elapsed() < PATIENCE, "{lines} lines");
            lines += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let action = journal.append(&tick(run), true).unwrap();
        assert!(action.durable().await);
        journal.close().await;
        let all = segments(folder.path());
        assert_eq!(all.len(), run as usize);
        assert_eq!(
            all.last().map(|(_, _, records)| records.len()),
            Some(lines + 1)
        );
    }
}

#[tokio::test]
async fn torn_tail_is_cut_and_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let journal = open(folder.path(), Limits::default());
    let _ = journal.append(&tick(1), true);
    journal.close().await;
    let path = files::path_of(folder.path(), 1);
    let mut bytes = fs::read(&path).unwrap();
    let whole = bytes.len();
    bytes.extend(b"0badc0de {\"h\":\"0000");
    fs::write(&path, &bytes).unwrap();
    open(folder.path(), Limits::default()).close().await;
    let first = segments(folder.path()).remove(0).0;
    assert_eq!(files::read(&first.path).unwrap(), bytes[..whole]);
    let told = &segments(folder.path())[1].2;
    assert!(
        matches!(
            told[..],
            [Record::Gap(Gap {
                n: 19,
                why: Why::TornTail,
                vm: None,
                ..
            })]
        ),
        "{told:?}"
    );
}

#[tokio::test]
async fn segment_without_a_first_line_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path(), Limits::default()).close().await;
    fs::write(files::path_of(folder.path(), 2), b"half a he").unwrap();
    open(folder.path(), Limits::default()).close().await;
    let numbers: Vec<u64> = segments(folder.path())
        .iter()
        .map(|(file, ..)| file.seq)
        .collect();
    assert_eq!(numbers, [1, 3]);
}

#[tokio::test]
async fn segment_of_a_newer_format_is_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let json = r#"{"k":"H","v":9}"#;
    let text = format!(
        "{} {json}\nsomething else",
        hash_text(crc(0, json.as_bytes()))
    );
    let path = files::path_of(folder.path(), 7);
    fs::write(&path, &text).unwrap();
    for _ in 0..2 {
        open(folder.path(), Limits::default()).close().await;
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    let file = files::list(folder.path()).unwrap().remove(1);
    let head = scan(&files::read(&file.path).unwrap())
        .head
        .expect("a head");
    assert_eq!((head.seq, head.prev), (8, None));
}

#[tokio::test]
async fn full_segments_are_ended_linked_and_packed() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits {
        segment_bytes: 2_000,
        ..Limits::default()
    };
    let preamble = vec![tick(99)];
    let journal = Journal::open(folder.path(), identity(), limits, Clock::new(), preamble).unwrap();
    let first = journal.epoch();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut count = 0;
    let is_packed = || {
        files::list(folder.path())
            .unwrap()
            .iter()
            .filter(|file| file.is_packed)
            .count()
            >= 2
    };
    while !is_packed() {
        assert!(tokio::time::Instant::now() < deadline, "never packed");
        count += 1;
        let ticket = journal.append(&tick(count), true).expect("room");
        let _ = ticket.handed_over().await;
        tokio::task::yield_now().await;
    }
    assert!(journal.epoch() >= first + 2);
    journal.close().await;
    let all = segments(folder.path());
    assert!(
        all.iter().all(|(_, _, records)| records[0] == tick(99)),
        "the preamble is in each"
    );
    let numbers: Vec<u32> = all
        .iter()
        .flat_map(|(_, _, records)| &records[1..])
        .map(|record| match record {
            Record::Tick(tick) => tick.n,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        numbers,
        (1..=count).collect::<Vec<_>>(),
        "nothing lost, nothing twice"
    );
}

#[tokio::test]
async fn hanging_disk_delays_no_appender_and_its_gap_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    // A pipe without a reader is a disk that hangs; reading it repairs the disk.
    let (mut reader, writer) = std::io::pipe().unwrap();
    let times = (Clock::new().now(), Clock::new().wall());
    let mut segment = Segment::begin(folder.path(), &identity(), times, 1, None, &[]).unwrap();
    segment.file = File::from(OwnedFd::from(writer));
    let lock = state_folder::lock(folder.path()).unwrap();
    let start = (segment, Vec::new());
    let journal = Journal::start(
        (folder.path(), lock),
        identity(),
        Limits::default(),
        Clock::new(),
        start,
    )
    .unwrap();
    let epoch = journal.epoch();
    let long = Record::Action(protocol::journal::Action {
        by: "x".repeat(4_000),
        what: "y".into(),
        t: 1,
        vm: None,
        ..Default::default()
    });
    let mut lost = 0;
    let mut waits = 0;
    for _ in 0..600 {
        match journal.append(&long, true) {
            None => lost += 1,
            Some(ticket) => waits += u32::from(!ticket.handed_over().await),
        }
    }
    assert!(lost > 100 && waits > 0, "lost {lost}, given up {waits}");
    assert_ne!(journal.epoch(), epoch);
    assert_eq!(journal.lost(), lost);
    let read = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).map(|_| bytes)
    });
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut more = 0;
    while journal.append(&tick(7), true).is_none() {
        more += 1;
        assert!(
            tokio::time::Instant::now() < deadline,
            "the disk is well and nothing is taken"
        );
        tokio::task::yield_now().await;
    }
    journal.close().await;
    let bytes = read.join().unwrap().unwrap();
    let records: Vec<Record> = bytes
        .split_inclusive(|byte| *byte == b'\n')
        .map(|line| decode(line).expect("whole lines only"))
        .collect();
    let (last, gap) = (&records[records.len() - 1], &records[records.len() - 2]);
    assert_eq!(*last, tick(7));
    assert!(
        matches!(gap, Record::Gap(Gap { n, why: Why::Disk, .. }) if *n == lost + more),
        "{gap:?}, lost {lost} and {more}"
    );
}
