//! The one place with `unsafe`: making an interface whose other end is a file, and keeping open
//! files from programs.
#![expect(
    unsafe_code,
    reason = "such interfaces are made by ioctl alone, and files that nobody here has opened are known by number alone; neither has a \
              safe form"
)]

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::ioctl::{IntegerSetter, Opcode, Updater, ioctl};

/// `TUNSETIFF`, which takes and gives a [`Request`].
const SET_INTERFACE: Opcode = 0x4004_54ca;
/// `TUNSETPERSIST`, which takes a number.
const SET_PERSIST: Opcode = 0x4004_54cb;
/// `IFF_TAP`, `IFF_NO_PI`, `IFF_VNET_HDR`: frames, with nothing before them but what virtio puts
/// there.
const FRAMES: u16 = 0x0002 | 0x1000 | 0x4000;
const QUEUES: u16 = 0x0100;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// Makes an interface of this name that stays when nobody has its other end, which anybody may take
/// then who may open the device file `tun`; by several queues, if it is to be.
///
/// # Errors
/// As the kernel says.
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
    // SAFETY: the kernel takes a number, and touches no memory of ours.
    unsafe { ioctl(&file, IntegerSetter::<SET_PERSIST>::new_usize(1)) }?;
    Ok(())
}

/// Marks every open file from a number on as one to be closed when this process, or a child,
/// executes a program.
///
/// # Errors
/// As the kernel says.
pub(super) fn close_on_exec_from(first: u32) -> io::Result<()> {
    let flags = nix::libc::CLOSE_RANGE_CLOEXEC.cast_signed();
    // SAFETY: the call changes a flag of files, and neither closes one nor touches memory.
    if unsafe { nix::libc::close_range(first, u32::MAX, flags) } == 0 {
        return Ok(());
    }
    // Kernels before 5.11 do not know it.
    for entry in std::fs::read_dir("/proc/self/fd")?.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.parse::<u32>().ok());
        if let Some(number) = number.filter(|number| *number >= first) {
            let number = number.cast_signed();
            // SAFETY: as above. A number that is no open file any more is refused.
            unsafe { nix::libc::fcntl(number, nix::libc::F_SETFD, nix::libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}
