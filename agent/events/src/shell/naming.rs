//! Names of batches at their receivers. Source: docs/compatibility/agent.md §4.6, §4.7.

use protocol::time::WallTime;

/// Digits of a short UUID, without the ones that look alike.
const DIGITS: &[u8; 57] = b"23456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
/// Number of digits that 128 bits need.
const LENGTH: usize = 22;

/// Scheme by which a receiver's batches are named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Naming {
    /// A trace id, for HTTP receivers.
    Trace,
    /// An object with billing events under this folder, which may be empty.
    Billing(String),
    /// An object with scaling events under this folder.
    Scaling(String),
}

impl Naming {
    /// Makes a name that no other batch has.
    pub(crate) fn name(&self, wall: WallTime) -> String {
        self.name_with(wall, &short_uuid(rand::random()))
    }

    fn name_with(&self, wall: WallTime, uuid: &str) -> String {
        // YYYY-MM-DDTHH:MM:SSZ
        let text = wall.to_string();
        let (date, time) = text.split_once('T').unwrap_or((&text, ""));
        let mut date = date.splitn(3, '-');
        let [year, month, day] = [(); 3].map(|()| date.next().unwrap_or("00"));
        let hour = time.get(..2).unwrap_or("00");
        match self {
            Self::Trace => uuid.to_owned(),
            Self::Billing(folder) => {
                let name = format!(
                    "year={year}/month={month}/day={day}/hour={hour}/{time}_{uuid}.ndjson.gz"
                );
                in_folder(folder, &name)
            }
            Self::Scaling(folder) => {
                let name = format!("{year}/{month}/{day}/{hour}/events_{uuid}.ndjson.gz");
                in_folder(folder, &name)
            }
        }
    }
}

fn in_folder(folder: &str, name: &str) -> String {
    if folder.is_empty() {
        name.to_owned()
    } else {
        format!("{folder}/{name}")
    }
}

/// A random (version 4) UUID of 22 digits.
fn short_uuid(random: u128) -> String {
    const VERSION: u128 = 0xf << 76;
    const VARIANT: u128 = 0b11 << 62;
    let mut rest = (random & !VERSION & !VARIANT) | (4 << 76) | (0b10 << 62);
    let mut digits = [DIGITS[0]; LENGTH];
    for digit in digits.iter_mut().rev() {
        *digit = DIGITS[usize::try_from(rest % 57).unwrap_or(0)];
        rest /= 57;
    }
    digits.map(char::from).iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_names_equal_those_of_the_deployed_agent() {
        let wall = WallTime::parse("2024-01-02T03:04:05.678Z").expect("parses");
        let name = |naming: Naming| naming.name_with(wall, "UUID");
        assert_eq!(
            name(Naming::Billing("a/b".into())),
            "a/b/year=2024/month=01/day=02/hour=03/03:04:05Z_UUID.ndjson.gz"
        );
        assert_eq!(
            name(Naming::Billing(String::new())),
            "year=2024/month=01/day=02/hour=03/03:04:05Z_UUID.ndjson.gz"
        );
        assert_eq!(
            name(Naming::Scaling("p".into())),
            "p/2024/01/02/03/events_UUID.ndjson.gz"
        );
        assert_eq!(name(Naming::Trace), "UUID");
    }

    #[test]
    fn short_uuids_have_22_digits_and_are_unique() {
        let all: std::collections::BTreeSet<String> =
            (0..1000_u128).map(|n| short_uuid(n * 7_919)).collect();
        assert_eq!(all.len(), 1000);
        assert!(all.iter().all(|one| one.len() == LENGTH));
        assert_eq!(short_uuid(u128::MAX).len(), LENGTH);
    }
}
