//! Suffixes of pod names, and the order of resource versions.

/// Letters and digits of a suffix: no vowels, no look-alikes.
const SUFFIX_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;

/// Five characters for a pod's name, by Splitmix64. The names must differ; they are no secret.
pub(super) fn suffix(seed: &mut u64) -> String {
    let mut text = String::new();
    for _ in 0..SUFFIX_LENGTH {
        *seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = *seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        let count = u64::try_from(SUFFIX_ALPHABET.len()).unwrap_or(1);
        let index = usize::try_from(mixed % count).unwrap_or(0);
        text.push(char::from(SUFFIX_ALPHABET[index]));
    }
    text
}

/// Whether `version` is older than `than`. Every known API server writes decimal numbers. A version
/// that is no number is never older.
pub(super) fn is_older(version: &str, than: &str) -> bool {
    match (version.parse::<u64>(), than.parse::<u64>()) {
        (Ok(version), Ok(than)) => version < than,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_those_of_splitmix64() {
        let mut seed = 0;
        let names = [(); 3].map(|()| suffix(&mut seed));
        assert_eq!(names, ["kbnk5", "q6lwp", "nzx7p"]);
    }
}
