//! The decision journal: one record of everything a decision rested on and what came of it.
//!
//! A segment is a file of lines `crc32c SP json LF`: eight lower-case hex digits over the JSON's
//! bytes, then the JSON in canonical form. The first line is a [`Head`]; it names the last line of
//! the segment before, so that a missing segment shows. One record, one line, one spelling:
//! [`decode`] refuses every line that [`encode`] would write otherwise, so equal meaning is equal
//! bytes.
//!
//! *Canonical form*: keys sorted by bytes, no blanks, whole numbers below 2^53 in magnitude, no
//! floats, no nulls, the shortest escapes. What is a float in the agent is written as a decimal
//! text (settings), in thousandths (votes) or packed exactly (samples).
//!
//! Nothing here touches a file or a clock: everything is over byte slices. Writing segments is
//! `daemon_kit::journal`'s.

mod action;
mod canonical;
mod chain;
mod checkpoint;
mod hash;
mod line;
mod pack;
mod policy;
mod record;
mod sampled;
mod set_answer;
#[cfg(test)]
mod tests;
mod values;
mod vm_state;

pub use action::Action;
pub use canonical::MAX_INTEGER;
pub use chain::{Damage, Line, Scan, chain_hash, scan};
pub use checkpoint::{
    Approval, CalmPart, Checkpoint, Denial, LastAdvice, MonitorPart, Ongoing, PatchPart,
    PluginPart, PolicyPart, UpscaleRecord,
};
pub use hash::hash_text;
pub use line::{DecodeError, FORMAT, MAX_LINE_BYTES, OLDEST_FORMAT, crc, decode, encode, open};
pub use pack::{
    AnsweredAgain, Block, LfcSample, MAX_STEPS, PackError, Step, SystemSample, pack, unpack,
};
pub use policy::{Advice, Answered, Bound, BoundLimits, BoundVersion, Cut, Said, Terms};
pub use record::{
    CoreSettings, Decision, Gap, Head, LinkEvent, NodeState, Outcome, Previous, Record, RequestEnd,
    RequestKind, Started, Stated, Tick, Waits, Why,
};
pub use sampled::Sampled;
pub use set_answer::{SetCount, SetsAnswered};
pub use values::{Amount, Decimal, Issued, Milli, Size, Stamped};
pub use vm_state::{FaultCounts, Scaling, ShrinkStep, VmObject, Wished};
