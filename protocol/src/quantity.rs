//! Kubernetes quantities, read and written exactly as the API server does.
//!
//! A quantity is a decimal number with a suffix that also fixes how it is printed: `1Gi` stays
//! binary, `250m` stays decimal, `1e3` stays in exponent form. Values finer than a nano are rounded
//! up, as Kubernetes does. Source: Kubernetes `k8s.io/apimachinery/pkg/api/resource`, restated.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Nanos in one unit: the finest step a quantity keeps.
const NANOS: i128 = 1_000_000_000;
/// Longest text accepted. Longer ones are refused before any arithmetic.
const MAX_TEXT_BYTES: usize = 64;
/// Magnitudes past this many whole units are refused (the API server caps at 2^63-1).
const MAX_UNITS: i128 = i64::MAX as i128;

/// Notation in which a quantity prints. It keeps the notation in which it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    /// Powers of 1024: `1Gi`.
    BinarySi,
    /// Powers of 1000: `250m`, `1k`.
    DecimalSi,
    /// Decimal exponents that are multiples of 3: `1e3`.
    DecimalExponent,
}

/// A Kubernetes quantity. Shape on the wire: a string (`"1Gi"`, `"250m"`) or a JSON number when
/// read; always a string when written. Range: ±(2^63-1) units in steps of a nano.
#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

/// Why a text is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Empty text, text longer than 64 bytes, or no digits.
    #[error("quantity {0:?} must match <number><suffix>, for example 250m, 1.5 or 1Gi")]
    Syntax(String),
    /// A suffix that is none of n u m "" k M G T P E Ki Mi Gi Ti Pi Ei e<N> E<N>.
    #[error("quantity {text:?} has unknown suffix {suffix:?}")]
    Suffix {
        /// The whole text, as read.
        text: String,
        /// The part of the text after the number.
        suffix: String,
    },
    /// The magnitude is above 2^63-1 units, or an exponent is outside -30 to 18. Holds the text.
    #[error("quantity {0:?} is out of range")]
    Range(String),
}

impl Quantity {
    /// A quantity of whole bytes that prints with binary suffixes.
    #[must_use]
    pub fn from_bytes(bytes: u64) -> Self {
        Self {
            nanos: i128::from(bytes) * NANOS,
            format: Format::BinarySi,
        }
    }

    /// A quantity of thousandths that prints decimally (`250m`, `2`).
    #[must_use]
    pub fn from_milli(milli: u64) -> Self {
        Self {
            nanos: i128::from(milli) * (NANOS / 1000),
            format: Format::DecimalSi,
        }
    }

    /// Zero in decimal notation. It prints as `0`.
    #[must_use]
    pub fn zero() -> Self {
        Self {
            nanos: 0,
            format: Format::DecimalSi,
        }
    }

    /// Notation in which the quantity prints.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// The exact value in nanos (billionths of a unit).
    #[must_use]
    pub fn nanos(&self) -> i128 {
        self.nanos
    }

    /// Whole units, rounded away from zero, as the API server's `Value()`.
    #[must_use]
    pub fn value(&self) -> i128 {
        div_ceil(self.nanos, NANOS)
    }

    /// Thousandths, rounded away from zero, as the API server's `MilliValue()`.
    #[must_use]
    pub fn milli_value(&self) -> i128 {
        div_ceil(self.nanos, NANOS / 1000)
    }

    /// Whole units if not negative and within `u64`, rounded up.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        u64::try_from(self.value()).ok()
    }

    /// Reads a JSON value: a string or a number.
    ///
    /// # Errors
    /// [`QuantityError`] when it is neither, or does not parse.
    pub fn from_json(value: &serde_json::Value) -> Result<Self, QuantityError> {
        match value {
            serde_json::Value::String(text) => text.parse(),
            serde_json::Value::Number(number) => number.to_string().parse(),
            other => Err(QuantityError::Syntax(other.to_string())),
        }
    }
}

/// Equal when the value is equal, whatever the spelling.
impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}
impl Eq for Quantity {}
impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

/// `a / b` rounded away from zero; `b` is above 0.
fn div_ceil(a: i128, b: i128) -> i128 {
    let quotient = a / b;
    if a % b == 0 {
        quotient
    } else {
        quotient + a.signum()
    }
}

/// Decimal and binary suffixes with their multiplier in nanos.
const SUFFIXES: [(&str, i128, Format); 16] = [
    ("n", 1, Format::DecimalSi),
    ("u", 1_000, Format::DecimalSi),
    ("m", 1_000_000, Format::DecimalSi),
    ("", NANOS, Format::DecimalSi),
    ("k", NANOS * 1_000, Format::DecimalSi),
    ("M", NANOS * 1_000_000, Format::DecimalSi),
    ("G", NANOS * 1_000_000_000, Format::DecimalSi),
    ("T", NANOS * 1_000_000_000_000, Format::DecimalSi),
    ("P", NANOS * 1_000_000_000_000_000, Format::DecimalSi),
    ("E", NANOS * 1_000_000_000_000_000_000, Format::DecimalSi),
    ("Ki", NANOS << 10, Format::BinarySi),
    ("Mi", NANOS << 20, Format::BinarySi),
    ("Gi", NANOS << 30, Format::BinarySi),
    ("Ti", NANOS << 40, Format::BinarySi),
    ("Pi", NANOS << 50, Format::BinarySi),
    ("Ei", NANOS << 60, Format::BinarySi),
];

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let syntax = || QuantityError::Syntax(text.chars().take(MAX_TEXT_BYTES).collect());
        if text.is_empty() || text.len() > MAX_TEXT_BYTES || !text.is_ascii() {
            return Err(syntax());
        }
        let (negative, unsigned) = match text.as_bytes()[0] {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let end = unsigned
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(syntax());
        }
        let (multiplier, divisor, format) = scale_of(text, suffix)?;
        let magnitude = scaled(whole, fraction, multiplier, divisor)
            .filter(|nanos| *nanos <= MAX_UNITS * NANOS)
            .ok_or_else(|| QuantityError::Range(text.to_owned()))?;
        // Rounding is up in magnitude for positives; the API server rounds negatives away from zero
        // too.
        Ok(Self {
            nanos: if negative { -magnitude } else { magnitude },
            format,
        })
    }
}

/// Multiplier and divisor that turn the number before `suffix` into nanos.
fn scale_of(text: &str, suffix: &str) -> Result<(i128, i128, Format), QuantityError> {
    if let Some((_, nanos, format)) = SUFFIXES.iter().find(|(name, ..)| *name == suffix) {
        return Ok((*nanos, 1, *format));
    }
    let unknown = || QuantityError::Suffix {
        text: text.to_owned(),
        suffix: suffix.to_owned(),
    };
    let exponent = suffix.strip_prefix(['e', 'E']).ok_or_else(unknown)?;
    let exponent: i32 = exponent.parse().map_err(|_| unknown())?;
    if !(-30..=18).contains(&exponent) {
        return Err(QuantityError::Range(text.to_owned()));
    }
    let power = 10_i128.pow(exponent.unsigned_abs());
    Ok(if exponent >= 0 {
        (NANOS * power, 1, Format::DecimalExponent)
    } else {
        (NANOS, power, Format::DecimalExponent)
    })
}

/// `whole.fraction · multiplier / divisor` rounded up, or `None` past the range of `i128`.
fn scaled(whole: &str, fraction: &str, multiplier: i128, divisor: i128) -> Option<i128> {
    let digits = |text: &str| -> Option<i128> {
        text.bytes().try_fold(0_i128, |sum, digit| {
            sum.checked_mul(10)?.checked_add(i128::from(digit - b'0'))
        })
    };
    // Digits past the 27th after the point cannot change a nano of an Ei, except by rounding up.
    let kept = &fraction[..fraction.len().min(18)];
    let dropped = fraction[kept.len()..].bytes().any(|digit| digit != b'0');
    let unit = 10_i128.checked_pow(u32::try_from(kept.len()).ok()?)?;
    let whole = digits(whole)?.checked_mul(multiplier)?;
    let part = digits(kept)?.checked_mul(multiplier)?;
    let part_nanos = div_ceil(part, unit) + i128::from(dropped && part % unit == 0);
    let total = whole.checked_add(part_nanos)?;
    Some(div_ceil(total, divisor))
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let whole = self.nanos / NANOS;
        let exact = self.nanos % NANOS == 0;
        match self.format {
            // Small or fractional binary values print decimally, as the API server does to avoid
            // confusion.
            Format::BinarySi if exact && whole.abs() >= 1024 => display_binary(f, whole),
            Format::BinarySi | Format::DecimalSi => {
                let (number, power) = thousands(self.nanos);
                let suffix = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
                write!(f, "{number}{}", suffix[power])
            }
            Format::DecimalExponent => {
                let (number, power) = thousands(self.nanos);
                match i32::try_from(power).unwrap_or(3) * 3 - 9 {
                    0 => write!(f, "{number}"),
                    exponent => write!(f, "{number}e{exponent}"),
                }
            }
        }
    }
}

/// Largest power of 1000 (0 = nano … 9 = exa) that leaves a whole number.
fn thousands(nanos: i128) -> (i128, usize) {
    let (mut number, mut power) = (nanos, 0);
    while power < 9 && number % 1000 == 0 {
        number /= 1000;
        power += 1;
    }
    (number, power)
}

fn display_binary(f: &mut fmt::Formatter<'_>, whole: i128) -> fmt::Result {
    let (mut number, mut power) = (whole, 0);
    while power < 6 && number % 1024 == 0 {
        number /= 1024;
        power += 1;
    }
    write!(
        f,
        "{number}{}",
        ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][power]
    )
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        Self::from_json(&value).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(text: &str) -> String {
        text.parse::<Quantity>().expect(text).to_string()
    }

    #[test]
    fn canonical_forms_match_the_api_server() {
        for (input, output) in [
            ("1Gi", "1Gi"),
            ("1024Mi", "1Gi"),
            ("0.5Gi", "512Mi"),
            ("1.5", "1500m"),
            ("1000", "1k"),
            ("0.25", "250m"),
            ("250m", "250m"),
            ("2000m", "2"),
            ("1e3", "1e3"),
            ("0", "0"),
            ("0Gi", "0"),
            ("150589570", "150589570"),
            ("1Ki", "1Ki"),
            ("512", "512"),
            (".5", "500m"),
            ("5.", "5"),
            ("1E", "1E"),
            ("1e-3", "1e-3"),
            ("0.5Ki", "512"),
            ("100M", "100M"),
            ("1e6", "1e6"),
            ("-1", "-1"),
        ] {
            assert_eq!(shown(input), output, "{input}");
        }
    }

    #[test]
    fn bad_texts_are_refused() {
        for text in [
            "",
            "Gi",
            "1 Gi",
            "1gi",
            "1.2.3",
            "--1",
            "1e99",
            "9223372036854775808",
            "é",
            "0x10",
            "1mi",
            ".",
        ] {
            assert!(text.parse::<Quantity>().is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn finer_than_a_nano_rounds_up() {
        assert_eq!(
            "0.0000000001".parse::<Quantity>().expect("parses").nanos(),
            1
        );
        assert_eq!("0.0001m".parse::<Quantity>().expect("parses").nanos(), 100);
        assert_eq!(
            "0.2501".parse::<Quantity>().expect("parses").milli_value(),
            251
        );
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(bytes in any::<u32>(), shift in 0_u32..20) {
            let quantity = Quantity::from_bytes(u64::from(bytes) << shift);
            prop_assert_eq!(quantity.to_string().parse::<Quantity>().expect("own output"), quantity);
            let milli = Quantity::from_milli(u64::from(bytes));
            prop_assert_eq!(milli.to_string().parse::<Quantity>().expect("own output"), milli);
        }

        #[test]
        fn never_panics(text in ".{0,80}") {
            let _ = text.parse::<Quantity>();
        }
    }
}
