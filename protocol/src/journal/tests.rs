//! Heads, bounds and damages of lines.

use super::*;

#[test]
fn line_is_hashed_by_crc_32c() {
    // The check value of its specification.
    assert_eq!(chain_hash(b"123456789"), 0xe306_9283);
}

#[test]
fn line_of_the_largest_size_is_opened_and_a_longer_one_is_not() {
    let line = |bytes: usize| {
        let json = "7".repeat(bytes - 9);
        format!("{} {json}\n", hash_text(crc(0, json.as_bytes())))
    };
    assert!(open(line(MAX_LINE_BYTES).as_bytes()).is_ok());
    let longer = line(MAX_LINE_BYTES + 1);
    assert_eq!(open(longer.as_bytes()), Err(DecodeError::TooLong));
}

#[test]
fn sample_has_as_many_windows_as_a_week_has_minutes() {
    let packed = |windows: usize| {
        pack(&Block(vec![(
            0,
            Step::Lfc(LfcSample {
                hits: 1.0,
                misses: 2.0,
                writes: 3.0,
                pages: vec![4.0; windows],
            }),
        )]))
    };
    assert!(unpack(0, &packed(7 * 24 * 60)).is_ok());
    assert!(unpack(0, &packed(7 * 24 * 60 + 1)).is_err());
}

#[test]
fn a_newer_format_is_known_by_its_head_alone() {
    let json = r#"{"k":"H","something":{"new":true},"v":9}"#;
    let line = format!("{} {json}\n", hash_text(crc(0, json.as_bytes())));
    let found = scan(line.as_bytes());
    assert_eq!(found.damages, [Damage::Format(9)]);
    assert_eq!(found.head, None);
}

#[test]
fn line_of_another_kind_or_a_known_format_is_no_head() {
    for json in [r#"{"k":"T","v":9}"#, r#"{"k":"H","something":1,"v":1}"#] {
        let line = format!("{} {json}\n", hash_text(crc(0, json.as_bytes())));
        let found = scan(line.as_bytes());
        assert_eq!(found.damages, [Damage::NoHead], "{json}");
    }
}

#[test]
fn segment_without_a_line_has_no_head_unless_it_is_empty() {
    assert_eq!(scan(b"").damages, []);
    assert_eq!(scan(b"torn").damages, [Damage::NoHead]);
}

#[test]
fn block_with_another_number_of_steps_is_refused() {
    let block = Block(vec![(7, Step::Tick)]);
    let line = encode(&Record::Sampled(Sampled { vm: 1, block }));
    let (_, json) = line.trim_end().split_at(9);
    let of = |d: &str, n: &str| {
        let json = json.replace("\"AAA\"", d).replace("\"n\":1", n);
        decode(format!("{} {json}", hash_text(crc(0, json.as_bytes()))).as_bytes())
    };
    assert!(of("\"AAA\"", "\"n\":1").is_ok());
    for (d, n) in [("\"AAA\"", "\"n\":2"), ("\"\"", "\"n\":0")] {
        assert!(of(d, n).is_err(), "{d} {n}");
    }
}

#[test]
fn damage_in_the_middle_is_not_a_torn_tail() {
    let tick = |n| {
        encode(&Record::Tick(Tick {
            h: 1,
            n,
            t: 1,
            vm: 1,
        }))
    };
    let mut bytes = (tick(1) + &tick(2) + &tick(3)).into_bytes();
    bytes[tick(1).len() + 12] ^= 1;
    let found = scan(&bytes);
    assert_eq!(found.torn, 0);
    assert!(
        matches!(found.damages[..], [Damage::NoHead, Damage::Line { .. }]),
        "{:?}",
        found.damages
    );
}
