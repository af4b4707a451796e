//! Kernel uevents: `ACTION@DEVPATH`, then `KEY=VALUE` parts, each ended by a zero byte. Source:
//! Linux `lib/kobject_uevent.c`, restated.

/// Subjects of kernel events that the keeper reacts to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// A CPU appeared, left, or was switched.
    Cpu,
    /// A memory block appeared, left, or was switched.
    Memory,
}

/// Topic of a kernel message; `None` for every other subsystem and for anything that is not a
/// kernel uevent.
#[must_use]
pub fn topic(message: &[u8]) -> Option<Topic> {
    let mut parts = message.split(|byte| *byte == 0);
    let head = parts.next()?;
    if !head.contains(&b'@') {
        return None;
    }
    match parts.find_map(|part| part.strip_prefix(b"SUBSYSTEM="))? {
        b"cpu" => Some(Topic::Cpu),
        b"memory" => Some(Topic::Memory),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_cpu_and_memory_events_have_a_topic() {
        let cpu = b"add@/devices/system/cpu/cpu1\0ACTION=add\0DEVPATH=/devices/system/cpu/cpu1\0SUBSYSTEM=cpu\0SEQNUM=9\0";
        let memory = b"online@/devices/system/memory/memory40\0ACTION=online\0SUBSYSTEM=memory\0";
        let other = b"add@/devices/pci0000:00\0ACTION=add\0SUBSYSTEM=pci\0";
        assert_eq!(topic(cpu), Some(Topic::Cpu));
        assert_eq!(topic(memory), Some(Topic::Memory));
        assert_eq!(topic(other), None);
    }

    #[test]
    fn messages_of_user_space_daemons_are_ignored() {
        assert_eq!(topic(b"libudev\0\xfe\xed\xca\xfe\0SUBSYSTEM=cpu\0"), None);
        assert_eq!(topic(b""), None);
    }

    proptest! {
        #[test]
        fn never_panics(message in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = topic(&message);
        }
    }
}
