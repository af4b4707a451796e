//! The guest's host name: the name of its pod, as in NeonVM (docs/compatibility/neonvm.md §3.2), so
//! that guests of one image can be told apart.

/// Longest DNS label in bytes. Linux accepts one more.
const MAX_BYTES: usize = 63;

/// Kernel command line words with the host name. Kernels before 5.19 ignore the first, and other
/// inits than ours the second.
#[must_use]
pub fn kernel_words(pod: &str) -> String {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    if pod.is_empty() || !pod.bytes().all(is_part) {
        return String::new();
    }
    let mut name = format!("vm-{pod}");
    name.truncate(MAX_BYTES);
    let name = name.trim_end_matches(['-', '.']);
    format!("hostname={name} bellows.hostname={name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_is_named_after_its_pod() {
        let words = "hostname=vm-pg-x7k2p bellows.hostname=vm-pg-x7k2p";
        assert_eq!(kernel_words("pg-x7k2p"), words);
        // The kubelet cuts names of pods in the same way: no name ends with a dash or a dot.
        let long = kernel_words(&format!("{}-x", "a".repeat(59)));
        let word = long.split(' ').next().expect("one");
        assert_eq!(word, format!("hostname=vm-{}", "a".repeat(59)));
        for none in ["", "a b", "a\n", "a=b"] {
            assert_eq!(kernel_words(none), "", "{none:?}");
        }
    }
}
