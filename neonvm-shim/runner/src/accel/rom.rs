//! The probe guest: a 64 KiB firmware image that enters long mode and reports it.
//!
//! The machine starts at `F000:FFF0`, the last paragraph of the image, in real mode. From there:
//!
//! 1. jump to the image's begin; interrupts off; clear the tables' memory at 0x1000;
//! 2. page tables: one PML4, one page directory pointer table, one page directory with one 2 MiB
//!    page at address 0, which holds the image too (at 0xF0000);
//! 3. CR4.PAE, CR3, EFER.LME by RDMSR/WRMSR, CR0.PG and CR0.PE at once: long mode;
//! 4. far jump to 64-bit code; CPUID, a store and a load through the page tables, ten million turns
//!    of a loop, which a hypervisor that single-steps or faults without end does not finish;
//! 5. write the passing value to QEMU's `isa-debug-exit` port; QEMU exits with `2 · value + 1`.
//!
//! A triple fault resets the machine, which `-no-reboot` turns into exit status 0: not the passing
//! status.

/// Port of the `isa-debug-exit` device.
pub const EXIT_PORT: u16 = 0x501;
const PASS: u8 = 0x2a;
/// QEMU's exit status when the guest passed.
pub const PASS_STATUS: i32 = 2 * PASS as i32 + 1;

/// Length of the image in bytes.
pub const ROM_BYTES: usize = 64 << 10;
const BASE: u32 = 0xF0000;
const CODE64: u16 = 0x100;
const GDT: u16 = 0x200;
const GDT_POINTER: u16 = 0x240;
const RESET: u16 = 0xFFF0;

/// A piece of the image, filled from an offset on.
struct Piece {
    at: usize,
    bytes: Vec<u8>,
}

impl Piece {
    fn at(at: u16) -> Self {
        Self {
            at: usize::from(at),
            bytes: Vec::new(),
        }
    }

    /// Appends one instruction; the mnemonic is for the reader.
    fn op(mut self, _mnemonic: &str, code: &[u8]) -> Self {
        self.bytes.extend_from_slice(code);
        self
    }
}

/// Builds the image, [`ROM_BYTES`] long, with the same bytes at every call.
#[must_use]
pub fn rom() -> Vec<u8> {
    // HLT everywhere else: a stray jump hangs instead of executing chance bytes.
    let mut image = vec![0xf4; ROM_BYTES];
    for piece in [
        real_mode(),
        long_mode(),
        descriptors(),
        gdt_pointer(),
        reset_vector(),
    ] {
        image[piece.at..piece.at + piece.bytes.len()].copy_from_slice(&piece.bytes);
    }
    image
}

fn reset_vector() -> Piece {
    Piece::at(RESET).op("jmp F000:0000", &[0xea, 0x00, 0x00, 0x00, 0xf0])
}

fn real_mode() -> Piece {
    let [gdt_lo, gdt_hi] = GDT_POINTER.to_le_bytes();
    let target = (BASE + u32::from(CODE64)).to_le_bytes();
    let mut far_jump = vec![0x66, 0xea];
    far_jump.extend_from_slice(&target);
    far_jump.extend_from_slice(&[0x08, 0x00]);
    Piece::at(0)
        .op("cli", &[0xfa])
        .op("cld", &[0xfc])
        .op("xor ax, ax", &[0x31, 0xc0])
        .op("mov ds, ax", &[0x8e, 0xd8])
        .op("mov es, ax", &[0x8e, 0xc0])
        .op("mov di, 0x1000", &[0xbf, 0x00, 0x10])
        .op("mov cx, 0x1800", &[0xb9, 0x00, 0x18])
        .op("rep stosw", &[0xf3, 0xab])
        .op(
            "mov word [0x1000], 0x2003 (PML4[0] -> 0x2000)",
            &[0xc7, 0x06, 0x00, 0x10, 0x03, 0x20],
        )
        .op(
            "mov word [0x2000], 0x3003 (PDPT[0] -> 0x3000)",
            &[0xc7, 0x06, 0x00, 0x20, 0x03, 0x30],
        )
        .op(
            "mov word [0x3000], 0x0083 (PD[0] -> 0, 2 MiB)",
            &[0xc7, 0x06, 0x00, 0x30, 0x83, 0x00],
        )
        .op("mov eax, 0x20 (PAE)", &[0x66, 0xb8, 0x20, 0x00, 0x00, 0x00])
        .op("mov cr4, eax", &[0x0f, 0x22, 0xe0])
        .op("mov eax, 0x1000", &[0x66, 0xb8, 0x00, 0x10, 0x00, 0x00])
        .op("mov cr3, eax", &[0x0f, 0x22, 0xd8])
        .op(
            "mov ecx, 0xc0000080 (EFER)",
            &[0x66, 0xb9, 0x80, 0x00, 0x00, 0xc0],
        )
        .op("rdmsr", &[0x0f, 0x32])
        .op("or eax, 0x100 (LME)", &[0x66, 0x0d, 0x00, 0x01, 0x00, 0x00])
        .op("wrmsr", &[0x0f, 0x30])
        .op(
            "lgdt cs:[GDT_POINTER]",
            &[0x2e, 0x66, 0x0f, 0x01, 0x16, gdt_lo, gdt_hi],
        )
        .op("mov eax, cr0", &[0x0f, 0x20, 0xc0])
        .op(
            "or eax, 0x80000001 (PG, PE)",
            &[0x66, 0x0d, 0x01, 0x00, 0x00, 0x80],
        )
        .op("mov cr0, eax", &[0x0f, 0x22, 0xc0])
        .op("jmp dword 8:CODE64", &far_jump)
}

fn long_mode() -> Piece {
    let [port_lo, port_hi] = EXIT_PORT.to_le_bytes();
    Piece::at(CODE64)
        .op("xor eax, eax", &[0x31, 0xc0])
        .op("cpuid", &[0x0f, 0xa2])
        .op("mov edi, 0x5000", &[0xbf, 0x00, 0x50, 0x00, 0x00])
        .op(
            "mov rax, 0x1122334455667788",
            &[0x48, 0xb8, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11],
        )
        .op("mov [rdi], rax", &[0x48, 0x89, 0x07])
        .op("mov rbx, [rdi]", &[0x48, 0x8b, 0x1f])
        .op("cmp rax, rbx", &[0x48, 0x39, 0xd8])
        .op("jne -2 (for ever)", &[0x75, 0xfe])
        .op("mov ecx, 10000000", &[0xb9, 0x80, 0x96, 0x98, 0x00])
        .op("dec ecx", &[0xff, 0xc9])
        .op("jnz -4 (dec ecx)", &[0x75, 0xfc])
        .op("mov dx, EXIT_PORT", &[0x66, 0xba, port_lo, port_hi])
        .op("mov al, PASS", &[0xb0, PASS])
        .op("out dx, al", &[0xee])
        .op("hlt", &[0xf4])
        .op("jmp -3 (hlt)", &[0xeb, 0xfd])
}

/// The null descriptor and one for 64-bit code: present, ring 0, execute and read, long.
fn descriptors() -> Piece {
    Piece::at(GDT)
        .op("null", &0_u64.to_le_bytes())
        .op("code", &0x0020_9a00_0000_0000_u64.to_le_bytes())
}

fn gdt_pointer() -> Piece {
    let base = (BASE + u32::from(GDT)).to_le_bytes();
    Piece::at(GDT_POINTER)
        .op("limit", &15_u16.to_le_bytes())
        .op("base", &base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_do_not_overlap_and_contain_the_reset_vector() {
        let pieces = [
            real_mode(),
            long_mode(),
            descriptors(),
            gdt_pointer(),
            reset_vector(),
        ];
        for pair in pieces.windows(2) {
            assert!(
                pair[0].at + pair[0].bytes.len() <= pair[1].at,
                "{:#x}",
                pair[1].at
            );
        }
        let image = rom();
        assert_eq!(image.len(), ROM_BYTES);
        let reset = usize::from(RESET);
        assert_eq!(image[reset..reset + 5], [0xea, 0, 0, 0, 0xf0]);
        assert_eq!(PASS_STATUS, 85);
    }
}
