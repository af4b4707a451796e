//! Lines and blocks of the decision journal, as an operator may hand them over.

use crate::journal::{
    DecodeError, MAX_STEPS, Record, Scan, crc, decode, encode, hash_text, pack, scan, unpack,
};

/// Lines of a segment. A first byte that is odd has the checksum put before the rest, if that is
/// one line. A line that is read is the line that its record is written as. The reader of segments
/// finds the same records, and its counts fit the bytes.
pub fn journal_line(data: &[u8]) {
    let Some((which, text)) = data.split_first() else {
        return;
    };
    if which % 2 == 0 || text.contains(&b'\n') {
        counts_fit(&scan(text), text.len());
        return;
    }
    let line = sealed(text);
    let read = decode(&line);
    let found = scan(&line);
    counts_fit(&found, line.len());
    let of_scan: Option<Result<Record, DecodeError>> =
        found.lines.into_iter().next().map(|line| line.record);
    match read {
        Ok(record) => {
            assert_eq!(encode(&record).as_bytes(), line);
            if let Record::Sampled(sampled) = &record {
                assert_eq!(
                    sampled.block.0.first().map(|(at, _)| *at),
                    Some(record.at())
                );
                assert!(sampled.block.0.len() <= MAX_STEPS);
            }
            assert_eq!(of_scan.map(|record| record.is_ok()), Some(true));
        }
        Err(error) => assert!(of_scan.is_none_or(|record| record == Err(error))),
    }
}

/// A packed block: the time of its first step, then its bytes. A block that is read packs to the
/// same bytes, and its steps are in the order of time.
pub fn journal_block(data: &[u8]) {
    let Some((start, bytes)) = data.split_first_chunk() else {
        return;
    };
    let start = u64::from_be_bytes(*start);
    let Ok(block) = unpack(start, bytes) else {
        return;
    };
    assert_eq!(pack(&block), bytes);
    assert!(block.0.len() <= MAX_STEPS);
    let times: Vec<u64> = block.0.iter().map(|(at, _)| *at).collect();
    assert!(times.is_sorted() && times.first().is_none_or(|first| *first == start));
}

fn sealed(json: &[u8]) -> Vec<u8> {
    [hash_text(crc(0, json)).as_bytes(), b" ", json, b"\n"].concat()
}

fn counts_fit(scan: &Scan, bytes: usize) {
    assert!(scan.good + scan.torn <= bytes);
    assert_eq!(scan.last.is_some(), !scan.lines.is_empty());
    let offsets = scan.lines.iter().map(|line| line.offset);
    assert!(offsets.is_sorted_by(|one, next| one < next));
    if let Some(head) = &scan.head {
        let first = scan.lines.first().map(|line| &line.record);
        assert_eq!(first, Some(&Ok(Record::Head(head.clone()))));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use test_seeds::Body;

    use super::*;

    #[test]
    fn every_seed_of_the_journal_holds() {
        let bodies: [Body<'static>; 2] = [
            ("journal_line", journal_line),
            ("journal_block", journal_block),
        ];
        test_seeds::hold(&bodies);
    }

    /// Records of every kind that policies add are among the seeds in a form that is read.
    #[test]
    fn seeds_of_lines_are_records() {
        for name in ["answered", "bound", "samples_policies", "action"] {
            let seed = std::fs::read(format!("../fuzz/seeds/journal_line/{name}")).expect(name);
            assert!(decode(&sealed(&seed[1..])).is_ok(), "{name}");
        }
        let seed = std::fs::read("../fuzz/seeds/journal_block/policies").expect("a block");
        let (start, bytes) = seed.split_first_chunk().expect("a time");
        let start = u64::from_be_bytes(*start);
        assert!(unpack(start, bytes).is_ok_and(|block| block.0.len() > 2));
    }

    fn lines() -> Vec<Vec<u8>> {
        let folder = std::fs::read_dir("testdata/journal").expect("lines");
        let paths = folder.map(|entry| entry.expect("a line").path());
        let lines = paths.filter(|path| path.is_file());
        let lines = lines.map(|path| std::fs::read(path).expect("a line")[9..].to_vec());
        let mut lines: Vec<Vec<u8>> = lines.collect();
        lines.sort();
        lines
    }

    proptest! {
        #[test]
        fn lines_hold(
            which in any::<prop::sample::Index>(),
            first in 0_u8..2,
            at in any::<prop::sample::Index>(),
            put in "[\\[\\]{}\",:a-z0-9-]{0,3}",
            cut in 0_usize..3,
        ) {
            let lines = lines();
            let mut line = which.get(&lines).clone();
            line.pop();
            let at = at.index(line.len());
            let end = (at + cut).min(line.len());
            line.splice(at..end, put.bytes());
            journal_line(&[&[first], &line[..]].concat());
        }

        #[test]
        fn blocks_hold(
            steps in prop::collection::vec((prop_oneof![0_u8..9, 32_u8..36], 0_u8..4, prop::collection::vec(any::<u8>(), 0..6)), 0..5),
            bytes in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let mut block = vec![0; 8];
            for (kind, after, rest) in steps {
                block.extend([kind, after]);
                block.extend(rest);
            }
            journal_block(&block);
            journal_block(&bytes);
            journal_line(&bytes);
        }
    }
}
