//! What holds for any input, as a body for the coverage-guided fuzzer of `fuzz/` and for the
//! property tests beside it.

#![expect(
    clippy::missing_panics_doc,
    reason = "to panic is what these are for: a panic is a finding"
)]

use std::fmt::Write as _;

use crate::exposition::{LfcGauges, Page, PageError, SystemGauges};

mod figures;
mod fleet;
mod journal;
mod policies;
mod releases;
mod requests;

pub use figures::guest_figures;
pub use fleet::fleet_object;
pub use journal::{journal_block, journal_line};
pub use policies::{policy_object, set_object};
pub use releases::release_texts;
pub use requests::{permit_body, runner_control};

/// Most that a page may hold on to, bytes, whatever it is fed: a line in a buffer that doubles, and
/// twelve metrics of a day of samples each in lists that double.
const HELD_LIMIT_BYTES: usize = 2 * 65_536 + 12 * 2048 * 16;
/// Spaces that a zero byte stands for: inputs are short, and lines have to reach their limit.
const RUN_BYTES: usize = 22 * 1024;
/// Zero bytes that stand for so many: enough for one line that is too long.
const MAX_RUNS: usize = 3;
/// The longest piece, bytes.
const LONGEST_PIECE_BYTES: usize = 40_000;

/// A metrics page in pieces. The first byte says how it is cut, and the rest is the page: what is
/// read is the same in one piece, little is held on to, a line that nobody wants changes nothing,
/// and numbers that are read are finite, not negative, and read the same when they are written
/// again.
pub fn metrics_page(data: &[u8]) {
    let Some((seed, page)) = data.split_first() else {
        return;
    };
    let page = with_long_runs(page);
    let pieces = pieces(*seed, &page);

    let system = |pieces: &[&[u8]]| fed(Page::system(), pieces).into_system();
    let read = system(&pieces);
    assert_eq!(read, system(&[&page]));
    assert_eq!(
        read,
        system(&[&page, b"\nhost_load 7\n#TYPE node_load gauge\n"])
    );
    if let Ok(gauges) = read {
        system_numbers(gauges);
        assert_eq!(system(&[written_system(gauges).as_bytes()]), Ok(gauges));
    }

    let lfc = |pieces: &[&[u8]]| fed(Page::lfc(), pieces).into_lfc();
    let read: Result<LfcGauges, PageError> = lfc(&pieces);
    assert_eq!(read, lfc(&[&page]));
    assert_eq!(
        read,
        lfc(&[&page, b"\nlfc_hit{a=\"\"} 7\n# TYPE lfc gauge\n"])
    );
    if let Ok(gauges) = read {
        lfc_numbers(&gauges);
        assert_eq!(lfc(&[written_lfc(&gauges).as_bytes()]), Ok(gauges));
    }
}

fn fed(mut page: Page, pieces: &[&[u8]]) -> Page {
    for piece in pieces {
        page.feed(piece);
        let held = page.held_bytes();
        assert!(held <= HELD_LIMIT_BYTES, "{held} bytes held");
    }
    page
}

/// The page with its first zero bytes as long runs of spaces.
fn with_long_runs(page: &[u8]) -> Vec<u8> {
    let mut long = Vec::with_capacity(page.len());
    let mut runs = 0;
    for byte in page {
        if *byte == 0 && runs < MAX_RUNS {
            runs += 1;
            long.resize(long.len() + RUN_BYTES, b' ');
        } else {
            long.push(*byte);
        }
    }
    long
}

/// The page cut by a seed: into pieces of one length, or of many lengths, some of them none.
fn pieces(seed: u8, page: &[u8]) -> Vec<&[u8]> {
    let mut state = u32::from(seed);
    let mut rest = page;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let chance = usize::try_from(state >> 16).unwrap_or(0);
        let length = match seed {
            0 => LONGEST_PIECE_BYTES,
            // A byte at a time is slow, so only where the page is short.
            1..=63 => usize::from(seed).max(rest.len() / 64),
            _ if chance.is_multiple_of(3) => chance % 9,
            _ => chance % LONGEST_PIECE_BYTES,
        };
        let (piece, after) = rest.split_at(length.min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

fn system_numbers(gauges: SystemGauges) {
    for number in [
        gauges.load1,
        gauges.load5,
        gauges.memory_total_bytes,
        gauges.memory_available_bytes,
        gauges.memory_cached_bytes,
    ] {
        assert!(is_a_gauge(number), "{gauges:?}");
    }
}

fn lfc_numbers(gauges: &LfcGauges) {
    let counts = [gauges.hits, gauges.misses, gauges.writes];
    assert!(counts.into_iter().all(is_a_gauge), "{gauges:?}");
    let windows = &gauges.working_set_pages;
    assert!(windows.iter().copied().all(is_a_gauge), "{gauges:?}");
    assert!((1..=1440).contains(&windows.len()), "{gauges:?}");
}

fn is_a_gauge(number: f64) -> bool {
    number.is_finite() && number >= 0.0
}

fn written_system(gauges: SystemGauges) -> String {
    let mut text = String::new();
    for (name, value) in [
        ("host_load1", gauges.load1),
        ("host_load5", gauges.load5),
        ("host_memory_total_bytes", gauges.memory_total_bytes),
        ("host_memory_available_bytes", gauges.memory_available_bytes),
        ("host_memory_cached_bytes", gauges.memory_cached_bytes),
    ] {
        let _ = write!(text, "# TYPE {name} gauge\n{name} {value}\n");
    }
    text
}

fn written_lfc(gauges: &LfcGauges) -> String {
    let mut text = String::new();
    for (name, value) in [
        ("lfc_hits", gauges.hits),
        ("lfc_misses", gauges.misses),
        ("lfc_writes", gauges.writes),
    ] {
        let _ = write!(text, "# TYPE {name} gauge\n{name} {value}\n");
    }
    let name = "lfc_approximate_working_set_size_windows";
    let _ = writeln!(text, "# TYPE {name} gauge");
    for (minute, value) in (1_u64..).zip(&gauges.working_set_pages) {
        let seconds = minute * 60;
        let _ = writeln!(text, "{name}{{duration_seconds=\"{seconds}\"}} {value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    /// Where the fuzzer's package is, seen from where cargo runs tests: not from where they were
    /// compiled, because checkouts share a target directory.
    fn package() -> &'static Path {
        Path::new("../fuzz")
    }

    /// Everything the fuzzer starts from holds, and some of it is accepted, or nothing would be
    /// shown of that.
    #[test]
    fn n02_every_seed_holds() {
        let folder = std::fs::read_dir(package().join("seeds/metrics_page")).expect("seeds");
        let (mut systems, mut caches, mut useless) = (0, 0, 0);
        for file in folder {
            let data = std::fs::read(file.expect("a seed").path()).expect("a seed");
            metrics_page(&data);
            let page = with_long_runs(&data[1..]);
            let is_system = fed(Page::system(), &[&page]).into_system().is_ok();
            let is_lfc = fed(Page::lfc(), &[&page]).into_lfc().is_ok();
            systems += usize::from(is_system);
            caches += usize::from(is_lfc);
            useless += usize::from(!is_system && !is_lfc);
        }
        assert!(systems >= 2 && caches >= 1 && useless >= 1);
    }

    #[test]
    fn the_body_is_a_target() {
        let text = std::fs::read_to_string(package().join("targets/metrics_page.rs"));
        assert!(
            text.expect("a target")
                .contains("protocol::fuzz::metrics_page(data)")
        );
        let manifest = std::fs::read_to_string(package().join("Cargo.toml")).expect("a manifest");
        assert!(manifest.contains("name = \"metrics_page\""));
    }

    /// However a page is cut, nothing is lost and nothing is put twice.
    #[test]
    fn pieces_are_the_page() {
        let page: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        for seed in 0..=255 {
            let pieces = pieces(seed, &page);
            assert!(pieces.len() > 1, "{seed}");
            assert_eq!(pieces.concat(), page, "{seed}");
        }
    }

    /// Lines of pages: wanted and not, whole, torn, strange and far too long.
    fn any_line() -> impl Strategy<Value = String> {
        let name = "(host_load1|host_load5|host_memory_(total|available|cached)_bytes|node_load1|host_runnable_load[15]|lfc_(hits|misses|writes)|lfc_approximate_working_set_size_windows|[a-z_]{0,9})";
        let labels = "(\\{(duration_seconds=\"[0-9]{1,4}\"|[a-z]{0,3}=\"[^\n]{0,5}\")?,?\\}?)?";
        let value = "([0-9]{1,20}|-?[0-9.]{1,5}(e[0-9]{1,3})?|NaN|\\+Inf)";
        let kind = format!("# TYPE {name} (gauge|gauge|gauge|counter)");
        let sample = format!("{name}{labels} \0{{0,3}}{value}( [0-9]{{1,3}})?\0{{0,3}}");
        let line = format!("({kind}|{sample}|.{{0,20}})");
        proptest::string::string_regex(&line).expect("a pattern")
    }

    /// A page that would be accepted, with any lines and bytes put into it and any taken away.
    fn any_page() -> impl Strategy<Value = Vec<u8>> {
        let any_loads = [0.0_f64..99.0, 0.0..99.0];
        let good = prop_oneof![
            any_loads.prop_map(|[load1, load5]| written_system(SystemGauges {
                load1,
                load5,
                memory_total_bytes: 4e9,
                memory_available_bytes: load1 * 1e8,
                memory_cached_bytes: load5 * 1e8,
            })),
            prop::collection::vec(0.0_f64..1e9, 1..5).prop_map(|pages| written_lfc(&LfcGauges {
                hits: pages[0],
                misses: 0.0,
                writes: 1.0,
                working_set_pages: pages,
            })),
            Just(String::new()),
        ];
        let lines = prop::collection::vec((any::<prop::sample::Index>(), any_line()), 0..6);
        let taken = prop::option::weighted(0.3, any::<prop::sample::Index>());
        let cut = prop::option::weighted(0.2, (any::<prop::sample::Index>(), any::<u8>()));
        (good, lines, taken, cut).prop_map(|(good, more, taken, cut)| {
            let mut lines: Vec<_> = good.lines().map(str::to_owned).collect();
            for (at, line) in more {
                lines.insert(at.index(lines.len() + 1), line);
            }
            if let Some(at) = taken.filter(|_| !lines.is_empty()) {
                lines.remove(at.index(lines.len()));
            }
            let mut bytes = lines.join("\n").into_bytes();
            if let Some((at, byte)) = cut {
                bytes.insert(at.index(bytes.len() + 1), byte);
            }
            bytes
        })
    }

    proptest! {
        #[test]
        fn n02_metrics_pages_hold(seed in any::<u8>(), page in any_page()) {
            metrics_page(&[&[seed][..], &page].concat());
        }

        #[test]
        fn n02_any_bytes_hold(data in prop::collection::vec(any::<u8>(), 0..400)) {
            metrics_page(&data);
        }
    }
}
