//! IPv4 ranges in CIDR notation.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// A network such as `10.100.0.0/16`. No bit is set beyond its prefix, as in iptables' listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    network: Ipv4Addr,
    prefix: u32,
}

/// Error for a text that is not a range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a range of IPv4 addresses: write one as 10.100.0.0/16, with nothing set behind the prefix"
)]
pub struct NoCidr(String);

impl FromStr for Cidr {
    type Err = NoCidr;

    fn from_str(text: &str) -> Result<Self, NoCidr> {
        let no = || NoCidr(text.to_owned());
        let (network, prefix) = text.split_once('/').ok_or_else(no)?;
        let network: Ipv4Addr = network.parse().map_err(|_| no())?;
        let is_number = prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix: u32 = prefix.parse().ok().filter(|_| is_number).ok_or_else(no)?;
        // A range of all IPv4 addresses cannot be an overlay's.
        let shift = u32::BITS
            .checked_sub(prefix)
            .filter(|_| prefix > 0)
            .ok_or_else(no)?;
        let beyond = (1_u64 << shift) - 1;
        if u64::from(network.to_bits()) & beyond != 0 {
            return Err(no());
        }
        Ok(Self { network, prefix })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

impl Serialize for Cidr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn invalid_range_is_refused_with_an_example() {
        for text in [
            "",
            "10.100.0.0",
            "10.100.0.1/16",
            "10.100.0.0/33",
            "0.0.0.0/0",
            "10.0.0.0/+8",
            "fd00::/8",
            "a/8",
        ] {
            let error = text.parse::<Cidr>().expect_err(text);
            assert!(error.to_string().contains("10.100.0.0/16"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn range_reads_back(bits: u32, prefix in 1_u32..=32) {
            let network = Ipv4Addr::from_bits(bits >> (32 - prefix) << (32 - prefix));
            let text = format!("{network}/{prefix}");
            prop_assert_eq!(text.parse::<Cidr>().expect("a range").to_string(), text);
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in ".{0,24}") {
            let _ = text.parse::<Cidr>();
        }
    }
}
