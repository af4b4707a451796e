//! Which addresses there are: the `ipam` member of a network attachment's configuration.

use std::net::Ipv4Addr;

use protocol::time::Span;
use serde::{Deserialize, Serialize};

/// Default of [`Overlay::grace`].
pub const GRACE: Span = Span::from_secs(600);
/// Ranges of one overlay at most: each is looked through for every new VM.
const RANGES_LIMIT: usize = 16;
/// Bits of an IPv4 address.
const BITS: u32 = 32;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is not of the form.
    #[error("the network attachment's configuration is not of its form")]
    Form(#[from] serde_json::Error),
    /// There is no range in it, or there are too many.
    #[error("it has {0} ranges; there must be from 1 to {RANGES_LIMIT}")]
    Ranges(usize),
    /// That is no range of IPv4 addresses.
    #[error("{0:?} is no range of IPv4 addresses such as 10.100.0.0/16")]
    Cidr(String),
    /// The first or last address is not in the range, or the last is before the first.
    #[error("from {first} to {last} is not inside {range}")]
    Bounds {
        /// The range as the configuration spells it.
        range: String,
        /// The first address.
        first: Ipv4Addr,
        /// The last address.
        last: Ipv4Addr,
    },
}

/// An overlay's pools, in the order in which they are used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Overlay {
    /// Where the pool objects are.
    pub namespace: String,
    /// One range per pool object, from 1 to 16.
    pub ranges: Vec<Range>,
    /// How long a VM has to be away before its address is taken back.
    pub grace: Span,
}

/// One pool: a range of addresses, and the object that records the holder of each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Range {
    /// Name of the IPPool object.
    pub pool: String,
    /// As it is spelled in the object.
    pub cidr: String,
    /// The first address of the range, as a number: offsets count from here.
    pub base: u32,
    /// Length of the network prefix in bits.
    pub prefix: u32,
    /// The first and the last address that is given out.
    pub span: (u32, u32),
    /// First and last address of each excluded range.
    pub exclude: Vec<(u32, u32)>,
}

impl Range {
    /// Netmask of the network, made from `prefix`; guests get it with their address.
    #[must_use]
    pub fn mask(&self) -> Ipv4Addr {
        Ipv4Addr::from(mask(self.prefix))
    }
}

#[derive(Debug, Deserialize)]
struct File {
    ipam: Ipam,
}

#[derive(Debug, Deserialize)]
struct Ipam {
    #[serde(default)]
    network_name: String,
    #[serde(default, rename = "ipRanges")]
    ranges: Vec<Spelled>,
    /// The older form has one range, spelled here.
    #[serde(flatten)]
    single: Spelled,
}

#[derive(Debug, Clone, Deserialize)]
struct Spelled {
    #[serde(default)]
    range: String,
    range_start: Option<Ipv4Addr>,
    range_end: Option<Ipv4Addr>,
    #[serde(default)]
    exclude: Vec<String>,
}

impl Overlay {
    /// Reads `spec.config` of a network attachment in `namespace`.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn read(namespace: &str, config: &str) -> Result<Self, ConfigError> {
        let Ipam {
            network_name,
            mut ranges,
            single,
        } = serde_json::from_str::<File>(config)?.ipam;
        if ranges.is_empty() && !single.range.is_empty() {
            ranges.push(single);
        }
        if !(1..=RANGES_LIMIT).contains(&ranges.len()) {
            return Err(ConfigError::Ranges(ranges.len()));
        }
        let ranges = ranges
            .iter()
            .map(|spelled| spelled.read(&network_name))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            namespace: namespace.to_owned(),
            ranges,
            grace: GRACE,
        })
    }
}

impl Spelled {
    fn read(&self, network: &str) -> Result<Range, ConfigError> {
        let (base, prefix) = cidr(&self.range)?;
        let end = base | !mask(prefix);
        // By default without the network address and the broadcast address.
        let first = self.range_start.map_or(base.saturating_add(1), u32::from);
        let last = self.range_end.map_or(end.saturating_sub(1), u32::from);
        if !(base <= first && first <= last && last <= end) {
            return Err(ConfigError::Bounds {
                range: self.range.clone(),
                first: first.into(),
                last: last.into(),
            });
        }
        let exclude = self.exclude.iter().map(|text| {
            let (base, prefix) = cidr(text)?;
            Ok((base, base | !mask(prefix)))
        });
        let plain = self.range.replace('/', "-");
        let pool = match network {
            "" => plain,
            network => format!("{network}-{plain}"),
        };
        Ok(Range {
            pool,
            cidr: self.range.clone(),
            base,
            prefix,
            span: (first, last),
            exclude: exclude.collect::<Result<_, ConfigError>>()?,
        })
    }
}

fn mask(prefix: u32) -> u32 {
    u32::MAX.checked_shl(BITS - prefix).unwrap_or(0)
}

/// First address and bits of a network; a single address is a network of its own.
fn cidr(text: &str) -> Result<(u32, u32), ConfigError> {
    let wrong = || ConfigError::Cidr(text.to_owned());
    let (address, prefix) = text.split_once('/').unwrap_or((text, "32"));
    let address: Ipv4Addr = address.parse().map_err(|_| wrong())?;
    let prefix: u32 = prefix.parse().map_err(|_| wrong())?;
    if prefix > BITS {
        return Err(wrong());
    }
    Ok((u32::from(address) & mask(prefix), prefix))
}
