//! QEMU's options for disks on claims.

use protocol::disk_cache::DiskCache;

/// Options of a disk on a claim. A flush of the guest reaches the storage: the disk outlives the
/// node. QEMU inherits a descriptor for reading and writing and opens it at once as such.
#[must_use]
pub fn claimed_options(cache: DiskCache) -> String {
    let cache = DiskCache {
        no_flush: false,
        ..cache
    };
    format!("format=raw,{cache},discard=unmap,auto-read-only=off")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flush_on_a_claim_reaches_the_storage_whatever_the_cache_is() {
        for cache in ["cache=unsafe", "", "cache=none"] {
            let options = claimed_options(cache.parse().unwrap());
            assert!(options.starts_with("format=raw,"), "{options}");
            assert!(options.contains("cache.no-flush=off"), "{options}");
        }
    }
}
