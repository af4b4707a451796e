//! Spec and status in a runner container's arguments: `-vmspec BASE64(GZIP(JSON))`, as one argument
//! with `=` or as two. Source: docs/compatibility/neonvm.md §3.1.

use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::read::GzDecoder;
use protocol::disk_cache::{DiskCache, DiskCacheError};
use protocol::vm::{VmSpec, VmStatus};
use serde::de::DeserializeOwned;

const SPEC: &str = "vmspec";
const STATUS: &str = "vmstatus";
/// Name of the argument with the cache mode of disks.
pub const DISK_CACHE: &str = "qemu-disk-cache-settings";
/// Longest unpacked spec in bytes. A spec with every member is a few kilobytes.
const MAX_SPEC_BYTES: u64 = 4 << 20;

/// Errors of the arguments with spec and status. Each names the argument.
#[derive(Debug, thiserror::Error)]
pub enum VmArgsError {
    /// The arguments do not contain this one.
    #[error("the runner's arguments hold no -{0}")]
    Missing(&'static str),
    /// The argument is not base64.
    #[error("-{0} is not base64")]
    Base64(&'static str, #[source] base64::DecodeError),
    /// The argument is not gzip.
    #[error("-{0} is not gzip")]
    Gzip(&'static str, #[source] std::io::Error),
    /// The argument unpacks to more bytes than any spec has.
    #[error("-{0} unpacks to more than {MAX_SPEC_BYTES} bytes")]
    TooLong(&'static str),
    /// The JSON is not that of a VM.
    #[error("-{0} is not that of a VirtualMachine")]
    Json(&'static str, #[source] serde_json::Error),
}

/// Reads the spec from a runner container's arguments.
///
/// # Errors
/// [`VmArgsError`].
pub fn vm_spec(args: &[String]) -> Result<VmSpec, VmArgsError> {
    unpack(args, SPEC)
}

/// Reads the VM's status at the pod's creation from the arguments.
///
/// # Errors
/// [`VmArgsError`].
pub fn vm_status(args: &[String]) -> Result<VmStatus, VmArgsError> {
    unpack(args, STATUS)
}

fn unpack<T: DeserializeOwned>(args: &[String], name: &'static str) -> Result<T, VmArgsError> {
    let text = argument(args, name).ok_or(VmArgsError::Missing(name))?;
    let packed = STANDARD.decode(text.trim());
    let packed = packed.map_err(|error| VmArgsError::Base64(name, error))?;
    let mut json = Vec::new();
    GzDecoder::new(packed.as_slice())
        .take(MAX_SPEC_BYTES + 1)
        .read_to_end(&mut json)
        .map_err(|error| VmArgsError::Gzip(name, error))?;
    if u64::try_from(json.len()).unwrap_or(u64::MAX) > MAX_SPEC_BYTES {
        return Err(VmArgsError::TooLong(name));
    }
    serde_json::from_slice(&json).map_err(|error| VmArgsError::Json(name, error))
}

/// Reads the cache mode of disks from the arguments. The default is ours.
///
/// # Errors
/// [`DiskCacheError`].
pub fn disk_cache(args: &[String]) -> Result<DiskCache, DiskCacheError> {
    argument(args, DISK_CACHE).unwrap_or_default().parse()
}

/// Value of a flag in any of Go's spellings: one dash or two, `=` or the next argument.
pub(crate) fn argument<'a>(args: &'a [String], name: &str) -> Option<&'a str> {
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let Some(flag) = flag(word) else {
            continue;
        };
        if let Some((key, value)) = flag.split_once('=') {
            if key == name {
                return Some(value);
            }
        } else if flag == name {
            return words.next().map(String::as_str);
        }
    }
    None
}

fn flag(word: &str) -> Option<&str> {
    word.strip_prefix("--").or_else(|| word.strip_prefix('-'))
}

/// Whether a boolean flag of Go is set.
pub(crate) fn is_set(args: &[String], name: &str) -> bool {
    args.iter().any(|word| {
        let rest = flag(word).and_then(|flag| flag.strip_prefix(name));
        matches!(rest, Some("" | "=true" | "=1"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;
    use std::io::Write;

    fn pack(bytes: &[u8]) -> String {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        STANDARD.encode(encoder.finish().unwrap())
    }

    fn args(list: &[&str]) -> Vec<String> {
        list.iter().map(|arg| (*arg).to_owned()).collect()
    }

    #[test]
    fn every_spelling_of_a_flag_is_read() {
        let packed = pack(br#"{"guest":{"cpus":{"min":"250m","max":2,"use":1}}}"#);
        for list in [
            args(&["runner", "-vmspec", &packed, "-vmstatus", "x"]),
            args(&[&format!("--vmspec={packed}")]),
            args(&["-a=b", &format!("-vmspec={packed}")]),
        ] {
            assert_eq!(vm_spec(&list).unwrap().guest.cpus.min.0, 250, "{list:?}");
        }
    }

    #[test]
    fn status_is_read_like_the_spec() {
        let packed = pack(br#"{"extraNetIP":"10.100.128.1","unknown":1}"#);
        let status = vm_status(&args(&["-vmspec", "x", "-vmstatus", &packed])).unwrap();
        assert_eq!(status.extra_net_ip, "10.100.128.1");
        let missing = vm_status(&args(&["-vmspec", &packed])).unwrap_err();
        assert!(missing.to_string().contains("-vmstatus"), "{missing}");
    }

    #[test]
    fn disk_cache_comes_from_the_arguments_or_is_ours() {
        let said = "cache.writeback=on,cache.direct=on,cache.no-flush=on";
        let cache = disk_cache(&args(&["-qemu-disk-cache-settings", said, "-x"])).unwrap();
        assert_eq!(cache.to_string(), said);
        assert_eq!(disk_cache(&args(&["-x"])), Ok(DiskCache::OURS));
        let options = args(&["-qemu-disk-cache-settings=cache=none,file=/x"]);
        let error = disk_cache(&options).unwrap_err();
        assert!(error.to_string().contains("\"file=/x\""), "{error}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let of = |list: &[&str]| vm_spec(&args(list)).unwrap_err();
        assert!(matches!(of(&[]), VmArgsError::Missing(SPEC)));
        assert!(matches!(of(&["-vmspec"]), VmArgsError::Missing(_)));
        assert!(matches!(of(&["-vmspec", "***"]), VmArgsError::Base64(..)));
        assert!(matches!(of(&["-vmspec", "AAAA"]), VmArgsError::Gzip(..)));
        assert!(matches!(
            of(&["-vmspec", &pack(b"[")]),
            VmArgsError::Json(..)
        ));
        let bomb = pack(&vec![b' '; 5 << 20]);
        assert!(matches!(of(&["-vmspec", &bomb]), VmArgsError::TooLong(_)));
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), raw in ".{0,60}") {
            let _ = vm_spec(&args(&["-vmspec", &pack(&bytes)]));
            let _ = vm_spec(&args(&["-vmspec", &raw]));
            let _ = vm_status(&args(&["-vmstatus", &raw]));
        }
    }
}
