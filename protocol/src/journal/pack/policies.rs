//! Steps of policies: repeated answers, values of feeds, advice and limits.

use super::super::policy::{Advice, Said, Terms};
use super::{AnsweredAgain, Cursor, MAX_FEEDS, Memory, PackError, Scale, put_field, put_varint};
use crate::policy::Fault;
use crate::time::Span;

/// First code of [`Said::Want`]. Code 0 is [`Said::Hold`], those between are the faults.
const WANT: u64 = 64;

/// What `took` is beyond the time since the step before, which mostly is the question's. Then 0 if
/// the load of the node is that of the last answer, else 1 and the load.
pub(super) fn put_again(out: &mut Vec<u8>, memory: &mut Memory, again: AnsweredAgain, after: u64) {
    let beyond = again.took.wrapping_sub(after).cast_signed();
    put_varint(out, ((beyond << 1) ^ (beyond >> 63)).cast_unsigned());
    let load = (again.starved, again.vms);
    if memory.load == Some(load) {
        out.push(0);
    } else {
        memory.load = Some(load);
        out.push(1);
        put_varint(out, again.starved);
        put_varint(out, u64::from(again.vms));
    }
}

/// Number of feeds, a bit for each that has a value, the values.
pub(super) fn put_feeds(out: &mut Vec<u8>, memory: &mut Memory, values: &[Option<f64>]) {
    let values = &values[..values.len().min(MAX_FEEDS)];
    put_varint(out, values.len() as u64);
    let bits = values.iter().rev();
    let bits = bits.fold(0, |bits, value| (bits << 1) | u64::from(value.is_some()));
    put_varint(out, bits);
    for (last, value) in memory.feeds.iter_mut().zip(values) {
        if let Some(value) = value {
            put_field(out, last, Scale::Hundredths, *value);
        }
    }
}

fn code(said: Said) -> u64 {
    match said {
        Said::Hold => 0,
        Said::Fault(fault) => {
            let place = Fault::ALL.iter().position(|one| *one == fault);
            place.map_or(0, |place| place as u64 + 1)
        }
        Said::Want(units) => WANT + u64::from(units),
    }
}

fn said(code: u64) -> Result<Said, PackError> {
    if let Some(units) = code.checked_sub(WANT) {
        return u32::try_from(units).map(Said::Want).map_err(|_| PackError);
    }
    let Some(place) = code.checked_sub(1) else {
        return Ok(Said::Hold);
    };
    let fault = usize::try_from(place).ok().and_then(|n| Fault::ALL.get(n));
    fault.copied().map(Said::Fault).ok_or(PackError)
}

/// The code of the answer times two, plus 1 if the digest is not that of the last advice. Then the
/// digest follows.
pub(super) fn put_advice(out: &mut Vec<u8>, memory: &mut Memory, advice: Advice) {
    let is_other = memory.digest != Some(advice.digest);
    put_varint(out, code(advice.said) * 2 + u64::from(is_other));
    if is_other {
        memory.digest = Some(advice.digest);
        out.extend(advice.digest.to_le_bytes());
    }
}

/// A byte with a bit for the terms and for each limit, the digest, the limits.
pub(super) fn put_terms(out: &mut Vec<u8>, terms: Option<Terms>) {
    let Some(terms) = terms else {
        return out.push(0);
    };
    let limits = [
        terms.max_units.map(u64::from),
        terms.shrink_units_per_minute.map(u64::from),
        terms.fallback_after.map(|after| after.0),
    ];
    out.push(
        limits
            .iter()
            .rev()
            .fold(0, |bits, limit| (bits << 1) | u8::from(limit.is_some()))
            << 1
            | 1,
    );
    out.extend(terms.digest.to_le_bytes());
    for limit in limits.into_iter().flatten() {
        put_varint(out, limit);
    }
}

impl Cursor<'_> {
    fn digest(&mut self) -> Result<u32, PackError> {
        let (bytes, rest) = self.0.split_first_chunk::<4>().ok_or(PackError)?;
        self.0 = rest;
        Ok(u32::from_le_bytes(*bytes))
    }

    pub(super) fn advice(&mut self, memory: &mut Memory) -> Result<Advice, PackError> {
        let code = self.varint()?;
        if code & 1 != 0 {
            memory.digest = Some(self.digest()?);
        }
        Ok(Advice {
            digest: memory.digest.ok_or(PackError)?,
            said: said(code >> 1)?,
        })
    }

    pub(super) fn terms(&mut self) -> Result<Option<Terms>, PackError> {
        let bits = self.byte()?;
        if bits & 1 == 0 {
            return Ok(None);
        }
        let digest = self.digest()?;
        let mut limit = |bit: u8| match bits & bit {
            0 => Ok(None),
            _ => self.varint().map(Some),
        };
        let units = |limit: Option<u64>| limit.map(u32::try_from).transpose();
        Ok(Some(Terms {
            digest,
            max_units: units(limit(2)?).map_err(|_| PackError)?,
            shrink_units_per_minute: units(limit(4)?).map_err(|_| PackError)?,
            fallback_after: limit(8)?.map(Span),
        }))
    }

    pub(super) fn again(
        &mut self,
        memory: &mut Memory,
        after: u64,
    ) -> Result<AnsweredAgain, PackError> {
        let zigzag = self.varint()?;
        let beyond = (zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed();
        if self.byte()? != 0 {
            let starved = self.varint()?;
            let vms = u32::try_from(self.varint()?).map_err(|_| PackError)?;
            memory.load = Some((starved, vms));
        }
        let (starved, vms) = memory.load.ok_or(PackError)?;
        Ok(AnsweredAgain {
            took: after.wrapping_add(beyond.cast_unsigned()),
            starved,
            vms,
        })
    }

    pub(super) fn feeds(&mut self, memory: &mut Memory) -> Result<Vec<Option<f64>>, PackError> {
        let count = usize::try_from(self.varint()?).map_err(|_| PackError)?;
        let bits = self.varint()?;
        if count > MAX_FEEDS {
            return Err(PackError);
        }
        let mut values = Vec::new();
        for (index, last) in memory.feeds.iter_mut().take(count).enumerate() {
            values.push(match bits >> index & 1 {
                0 => None,
                _ => Some(self.field(last, Scale::Hundredths)?),
            });
        }
        Ok(values)
    }
}
