//! First page of a swap area, as `mkswap` writes it.

/// Bytes of a page of swap.
pub const SWAP_PAGE: u64 = 4096;
const PAGE: usize = 4096;
/// Offsets of the version, the last page's number, the label, and the magic at the end of the page.
const VERSION_AT: usize = 1024;
const LABEL_AT: usize = 1052;
const LABEL_BYTES: usize = 16;
const MAGIC: &[u8; 10] = b"SWAPSPACE2";

/// First page of a swap area of `bytes`, a whole number of pages, with a label of at most 16 bytes.
#[must_use]
pub fn swap_header(bytes: u64, label: &str) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    let last = u32::try_from(bytes / SWAP_PAGE).unwrap_or(u32::MAX) - 1;
    page[VERSION_AT..VERSION_AT + 4].copy_from_slice(&1_u32.to_le_bytes());
    page[VERSION_AT + 4..VERSION_AT + 8].copy_from_slice(&last.to_le_bytes());
    let label = &label.as_bytes()[..label.len().min(LABEL_BYTES)];
    page[LABEL_AT..LABEL_AT + label.len()].copy_from_slice(label);
    let end = page.len();
    page[end - MAGIC.len()..].copy_from_slice(MAGIC);
    page
}
