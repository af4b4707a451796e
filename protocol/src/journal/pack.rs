//! The routine steps of one VM, packed: samples, deadlines, permits renewed as they were.
//! Sixty-four of them take about a kilobyte, and come back bit by bit as they went in.
//!
//! Layout of a block: per step one kind byte, the time since the step before as a varint
//! (microseconds), then the fields. A field is a varint: 0 = eight bytes of the float follow; else
//! 1 + the zigzag difference, in steps of the field's scale, to the last scaled value of that
//! field. A float that is a whole multiple of its scale is never written in eight bytes.

mod policies;

use super::policy::{Advice, Terms};
use policies::{put_advice, put_again, put_feeds, put_terms};

/// Most steps of a block.
pub const MAX_STEPS: usize = 64;
/// Most windows of a working-set series, a week of minutes.
const MAX_WINDOWS: u64 = 10_080;
/// Scaled values are kept below this, where floats are exact.
const EXACT: f64 = 4_503_599_627_370_496.0;

/// Why a block does not unpack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the packed steps are damaged")]
pub struct PackError;

/// System metrics of a guest.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(missing_docs, reason = "the fields of the agent's own sample")]
pub struct SystemSample {
    pub load1: f64,
    pub load5: f64,
    pub usage: f64,
    pub cached: f64,
    /// What the guest's monitor takes for its working set, bytes; only where that has a vote.
    pub estimate: Option<f64>,
    /// Share of time in which some tasks waited for memory, percent; only where that has a vote.
    pub pressure: Option<f64>,
}

/// File cache metrics of a guest.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the fields of the agent's own sample")]
pub struct LfcSample {
    pub hits: f64,
    pub misses: f64,
    pub writes: f64,
    pub pages: Vec<f64>,
}

/// One routine step: something reached the core and it computed.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// A deadline of the core.
    Tick,
    /// New system metrics reached the core.
    System(SystemSample),
    /// New file cache metrics reached the core.
    Lfc(LfcSample),
    /// The permit request under way was answered with exactly what it asked, which is the permit
    /// held.
    Renewed,
    /// The VM object came again with nothing new in it but its version.
    Again(Option<u64>),
    /// The policy that decides answered as before. It is no step of the core.
    Advised(AnsweredAgain),
    /// The policy in shadow answered as before. It is no step of the core.
    Shadowed(AnsweredAgain),
    /// Values of the feeds, in the order of the names in `B`. It is no step of the core.
    Feeds(Vec<Option<f64>>),
    /// Advice of the policy that decides reached the core.
    Advice(Advice),
    /// The core got the limits of the policy that decides. `None`: no policy decides.
    Terms(Option<Terms>),
}

/// Members of an answer that differ from one to the next although the policy says the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnsweredAgain {
    /// Time from the question to the answer, microseconds.
    pub took: u64,
    /// Units that other VMs of the node requested and were not permitted, thousandths.
    pub starved: u64,
    /// Number of VMs on the node.
    pub vms: u32,
}

/// Steps of one VM and their times, microseconds; at most [`MAX_STEPS`], times never fall.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Block(pub Vec<(u64, Step)>);

#[derive(Clone, Copy)]
enum Scale {
    Hundredths,
    Kibi,
    One,
}

impl Scale {
    fn split(self, value: f64) -> f64 {
        match self {
            Self::Hundredths => value * 100.0,
            Self::Kibi => value / 1024.0,
            Self::One => value,
        }
    }

    fn join(self, count: f64) -> f64 {
        match self {
            Self::Hundredths => count / 100.0,
            Self::Kibi => count * 1024.0,
            Self::One => count,
        }
    }

    /// The count that stands for exactly this value, bit by bit.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "below 2^52 by the check before"
    )]
    fn count(self, value: f64) -> Option<i64> {
        let count = self.split(value).round();
        let is_exact = count.abs() < EXACT && self.join(count).to_bits() == value.to_bits();
        is_exact.then_some(count as i64)
    }
}

/// Last scaled values, per field: load1, load5, usage, cached, hits, misses, writes, estimate,
/// pressure, then the windows and the feeds.
#[derive(Default)]
struct Memory {
    fields: [i64; 9],
    windows: Vec<i64>,
    feeds: [i64; MAX_FEEDS],
    /// Shortage and number of VMs in the last answer.
    load: Option<(u64, u32)>,
    /// Digest in the last advice.
    digest: Option<u32>,
}

/// Most feeds of a step: a VM is asked about two versions at most.
const MAX_FEEDS: usize = 2 * crate::policy::MAX_FEEDS;
/// Kinds from this one on are about policies.
const OF_POLICIES: u8 = 32;
/// Kinds from [`OF_POLICIES`] up to this one are no steps of the core: [`Step::Advised`],
/// [`Step::Shadowed`], [`Step::Feeds`].
const LAST_BESIDE_CORE: u8 = OF_POLICIES + 2;

/// What a monitor adds to a sample: each bit of the kind byte beyond [`WITH_SIGNALS`] stands for
/// one of them.
const SIGNALS: [(u8, usize, Scale); 2] = [(1, 7, Scale::Kibi), (2, 8, Scale::Hundredths)];
/// Kinds above this one are samples with signals.
const WITH_SIGNALS: u8 = 5;

impl SystemSample {
    fn signals(&self) -> [Option<f64>; 2] {
        [self.estimate, self.pressure]
    }

    /// The kind byte: 1 for a plain sample.
    fn kind(&self) -> u8 {
        let bits: u8 = SIGNALS
            .iter()
            .zip(self.signals())
            .filter_map(|((bit, ..), value)| value.map(|_| bit))
            .sum();
        if bits == 0 { 1 } else { WITH_SIGNALS + bits }
    }
}

const SYSTEM_SCALES: [Scale; 4] = [
    Scale::Hundredths,
    Scale::Hundredths,
    Scale::Kibi,
    Scale::Kibi,
];

#[expect(
    clippy::cast_possible_truncation,
    reason = "seven bits at a time; the last is below 0x80"
)]
fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_field(out: &mut Vec<u8>, last: &mut i64, scale: Scale, value: f64) {
    match scale.count(value) {
        Some(count) => {
            let difference = count - *last;
            *last = count;
            put_varint(
                out,
                ((difference << 1) ^ (difference >> 63)).cast_unsigned() + 1,
            );
        }
        None => {
            out.push(0);
            out.extend(value.to_bits().to_le_bytes());
        }
    }
}

impl Step {
    fn kind(&self) -> u8 {
        match self {
            Self::Tick => 0,
            Self::System(sample) => sample.kind(),
            Self::Lfc(_) => 2,
            Self::Renewed => 3,
            Self::Again(None) => 4,
            Self::Again(Some(_)) => 5,
            Self::Advised(_) => OF_POLICIES,
            Self::Shadowed(_) => OF_POLICIES + 1,
            Self::Feeds(_) => OF_POLICIES + 2,
            Self::Advice(_) => OF_POLICIES + 3,
            Self::Terms(_) => OF_POLICIES + 4,
        }
    }

    /// Whether the core was fed: the other steps are about policies.
    #[must_use]
    pub fn is_of_core(&self) -> bool {
        !(OF_POLICIES..=LAST_BESIDE_CORE).contains(&self.kind())
    }

    fn put(&self, out: &mut Vec<u8>, memory: &mut Memory, after: u64) {
        match self {
            Self::System(sample) => put_sample(out, memory, sample),
            Self::Lfc(sample) => put_windows(out, memory, sample),
            Self::Again(Some(version)) => put_varint(out, *version),
            Self::Advised(again) | Self::Shadowed(again) => put_again(out, memory, *again, after),
            Self::Feeds(values) => put_feeds(out, memory, values),
            Self::Advice(advice) => put_advice(out, memory, *advice),
            Self::Terms(terms) => put_terms(out, *terms),
            Self::Tick | Self::Renewed | Self::Again(None) => {}
        }
    }
}

fn put_sample(out: &mut Vec<u8>, memory: &mut Memory, sample: &SystemSample) {
    let values = [sample.load1, sample.load5, sample.usage, sample.cached];
    for (index, (value, scale)) in values.into_iter().zip(SYSTEM_SCALES).enumerate() {
        put_field(out, &mut memory.fields[index], scale, value);
    }
    for ((_, index, scale), value) in SIGNALS.into_iter().zip(sample.signals()) {
        if let Some(value) = value {
            put_field(out, &mut memory.fields[index], scale, value);
        }
    }
}

fn put_windows(out: &mut Vec<u8>, memory: &mut Memory, sample: &LfcSample) {
    let values = [sample.hits, sample.misses, sample.writes];
    for (index, value) in values.into_iter().enumerate() {
        put_field(out, &mut memory.fields[4 + index], Scale::One, value);
    }
    put_varint(out, sample.pages.len() as u64);
    memory
        .windows
        .resize(sample.pages.len().max(memory.windows.len()), 0);
    for (last, value) in memory.windows.iter_mut().zip(&sample.pages) {
        put_field(out, last, Scale::One, *value);
    }
}

/// The bytes of a block.
#[must_use]
pub fn pack(block: &Block) -> Vec<u8> {
    let mut out = Vec::new();
    let mut memory = Memory::default();
    let mut last = block.0.first().map_or(0, |(at, _)| *at);
    for (at, step) in &block.0 {
        out.push(step.kind());
        let after = at.saturating_sub(last);
        put_varint(&mut out, after);
        last = *at;
        step.put(&mut out, &mut memory, after);
    }
    out
}

struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn byte(&mut self) -> Result<u8, PackError> {
        let (first, rest) = self.0.split_first().ok_or(PackError)?;
        self.0 = rest;
        Ok(*first)
    }

    fn varint(&mut self) -> Result<u64, PackError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(PackError);
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(PackError)
    }

    fn field(&mut self, last: &mut i64, scale: Scale) -> Result<f64, PackError> {
        let Some(zigzag) = self.varint()?.checked_sub(1) else {
            let (bytes, rest) = self.0.split_first_chunk::<8>().ok_or(PackError)?;
            self.0 = rest;
            return Ok(f64::from_bits(u64::from_le_bytes(*bytes)));
        };
        let difference = (zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed();
        *last = last.checked_add(difference).ok_or(PackError)?;
        Ok(scale.join(*last as f64))
    }

    /// A sample with the signals of these bits.
    fn sample(&mut self, memory: &mut Memory, bits: u8) -> Result<SystemSample, PackError> {
        let mut values = [0.0; 4];
        for (index, scale) in SYSTEM_SCALES.into_iter().enumerate() {
            values[index] = self.field(&mut memory.fields[index], scale)?;
        }
        let mut signals = [None; 2];
        for (signal, (bit, index, scale)) in signals.iter_mut().zip(SIGNALS) {
            if bits & bit != 0 {
                *signal = Some(self.field(&mut memory.fields[index], scale)?);
            }
        }
        let [load1, load5, usage, cached] = values;
        let [estimate, pressure] = signals;
        Ok(SystemSample {
            load1,
            load5,
            usage,
            cached,
            estimate,
            pressure,
        })
    }

    fn windows(&mut self, memory: &mut Memory) -> Result<LfcSample, PackError> {
        let mut values = [0.0; 3];
        for (index, value) in values.iter_mut().enumerate() {
            *value = self.field(&mut memory.fields[4 + index], Scale::One)?;
        }
        let [hits, misses, writes] = values;
        let count = self.varint()?;
        if count > MAX_WINDOWS {
            return Err(PackError);
        }
        let mut pages = Vec::new();
        for index in 0..usize::try_from(count).map_err(|_| PackError)? {
            if memory.windows.len() == index {
                memory.windows.push(0);
            }
            pages.push(self.field(&mut memory.windows[index], Scale::One)?);
        }
        Ok(LfcSample {
            hits,
            misses,
            writes,
            pages,
        })
    }

    fn step(&mut self, memory: &mut Memory, kind: u8, after: u64) -> Result<Step, PackError> {
        const ADVISED: u8 = OF_POLICIES;
        const SHADOWED: u8 = OF_POLICIES + 1;
        const FEEDS: u8 = OF_POLICIES + 2;
        const ADVICE: u8 = OF_POLICIES + 3;
        const TERMS: u8 = OF_POLICIES + 4;
        Ok(match kind {
            0 => Step::Tick,
            1 => Step::System(self.sample(memory, 0)?),
            6..=8 => Step::System(self.sample(memory, kind - WITH_SIGNALS)?),
            2 => Step::Lfc(self.windows(memory)?),
            3 => Step::Renewed,
            4 => Step::Again(None),
            5 => Step::Again(Some(self.varint()?)),
            ADVISED => Step::Advised(self.again(memory, after)?),
            SHADOWED => Step::Shadowed(self.again(memory, after)?),
            FEEDS => Step::Feeds(self.feeds(memory)?),
            ADVICE => Step::Advice(self.advice(memory)?),
            TERMS => Step::Terms(self.terms()?),
            _ => return Err(PackError),
        })
    }
}

/// The block of these bytes, whose first step was at `start`.
///
/// # Errors
/// [`PackError`]: damaged, or not packed the one way [`pack`] does it.
pub fn unpack(start: u64, bytes: &[u8]) -> Result<Block, PackError> {
    let mut cursor = Cursor(bytes);
    let mut memory = Memory::default();
    let mut at = start;
    let mut steps = Vec::new();
    while !cursor.0.is_empty() {
        if steps.len() == MAX_STEPS {
            return Err(PackError);
        }
        let kind = cursor.byte()?;
        let after = cursor.varint()?;
        at = at.checked_add(after).ok_or(PackError)?;
        steps.push((at, cursor.step(&mut memory, kind, after)?));
    }
    let block = Block(steps);
    if pack(&block) == bytes {
        Ok(block)
    } else {
        Err(PackError)
    }
}
