//! A shipped core as a part of a state.

use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use scheduler::core::Core;

use super::views::{Names, vm_key};

/// A core, told apart by digests: of what concerns each VM, whatever its name, and of the rest.
#[derive(Clone)]
pub(crate) struct Brain {
    pub(crate) core: Arc<Core>,
    shared: u64,
    vms: Vec<u64>,
}

impl Brain {
    pub(crate) fn new(core: Core, vms: usize) -> Self {
        let mut brain = Self {
            core: Arc::new(core),
            shared: 0,
            vms: vec![0; vms],
        };
        brain.settle();
        brain
    }

    /// Takes the digests anew, after the core was told something.
    pub(crate) fn settle(&mut self) {
        let mut hasher = DefaultHasher::new();
        self.core.digest_shared(&mut hasher);
        self.shared = hasher.finish();
        for (vm, digest) in self.vms.iter_mut().enumerate() {
            let mut nameless = Nameless::new(vm);
            self.core.digest_of(&vm_key(vm), &mut nameless);
            *digest = nameless.finish();
        }
    }

    /// The digest of what concerns no VM in particular.
    pub(super) const fn shared(&self) -> u64 {
        self.shared
    }

    /// The digest of what concerns a VM.
    pub(super) fn of(&self, vm: usize) -> u64 {
        self.vms[vm]
    }

    /// The digest of the whole, with all names.
    pub(super) fn whole(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.core.digest(&mut hasher);
        hasher.finish()
    }
}

impl fmt::Debug for Brain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "core {:016x} {:x?}", self.shared, self.vms)
    }
}

impl PartialEq for Brain {
    fn eq(&self, other: &Self) -> bool {
        (self.shared, &self.vms) == (other.shared, &other.vms)
    }
}

/// Takes the names of one VM and of its pod for those of any.
pub(super) struct Nameless {
    inner: DefaultHasher,
    names: Names,
}

impl Nameless {
    pub(super) fn new(vm: usize) -> Self {
        Self {
            inner: DefaultHasher::new(),
            names: Names::of(vm),
        }
    }
}

impl Hasher for Nameless {
    fn write(&mut self, bytes: &[u8]) {
        let nameless: &[u8] = match &self.names {
            names if bytes == names.vm.as_bytes() => b"vm",
            names if bytes == names.pod.as_bytes() => b"pod",
            _ => bytes,
        };
        self.inner.write(nameless);
    }

    // Numbers are no names.
    fn write_u8(&mut self, number: u8) {
        self.inner.write_u8(number);
    }

    fn write_u32(&mut self, number: u32) {
        self.inner.write_u32(number);
    }

    fn write_u64(&mut self, number: u64) {
        self.inner.write_u64(number);
    }

    fn write_u128(&mut self, number: u128) {
        self.inner.write_u128(number);
    }

    fn write_usize(&mut self, number: usize) {
        self.inner.write_usize(number);
    }

    fn finish(&self) -> u64 {
        self.inner.finish()
    }
}
