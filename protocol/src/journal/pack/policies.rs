//! Steps of policies: repeated answers and values of feeds.

use super::{AnsweredAgain, Cursor, MAX_FEEDS, Memory, PackError, Scale, put_field, put_varint};

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
    out.push(
        values
            .iter()
            .rev()
            .fold(0, |bits, value| (bits << 1) | u8::from(value.is_some())),
    );
    for (last, value) in memory.feeds.iter_mut().zip(values) {
        if let Some(value) = value {
            put_field(out, last, Scale::Hundredths, *value);
        }
    }
}

impl Cursor<'_> {
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
        let bits = self.byte()?;
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
