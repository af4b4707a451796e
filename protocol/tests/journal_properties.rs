//! What holds for every journal: records round-trip, no flipped byte goes unseen, no byte string
//! crashes a reader, and a tail torn anywhere is cut at the last good line.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use protocol::journal::{
    Action, Advice, Amount, Answered, AnsweredAgain, Block, Bound, BoundVersion, Decision, Gap,
    Head, LfcSample, MAX_INTEGER, MAX_LINE_BYTES, MAX_STEPS, Milli, Outcome, Previous, Record,
    RequestEnd, RequestKind, Said, Sampled, SetCount, SetsAnswered, Size, Started, Step,
    SystemSample, Terms, Tick, Why, chain_hash, crc, decode, encode, hash_text, pack, scan, unpack,
};
use protocol::policy::{Fault, FeedSource, Role};
use protocol::time::Span;
use serde_json::Value;

fn whole() -> impl Strategy<Value = u64> {
    0..=MAX_INTEGER.unsigned_abs()
}

fn size() -> impl Strategy<Value = Size> {
    (any::<u32>(), whole()).prop_map(|(cpu, mem)| Size(cpu, mem))
}

fn amount() -> impl Strategy<Value = Amount> {
    prop_oneof![
        any::<u32>().prop_map(Amount::Units),
        size().prop_map(Amount::Exact)
    ]
}

/// Floats as they come, odd ones among them.
fn float() -> impl Strategy<Value = f64> {
    prop_oneof![
        (0..100_000_u32).prop_map(|n| f64::from(n) / 100.0),
        (0..u32::MAX).prop_map(|n| f64::from(n) * 1024.0),
        any::<f64>(),
        Just(-0.0),
        Just(f64::MAX),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let page = (float(), float(), float(), float());
    let signals = (option::of(float()), option::of(float()));
    let system = (page, signals).prop_map(|(page, (estimate, pressure))| {
        let (load1, load5, usage, cached) = page;
        Step::System(SystemSample {
            load1,
            load5,
            usage,
            cached,
            estimate,
            pressure,
        })
    });
    let lfc = (float(), float(), float(), vec(float(), 0..70)).prop_map(
        |(hits, misses, writes, pages)| {
            Step::Lfc(LfcSample {
                hits,
                misses,
                writes,
                pages,
            })
        },
    );
    prop_oneof![
        Just(Step::Tick),
        system,
        lfc,
        Just(Step::Renewed),
        option::of(any::<u64>()).prop_map(Step::Again),
        again().prop_map(Step::Advised),
        again().prop_map(Step::Shadowed),
        vec(option::of(float()), 0..=16).prop_map(Step::Feeds),
        (digest(), said()).prop_map(|(digest, said)| Step::Advice(Advice { digest, said })),
        option::of(terms()).prop_map(Step::Terms),
    ]
}

/// A few digests, so that some steps have the same.
fn digest() -> impl Strategy<Value = u32> {
    prop_oneof![0..3_u32, any::<u32>()]
}

fn said() -> impl Strategy<Value = Said> {
    prop_oneof![
        any::<u32>().prop_map(Said::Want),
        Just(Said::Hold),
        prop::sample::select(Fault::ALL.to_vec()).prop_map(Said::Fault),
    ]
}

fn terms() -> impl Strategy<Value = Terms> {
    let units = || option::of(any::<u32>());
    (digest(), units(), units(), option::of(any::<u64>())).prop_map(
        |(digest, max_units, shrink_units_per_minute, fallback)| Terms {
            digest,
            fallback_after: fallback.map(Span),
            max_units,
            shrink_units_per_minute,
        },
    )
}

fn again() -> impl Strategy<Value = AnsweredAgain> {
    (any::<u64>(), any::<u64>(), any::<u32>()).prop_map(|(took, starved, vms)| AnsweredAgain {
        took,
        starved,
        vms,
    })
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Live), Just(Role::Shadow)]
}

fn answered() -> impl Strategy<Value = Record> {
    let fault = prop::sample::select(Fault::ALL.to_vec());
    let said = (option::of(any::<u32>()), option::of(fault), any::<bool>());
    let words = (option::of(".{0,20}"), option::of("[a-z]{1,9}"));
    let numbers = (whole(), whole(), any::<u32>(), any::<u32>());
    let votes = prop::collection::btree_map("[a-z]{1,9}", -MAX_INTEGER..=MAX_INTEGER, 0..4);
    (role(), said, words, votes, numbers).prop_map(
        |(role, (cu, fault, hold), (note, r), votes, (t, took, vm, vms))| {
            Record::Answered(Box::new(Answered {
                role,
                cu,
                cut: None,
                dg: "5be1a7c0".into(),
                fault,
                hold,
                r#in: vms,
                note,
                r,
                s: Milli(7),
                t,
                took,
                vm,
                vms,
                votes: votes.into_iter().map(|(k, v)| (k, Milli(v))).collect(),
            }))
        },
    )
}

fn sets_answered() -> impl Strategy<Value = Record> {
    let count = (option::of("[a-z]{1,9}"), any::<u32>(), any::<u32>());
    let more = (
        option::of(any::<u32>()),
        option::of(any::<u32>()),
        any::<u32>(),
    );
    let count = (count, more).prop_map(|((command, has, kv), (to, v, want))| SetCount {
        command,
        has,
        kv,
        to,
        v,
        want,
    });
    let sets = prop::collection::btree_map("[a-z0-9-]{1,9}", count, 0..4);
    let fault = option::of(prop::sample::select(Fault::ALL.to_vec()));
    let words = (
        ".{0,9}",
        ".{0,9}",
        option::of(".{0,20}"),
        option::of("[a-z]{1,9}"),
    );
    let numbers = (whole(), whole(), any::<u32>(), option::of(any::<u32>()));
    (role(), fault, sets, words, numbers).prop_map(
        |(role, fault, sets, (name, ns, note, why), (t, took, hash, nodes))| {
            Record::SetsAnswered(Box::new(SetsAnswered {
                role,
                dg: "5be1a7c0".into(),
                fault,
                r#in: hash,
                name,
                nodes,
                note,
                ns,
                sets,
                t,
                took,
                why,
            }))
        },
    )
}

fn bound() -> impl Strategy<Value = Record> {
    let labels = prop::collection::btree_map(".{0,9}", ".{0,9}", 0..4);
    let version = ("[0-9a-f]{64}", whole());
    let version = version.prop_map(|(digest, since)| BoundVersion { digest, since });
    let roles = prop::collection::btree_map(role(), version, 0..=2);
    let feed = ("[a-z_]{1,20}", "[a-z]{1,9}", any::<u16>());
    let feed = feed.prop_map(|(metric, name, port)| FeedSource { metric, name, port });
    let numbers = (whole(), whole(), whole(), any::<u32>());
    let of_versions = (roles, vec(feed, 0..4));
    (option::of(".{0,20}"), labels, of_versions, numbers).prop_map(
        |(name, labels, (roles, feeds), (every, t, wall, vm))| {
            Record::Bound(Box::new(Bound {
                every,
                feeds,
                labels,
                name,
                roles,
                t,
                vm,
                wall,
                ..Bound::default()
            }))
        },
    )
}

fn block() -> impl Strategy<Value = Block> {
    let steps = vec((0..10_000_000_u64, step()), 1..=MAX_STEPS);
    (0..1_u64 << 50, steps).prop_map(|(start, steps)| {
        let mut at = start;
        let mut timed = Vec::new();
        for (after, step) in steps {
            at += if timed.is_empty() { 0 } else { after };
            timed.push((at, step));
        }
        Block(timed)
    })
}

/// Bit by bit: floats that are no number are equal to themselves here.
fn bits(block: &Block) -> Vec<u8> {
    pack(block)
}

fn decision() -> impl Strategy<Value = Record> {
    let words = vec(".{0,12}", 0..4);
    let started = (
        option::of(amount()),
        option::of(amount()),
        option::of(amount()),
        option::of(amount()),
    )
        .prop_map(|(down, patch, permit, up)| Started {
            down,
            patch,
            permit,
            up,
        });
    let votes = option::of(-MAX_INTEGER..=MAX_INTEGER).prop_map(|vote| {
        vote.map(|vote| ("cpu".to_owned(), Milli(vote)))
            .into_iter()
            .collect::<BTreeMap<_, _>>()
    });
    let numbers = (whole(), whole(), any::<u32>(), any::<u32>());
    (
        words,
        amount(),
        started,
        ".{0,20}",
        option::of(amount()),
        votes,
        numbers,
    )
        .prop_map(|(by, cu, started, r, to, votes, (fault, t, vm, want))| {
            Record::Decision(Box::new(Decision {
                warn: by.clone(),
                by,
                cu,
                started,
                fault,
                r,
                rev: -7,
                t,
                to,
                vm,
                votes,
                want,
            }))
        })
}

fn record() -> impl Strategy<Value = Record> {
    let head = (
        option::of((any::<u32>(), whole())),
        ".{0,20}",
        whole(),
        size(),
    )
        .prop_map(|(prev, node, seq, cu)| {
            Record::Head(Head {
                build: "0.1.0".into(),
                cu,
                node,
                part: "agent".into(),
                prev: prev.map(|(h, seq)| Previous { h, seq }),
                run: 5,
                seq,
                t: 1,
                v: 1,
                wall: 2,
            })
        });
    let tick = (any::<u32>(), any::<u32>(), whole(), any::<u32>())
        .prop_map(|(h, n, t, vm)| Record::Tick(Tick { h, n, t, vm }));
    let outcome = (
        option::of(size()),
        whole(),
        any::<bool>(),
        whole(),
        any::<u32>(),
    )
        .prop_map(|(got, id, migrate, t, vm)| {
            Record::Outcome(Box::new(Outcome {
                again: got.filter(|_| migrate).map(|size| size.1),
                end: if migrate {
                    RequestEnd::Refused
                } else {
                    RequestEnd::Unknown
                },
                got,
                id,
                least: got.filter(|_| migrate),
                migrate,
                ms: BTreeMap::from([("permit".into(), t)]),
                rev: 3,
                t,
                version: got.map(|size| size.1),
                vm,
                what: if migrate {
                    RequestKind::Down
                } else {
                    RequestKind::Permit
                },
            }))
        });
    let text = || option::of(".{0,30}");
    let outcome_of_action = (option::of(any::<bool>()), text());
    let action = (
        (".{0,30}", ".{0,30}", whole(), option::of(any::<u32>())),
        (text(), text(), text(), text()),
        outcome_of_action,
    )
        .prop_map(|((by, what, t, vm), (on, to, why, prev), (ok, note))| {
            Record::Action(Action {
                by,
                what,
                note,
                ok,
                on,
                prev,
                t,
                to,
                vm,
                why,
            })
        });
    let gap = (whole(), whole(), whole(), option::of(any::<u32>())).prop_map(|(n, span, t, vm)| {
        Record::Gap(Gap {
            n,
            span,
            t,
            vm,
            why: Why::Disk,
        })
    });
    prop_oneof![
        head,
        tick,
        decision(),
        outcome,
        action,
        gap,
        answered(),
        sets_answered(),
        bound()
    ]
}

/// A segment of a few records.
fn segment() -> impl Strategy<Value = Vec<u8>> {
    vec(
        record().prop_filter("one head", |record| !matches!(record, Record::Head(_))),
        0..6,
    )
    .prop_map(|records| {
        let head = Record::Head(Head {
            build: "0.1.0".into(),
            cu: Size(250, 1 << 30),
            node: "n".into(),
            part: "agent".into(),
            prev: None,
            run: 5,
            seq: 1,
            t: 1,
            v: 1,
            wall: 2,
        });
        std::iter::once(head)
            .chain(records)
            .map(|record| encode(&record))
            .collect::<String>()
            .into_bytes()
    })
}

proptest! {
    #[test]
    fn records_round_trip(record in record()) {
        let line = encode(&record);
        prop_assert!(line.ends_with('\n') && line.len() < MAX_LINE_BYTES);
        prop_assert_eq!(decode(line.as_bytes()), Ok(record));
    }

    #[test]
    fn record_has_the_time_and_the_vm_of_its_line(record in record()) {
        let text = serde_json::to_value(&record).expect("encodes");
        let number = |key: &str| text.get(key).and_then(Value::as_u64);
        let is_of_the_node = matches!(record, Record::Head(_) | Record::Node(_));
        let vm = if is_of_the_node { None } else { number("vm") };
        prop_assert_eq!(record.vm().map(u64::from), vm);
        prop_assert_eq!(Some(record.at()), number("t"));
    }

    #[test]
    fn blocks_come_back_bit_by_bit(block in block()) {
        let bytes = bits(&block);
        let start = block.0[0].0;
        let back = unpack(start, &bytes).expect("unpacks");
        prop_assert_eq!(bits(&back), bytes);
        prop_assert_eq!(back.0.iter().map(|(at, _)| *at).collect::<Vec<_>>(), block.0.iter().map(|(at, _)| *at).collect::<Vec<_>>());
        let line = encode(&Record::Sampled(Sampled { vm: 1, block }));
        prop_assert!(decode(line.as_bytes()).is_ok());
    }

    #[test]
    fn a_flipped_byte_is_found(segment in segment(), at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        let whole = scan(&segment);
        prop_assert!(whole.is_good() && whole.torn == 0 && whole.good == segment.len());
        let mut bad = segment.clone();
        let at = at.index(bad.len());
        bad[at] ^= flip;
        let found = scan(&bad);
        prop_assert!(!found.is_good() || found.torn > 0, "byte {at}");
    }

    #[test]
    fn a_torn_tail_is_cut_at_the_last_good_line(segment in segment(), at in any::<prop::sample::Index>()) {
        let cut = at.index(segment.len());
        let found = scan(&segment[..cut]);
        let good = segment[..cut].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        prop_assert_eq!((found.good, found.torn), (good, cut - good));
        if good > 0 {
            prop_assert!(found.is_good());
            let last = segment[..good - 1].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            prop_assert_eq!(found.last, Some(chain_hash(&segment[last..good])));
        }
    }

    #[test]
    fn no_byte_string_crashes_a_reader(bytes in vec(any::<u8>(), 0..600), start in any::<u64>()) {
        let _ = scan(&bytes);
        let _ = decode(&bytes);
        if let Ok(block) = unpack(start, &bytes) {
            prop_assert_eq!(pack(&block), bytes);
        }
    }

    #[test]
    fn no_sealed_text_crashes_a_reader(text in "\\{(\"(k|t|vm|d|n|h|cu|want|r|by)\":(\"[A-Z]\"|[0-9]{1,20}|\\[1,2\\]|null|-1|1e9),?){0,6}\\}") {
        let line = format!("{} {text}\n", hash_text(crc(0, text.as_bytes())));
        if let Ok(record) = decode(line.as_bytes()) {
            prop_assert_eq!(encode(&record), line);
        }
    }
}
