//! Pages as agents and exporters write them, and pages that no reader may take.

use super::*;

const GOOD: &str = include_str!("../../testdata/pages/host_metrics.txt");
const NODE_PAGE: &str = include_str!("../../testdata/pages/node_exporter.txt");
const LFC_PAGE: &str = include_str!("../../testdata/pages/lfc_metrics.txt");

fn system(text: &str) -> Result<SystemGauges, PageError> {
    let mut page = Page::system();
    page.feed(text.as_bytes());
    page.into_system()
}

fn lfc(text: &str) -> Result<LfcGauges, PageError> {
    let mut page = Page::lfc();
    page.feed(text.as_bytes());
    page.into_lfc()
}

fn wanted() -> SystemGauges {
    SystemGauges {
        load1: 1.25,
        load5: 0.75,
        memory_total_bytes: 4_294_967_296.0,
        memory_available_bytes: 3_221_225_472.0,
        memory_cached_bytes: 268_435_456.0,
    }
}

#[test]
fn n02_both_families_of_names_are_read() {
    assert_eq!(system(GOOD), Ok(wanted()));
    assert_eq!(system(NODE_PAGE), Ok(wanted()));
}

#[test]
fn chunks_may_end_anywhere() {
    for size in [1, 2, 3, 7, 64, 1000] {
        let mut page = Page::system();
        GOOD.as_bytes()
            .chunks(size)
            .for_each(|chunk| page.feed(chunk));
        assert_eq!(page.into_system(), Ok(wanted()), "chunks of {size}");
    }
}

#[test]
fn anything_wrong_rejects_the_page() {
    let change = |from: &str, to: &str| {
        assert!(GOOD.contains(from), "{from}");
        system(&GOOD.replace(from, to))
    };
    assert_eq!(
        system(""),
        Err(PageError::Missing("host_memory_total_bytes"))
    );
    assert_eq!(
        change("host_load1 1.25\n", ""),
        Err(PageError::Missing("host_load1"))
    );
    assert_eq!(
        change("host_load1 gauge", "host_load1 counter"),
        Err(PageError::NotAGauge("host_load1"))
    );
    assert_eq!(
        change("# TYPE host_load1 gauge\n", ""),
        Err(PageError::NotAGauge("host_load1"))
    );
    assert_eq!(
        change(
            "host_load1 1.25\n",
            "host_load1 1.25\nhost_load1{cpu=\"1\"} 2\n"
        ),
        Err(PageError::Count("host_load1", 2))
    );
    for bad in ["NaN", "+Inf", "-1", "x", "", "1 2 3"] {
        let text = format!("host_load1 {bad}\n");
        assert_eq!(
            change("host_load1 1.25\n", &text),
            Err(PageError::BadSample("host_load1")),
            "{bad}"
        );
    }
}

#[test]
fn machine_without_load_is_read() {
    let idle = SystemGauges {
        load1: 0.0,
        ..wanted()
    };
    let page = GOOD.replace("host_load1 1.25\n", "host_load1 0\n");
    assert_eq!(system(&page), Ok(idle));
}

#[test]
fn samples_past_the_limit_are_counted_and_not_kept() {
    let mut page = Page::system();
    for _ in 0..=MAX_SAMPLES {
        page.feed(b"host_load1 1\n");
    }
    let found = &page.found[page.index("host_load1").expect("it is read")];
    assert_eq!(found.samples.len(), MAX_SAMPLES);
    assert_eq!(found.count, MAX_SAMPLES + 1);
}

/// Our monitor serves the average of runnable tasks as well: a kernel worker that sleeps over
/// our own unplug is no load.
#[test]
fn runnable_averages_are_taken_where_they_are() {
    let more = "# TYPE host_runnable_load1 gauge\nhost_runnable_load1 0.25\n# TYPE host_runnable_load5 gauge\nhost_runnable_load5 0.5\n";
    let got = system(&format!("{GOOD}{more}"));
    let expected = SystemGauges {
        load1: 0.25,
        load5: 0.5,
        ..wanted()
    };
    assert_eq!(got, Ok(expected));
    let half = more.replace("host_runnable_load5 0.5\n", "");
    assert_eq!(
        system(&format!("{GOOD}{half}")),
        Err(PageError::Missing("host_runnable_load5"))
    );
    assert_eq!(
        system(more),
        Err(PageError::Missing("host_memory_total_bytes"))
    );
}

#[test]
fn a_line_without_end_is_skipped_not_kept() {
    let mut page = Page::system();
    let noise = vec![b'x'; 10_000];
    for _ in 0..100 {
        page.feed(&noise);
        assert!(page.partial.len() <= LINE_LIMIT_BYTES);
    }
    page.feed(b"\n");
    page.feed(GOOD.as_bytes());
    assert_eq!(page.into_system(), Ok(wanted()));
}

#[test]
fn end_of_a_skipped_line_is_no_line() {
    let mut page = Page::system();
    page.feed(GOOD.as_bytes());
    page.feed(&vec![b'x'; LINE_LIMIT_BYTES + 1]);
    for piece in ["", "host_load1 7\n"] {
        page.feed(piece.as_bytes());
    }
    assert_eq!(page.into_system(), Ok(wanted()));
}

#[test]
fn windows_are_sorted_and_checked() {
    let got = lfc(LFC_PAGE).expect("reads");
    assert_eq!(got.working_set_pages, [100.0, 200.0, 300.0]);
    assert_eq!((got.hits, got.misses, got.writes), (10.0, 2.0, 5.0));
    for (from, to) in [
        ("duration_seconds=\"120\"", "duration_seconds=\"121\""),
        ("duration_seconds=\"60\"", "duration_seconds=\"240\""),
        ("duration_seconds=\"120\"", "duration_seconds=\"60\""),
    ] {
        assert_eq!(
            lfc(&LFC_PAGE.replace(from, to)),
            Err(PageError::Windows),
            "{to}"
        );
    }
    let name = "lfc_approximate_working_set_size_windows";
    let without = LFC_PAGE.replace("duration_seconds=\"60\"", "other=\"60\"");
    assert_eq!(lfc(&without), Err(PageError::BadSample(name)));
}

/// A line of one length is read or skipped however it comes.
#[test]
fn a_long_line_is_skipped_in_one_piece_too() {
    for (length, is_read) in [(LINE_LIMIT_BYTES, true), (LINE_LIMIT_BYTES + 1, false)] {
        let mut line = b"host_load1 1.25".to_vec();
        line.resize(length, b' ');
        line.push(b'\n');
        let text = GOOD.replace("host_load1 1.25\n", "");
        let page = [line, text.into_bytes()].concat();
        for size in [page.len(), 40_000, 1000] {
            let mut read = Page::system();
            page.chunks(size).for_each(|piece| read.feed(piece));
            let expected = is_read.then(wanted).ok_or(PageError::Missing("host_load1"));
            assert_eq!(read.into_system(), expected, "{length} by {size}");
        }
    }
}
