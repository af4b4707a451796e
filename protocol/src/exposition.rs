//! The metrics pages of a guest, as the agent reads them: only the wanted metrics out of a
//! Prometheus text page, piece by piece, whatever else the page holds. Source:
//! docs/compatibility/agent.md §2.2; the text exposition format 0.0.4.
//!
//! A wanted metric needs a `# TYPE … gauge` line and finite samples that are not negative; anything
//! missing, of another type or in another number makes the whole page useless.

mod figures;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use figures::{GuestFigures, PAGE_BYTES};

/// Longest line read, bytes; a longer one is skipped.
const LINE_LIMIT_BYTES: usize = 64 * 1024;
/// Most samples of one metric kept: a day of one-minute windows.
const MAX_SAMPLES: usize = 1440;

/// Names of the system metrics: load1, load5, total, available, cached.
const SYSTEM: [&str; 5] = [
    "host_load1",
    "host_load5",
    "host_memory_total_bytes",
    "host_memory_available_bytes",
    "host_memory_cached_bytes",
];
/// The same by node_exporter's names.
const NODE: [&str; 5] = [
    "node_load1",
    "node_load5",
    "node_memory_MemTotal_bytes",
    "node_memory_MemAvailable_bytes",
    "node_memory_Cached_bytes",
];
/// Load averages of runnable tasks only, which our monitor serves: a shrink under way does not
/// count in them.
const RUNNABLE: [&str; 2] = ["host_runnable_load1", "host_runnable_load5"];
/// Where they stand among the names of [`Page::system`].
const RUNNABLE_AT: usize = 10;
/// Names of the file cache metrics.
const LFC: [&str; 4] = [
    "lfc_hits",
    "lfc_misses",
    "lfc_writes",
    "lfc_approximate_working_set_size_windows",
];
/// Label of a window's length.
const WINDOW_LABEL: &str = "duration_seconds";

/// The system metrics of a page. All are finite and not negative.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SystemGauges {
    /// Load average over one minute, of runnable tasks where the page has that.
    pub load1: f64,
    /// Load average over five minutes, likewise.
    pub load5: f64,
    /// Memory of the guest in bytes, as its kernel counts it (`MemTotal`).
    pub memory_total_bytes: f64,
    /// Memory that programs could have without swapping, bytes; may be more than the total on a
    /// strange page.
    pub memory_available_bytes: f64,
    /// Page cache, bytes.
    pub memory_cached_bytes: f64,
}

/// The file cache metrics of a page. All are finite and not negative.
#[derive(Debug, Clone, PartialEq)]
pub struct LfcGauges {
    /// Number of cache hits since the database's start.
    pub hits: f64,
    /// Number of cache misses since the database's start.
    pub misses: f64,
    /// Number of cache writes since the database's start.
    pub writes: f64,
    /// `[i]` = pages (8 KiB) touched over the last `i + 1` minutes; no more than a day of them.
    pub working_set_pages: Vec<f64>,
}

/// Why a page is useless.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// A wanted metric is not on it.
    #[error("metric {0} is missing")]
    Missing(&'static str),
    /// A wanted metric is declared as something else, or not declared.
    #[error("metric {0} is no gauge")]
    NotAGauge(&'static str),
    /// A wanted metric has several samples.
    #[error("metric {0} has {1} samples instead of one")]
    Count(&'static str, usize),
    /// A sample cannot be read, is not finite, or is negative.
    #[error("metric {0} has a bad sample")]
    BadSample(&'static str),
    /// The windows are not one minute apart from one minute on.
    #[error("working-set windows are not exactly one minute apart")]
    Windows,
}

/// One wanted metric as found so far.
#[derive(Debug, Clone, Default)]
struct Found {
    is_gauge: bool,
    is_bad: bool,
    count: usize,
    samples: Vec<(u64, f64)>,
}

/// Names of the metrics that a reader looks for.
#[derive(Debug, Clone)]
enum Names {
    Fixed(&'static [&'static str]),
    Wanted(Arc<[String]>),
}

impl Names {
    fn len(&self) -> usize {
        match self {
            Self::Fixed(names) => names.len(),
            Self::Wanted(names) => names.len(),
        }
    }

    /// A name for an error. Wanted names have none.
    fn fixed(&self, index: usize) -> &'static str {
        match self {
            Self::Fixed(names) => names[index],
            Self::Wanted(_) => "",
        }
    }
}

/// Incremental reader of one metrics page.
#[derive(Debug, Clone)]
pub struct Page {
    names: Names,
    found: Vec<Found>,
    has_windows: bool,
    partial: Vec<u8>,
    is_skipping: bool,
}

impl Page {
    /// A reader for a page of system metrics.
    #[must_use]
    pub fn system() -> Self {
        const ALL: [&str; 12] = [
            SYSTEM[0],
            SYSTEM[1],
            SYSTEM[2],
            SYSTEM[3],
            SYSTEM[4],
            NODE[0],
            NODE[1],
            NODE[2],
            NODE[3],
            NODE[4],
            RUNNABLE[0],
            RUNNABLE[1],
        ];
        static NAMES: [&str; 12] = ALL;
        Self::new(Names::Fixed(&NAMES), false)
    }

    /// A reader for some metrics of any page.
    #[must_use]
    pub fn wanted(names: Arc<[String]>) -> Self {
        Self::new(Names::Wanted(names), false)
    }

    /// A reader for a page of file cache metrics.
    #[must_use]
    pub fn lfc() -> Self {
        static NAMES: [&str; 4] = LFC;
        Self::new(Names::Fixed(&NAMES), true)
    }

    fn new(names: Names, has_windows: bool) -> Self {
        let found = vec![Found::default(); names.len()];
        Self {
            names,
            found,
            has_windows,
            partial: Vec::new(),
            is_skipping: false,
        }
    }

    /// Reads the next piece of the page.
    pub fn feed(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            rest = after;
            // As long is too long whether the line comes whole or in pieces.
            let is_too_long = self.partial.len() + line.len() > LINE_LIMIT_BYTES;
            if std::mem::take(&mut self.is_skipping) || is_too_long {
                self.partial.clear();
            } else if self.partial.is_empty() {
                self.line(line);
            } else {
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(line);
                self.line(&whole);
                whole.clear();
                self.partial = whole;
            }
        }
        if self.is_skipping || self.partial.len() + rest.len() > LINE_LIMIT_BYTES {
            self.is_skipping = true;
            self.partial.clear();
        } else {
            self.partial.extend_from_slice(rest);
        }
    }

    /// Bytes held on to between two pieces.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn held_bytes(&self) -> usize {
        let samples: usize = self
            .found
            .iter()
            .map(|found| found.samples.capacity())
            .sum();
        self.partial.capacity() + samples * size_of::<(u64, f64)>()
    }

    fn line(&mut self, line: &[u8]) {
        let Ok(line) = std::str::from_utf8(line) else {
            return;
        };
        let line = line.trim();
        if let Some(comment) = line.strip_prefix('#') {
            let mut words = comment.split_whitespace();
            if words.next() == Some("TYPE")
                && let (Some(name), Some(kind)) = (words.next(), words.next())
                && let Some(index) = self.index(name)
            {
                self.found[index].is_gauge = kind == "gauge";
            }
            return;
        }
        let end = line
            .find(|c: char| c == '{' || c.is_whitespace())
            .unwrap_or(line.len());
        let Some(index) = self.index(&line[..end]) else {
            return;
        };
        let is_windowed = self.has_windows && self.names.fixed(index) == LFC[3];
        let sample = read_sample(&line[end..], is_windowed);
        let found = &mut self.found[index];
        found.count += 1;
        match sample {
            Some(sample) if found.samples.len() < MAX_SAMPLES => found.samples.push(sample),
            Some(_) => {}
            None => found.is_bad = true,
        }
    }

    fn index(&self, name: &str) -> Option<usize> {
        match &self.names {
            Names::Fixed(names) => names.iter().position(|wanted| *wanted == name),
            Names::Wanted(names) => names.iter().position(|wanted| wanted == name),
        }
    }

    fn finish(&mut self) {
        let last = std::mem::take(&mut self.partial);
        if !self.is_skipping {
            self.line(&last);
        }
    }

    fn checked(&self, index: usize) -> Result<&Found, PageError> {
        let (name, found) = (self.names.fixed(index), &self.found[index]);
        if found.count == 0 {
            Err(PageError::Missing(name))
        } else if !found.is_gauge {
            Err(PageError::NotAGauge(name))
        } else if found.is_bad {
            Err(PageError::BadSample(name))
        } else {
            Ok(found)
        }
    }

    fn single(&self, index: usize) -> Result<f64, PageError> {
        match self.checked(index)? {
            Found {
                count: 1, samples, ..
            } => Ok(samples.first().map_or(0.0, |(_, value)| *value)),
            Found { count, .. } => Err(PageError::Count(self.names.fixed(index), *count)),
        }
    }

    /// The wanted metrics of any type, in the order of their names. `None` for one that the page
    /// does not have exactly once, as a finite number that is not negative.
    #[must_use]
    pub fn into_values(mut self) -> Vec<Option<f64>> {
        self.finish();
        let value = |found: &Found| match found.samples[..] {
            // Zero has one form, so that a journal gives the same bits.
            [(_, value)] if found.count == 1 && !found.is_bad => Some(value + 0.0),
            _ => None,
        };
        self.found.iter().map(value).collect()
    }

    /// The system metrics on the page: the guest agent's names, else node_exporter's.
    ///
    /// # Errors
    /// [`PageError`] about the first name that fails.
    pub fn into_system(mut self) -> Result<SystemGauges, PageError> {
        self.finish();
        let from = if self.found[..5].iter().all(|found| found.count == 0)
            && self.found[5..RUNNABLE_AT]
                .iter()
                .any(|found| found.count > 0)
        {
            5
        } else {
            0
        };
        let values = [0, 1, 2, 3, 4].map(|n| self.single(from + n));
        let [load1, load5, total, available, cached] = values;
        let (memory_total_bytes, memory_available_bytes) = (total?, available?);
        let (load1, load5) = self.runnable()?.unwrap_or((load1?, load5?));
        Ok(SystemGauges {
            load1,
            load5,
            memory_total_bytes,
            memory_available_bytes,
            memory_cached_bytes: cached?,
        })
    }

    /// Both runnable averages, if the page has either.
    fn runnable(&self) -> Result<Option<(f64, f64)>, PageError> {
        let is_there = self.found[RUNNABLE_AT..]
            .iter()
            .any(|found| found.count > 0);
        if !is_there {
            return Ok(None);
        }
        Ok(Some((
            self.single(RUNNABLE_AT)?,
            self.single(RUNNABLE_AT + 1)?,
        )))
    }

    /// The file cache metrics on the page.
    ///
    /// # Errors
    /// [`PageError`] about the first name that fails.
    pub fn into_lfc(mut self) -> Result<LfcGauges, PageError> {
        self.finish();
        let (hits, misses, writes) = (self.single(0)?, self.single(1)?, self.single(2)?);
        let windows = self.checked(3)?;
        let by_minute: BTreeMap<u64, f64> = windows.samples.iter().copied().collect();
        let are_exact = by_minute
            .keys()
            .zip(1_u64..)
            .all(|(seconds, minute)| *seconds == minute * 60);
        if !are_exact || by_minute.len() != windows.count {
            return Err(PageError::Windows);
        }
        Ok(LfcGauges {
            hits,
            misses,
            writes,
            working_set_pages: by_minute.into_values().collect(),
        })
    }
}

/// Reads `{labels} value [timestamp]`; the number is the window's length in seconds where it
/// matters.
fn read_sample(rest: &str, is_windowed: bool) -> Option<(u64, f64)> {
    let (labels, rest) = match rest.strip_prefix('{') {
        None => ("", rest),
        Some(inside) => {
            let end = end_of_labels(inside)?;
            (&inside[..end], &inside[end + 1..])
        }
    };
    let mut words = rest.split_whitespace();
    let value: f64 = words.next()?.parse().ok()?;
    let has_more = words.nth(1).is_some();
    if !value.is_finite() || value < 0.0 || has_more {
        return None;
    }
    let window = if is_windowed {
        label(labels, WINDOW_LABEL)?.parse().ok()?
    } else {
        0
    };
    Some((window, value))
}

/// Position of the closing brace, which may also stand inside a quoted value.
fn end_of_labels(text: &str) -> Option<usize> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b'}' if !is_quoted => return Some(at),
            _ => {}
        }
    }
    None
}

/// The raw value of a label.
fn label<'a>(labels: &'a str, wanted: &str) -> Option<&'a str> {
    let mut rest = labels;
    loop {
        let (name, after) = rest.split_once('=')?;
        let inside = after.trim_start().strip_prefix('"')?;
        let mut is_escaped = false;
        let end = inside.bytes().position(|byte| {
            let is_end = byte == b'"' && !is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
            is_end
        })?;
        if name.trim_matches([' ', ',']) == wanted {
            return Some(&inside[..end]);
        }
        rest = &inside[end + 1..];
    }
}

#[cfg(test)]
mod tests;
