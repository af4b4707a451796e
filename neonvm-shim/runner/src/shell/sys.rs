//! The only file with `unsafe`: makes tap interfaces, and keeps open files from being inherited.
#![expect(
    unsafe_code,
    reason = "such interfaces are made by ioctl alone, and files that nobody here has opened are known by number alone; neither has a \
              safe form"
)]

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::ioctl::{IntegerSetter, Opcode, Updater, ioctl};

/// `TUNSETIFF`, with a [`Request`] as input and output.
const SET_INTERFACE: Opcode = 0x4004_54ca;
/// `TUNSETPERSIST`, with a number.
const SET_PERSIST: Opcode = 0x4004_54cb;
/// `IFF_TAP`, `IFF_NO_PI`, `IFF_VNET_HDR`: frames with virtio's header only.
const FRAMES: u16 = 0x0002 | 0x1000 | 0x4000;
const QUEUES: u16 = 0x0100;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// Makes a persistent tap interface, with several queues on request. Any process that may open the
/// device file `tun` can attach to it.
///
/// # Errors
/// The kernel's error.
pub(super) fn make_tap(tun: &Path, name: &str, has_queues: bool) -> io::Result<()> {
    let mut request = Request {
        name: [0; 16],
        flags: if has_queues { FRAMES | QUEUES } else { FRAMES },
        rest: [0; 22],
    };
    // The last byte stays zero.
    for (to, from) in request.name.iter_mut().take(15).zip(name.bytes()) {
        *to = from;
    }
    let file = File::options().read(true).write(true).open(tun)?;
    // SAFETY: the kernel reads and writes one `struct ifreq`, which `Request` is in size and
    // layout.
    unsafe { ioctl(&file, Updater::<SET_INTERFACE, Request>::new(&mut request)) }?;
    // SAFETY: the argument is a number, and the kernel touches no memory of ours.
    unsafe { ioctl(&file, IntegerSetter::<SET_PERSIST>::new_usize(1)) }?;
    Ok(())
}

/// Marks all open files from descriptor `first` on as closed at the execution of a program, in this
/// process and its children.
///
/// # Errors
/// The kernel's error.
pub(super) fn close_on_exec_from(first: u32) -> io::Result<()> {
    let flags = nix::libc::CLOSE_RANGE_CLOEXEC.cast_signed();
    // SAFETY: the call changes a flag of files, and neither closes one nor touches memory.
    if unsafe { nix::libc::close_range(first, u32::MAX, flags) } == 0 {
        return Ok(());
    }
    // Kernels before 5.11 do not support it.
    for entry in std::fs::read_dir("/proc/self/fd")?.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.parse::<u32>().ok());
        if let Some(number) = number.filter(|number| *number >= first) {
            let number = number.cast_signed();
            // SAFETY: as above. The kernel refuses a number that is not open any more.
            unsafe { nix::libc::fcntl(number, nix::libc::F_SETFD, nix::libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}
