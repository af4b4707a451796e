use std::io::Cursor;

use proptest::prelude::*;

use super::*;

/// A header block.
fn block(name: &[u8], kind: u8, size: &[u8], link: &[u8]) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name);
    put(100, b"0000755\0");
    put(108, b"0001750\0");
    put(116, b"0001751\0");
    put(124, size);
    put(148, b"        ");
    put(156, &[kind]);
    put(157, link);
    put(257, b"ustar\x0000");
    sum(block)
}

fn sum(mut block: Vec<u8>) -> Vec<u8> {
    block[148..156].copy_from_slice(b"        ");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

fn entry(name: &[u8], kind: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = block(
        name,
        kind,
        format!("{:011o}\0", content.len()).as_bytes(),
        b"",
    );
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

fn read(bytes: &[u8]) -> Result<Vec<(Header, Vec<u8>)>, TarError> {
    let mut archive = Archive::new(Stream(Cursor::new(bytes)));
    let mut all = Vec::new();
    while let Some(header) = archive.entry()? {
        let mut content = Vec::new();
        archive.read_to_end(&mut content)?;
        all.push((header, content));
    }
    Ok(all)
}

/// Requirement: N46
#[test]
fn entries_of_every_kind_are_read() {
    let mut bytes = entry(b"./dir/", b'5', b"");
    bytes.extend(entry(b"dir/file", b'0', &[7; 700]));
    bytes.extend(entry(b"old/", 0, b""));
    bytes.extend(block(b"link", b'2', b"00000000000\0", b"dir/file"));
    bytes.extend(block(b"hard", b'1', b"00000000000\0", b"dir/file"));
    bytes.extend(entry(b"pipe", b'6', b""));
    bytes.extend(entry(b"null", b'3', b""));
    bytes.extend([0; 2 * BLOCK]);
    bytes.extend(b"what follows the end is nobody's");
    let all = read(&bytes).unwrap();
    let kinds: Vec<_> = all
        .iter()
        .map(|(header, _)| (header.path.as_str(), header.kind))
        .collect();
    assert_eq!(
        kinds,
        [
            ("./dir", Kind::Directory),
            ("dir/file", Kind::File),
            ("old", Kind::Directory),
            ("link", Kind::Symlink),
            ("hard", Kind::HardLink),
            ("pipe", Kind::Fifo),
            ("null", Kind::Device),
        ]
    );
    let (file, content) = &all[1];
    assert_eq!(
        (file.mode, file.uid, file.gid, content.len()),
        (0o755, 1000, 1001, 700)
    );
    assert_eq!(all[3].0.link, "dir/file");
}

/// Requirement: N46
#[test]
fn names_longer_than_a_header_come_from_extensions() {
    let long = "d/".repeat(80) + "file";
    let mut bytes = entry(b"././@LongLink", b'L', format!("{long}\0").as_bytes());
    bytes.extend(entry(b"cut", b'0', b"gnu"));
    let pax = super::super::super::oci::pax_record("path", &long);
    let uid = super::super::super::oci::pax_record("uid", "3000000");
    bytes.extend(entry(b"pax", b'g', b"10 a=b\n12"));
    bytes.extend(entry(b"pax", b'x', format!("{pax}{uid}").as_bytes()));
    bytes.extend(entry(b"cut", b'0', b"pax"));
    let mut split = block(b"file", b'0', b"00000000000\0", b"");
    split[345..355].copy_from_slice(b"a/prefix/x");
    bytes.extend(sum(split));
    let all = read(&bytes).unwrap();
    assert_eq!(
        (all[0].0.path.as_str(), all[0].1.as_slice()),
        (long.as_str(), b"gnu".as_slice())
    );
    assert_eq!(
        (all[1].0.path.as_str(), all[1].0.uid),
        (long.as_str(), 3_000_000)
    );
    assert_eq!(all[2].0.path, "a/prefix/x/file");
}

/// Requirement: N46
#[test]
fn damage_is_named_and_lengths_are_not_trusted() {
    let good = entry(b"file", b'0', b"content");
    let mut flipped = good.clone();
    flipped[3] ^= 1;
    assert!(matches!(read(&flipped), Err(TarError::Header(0))));
    assert!(matches!(read(&good[..100]), Err(TarError::Short(0))));
    assert!(matches!(read(&good[..515]), Err(TarError::Read(_))));
    let octal = block(b"f", b'0', b"9999\0\0\0\0\0\0\0\0", b"");
    assert!(matches!(read(&octal), Err(TarError::Number(0))));
    let name = block(b"\xff\xfe", b'0', b"00000000000\0", b"");
    assert!(matches!(read(&name), Err(TarError::Name(0))));
    // A length of 2^62 bytes. Reading stops where the archive ends.
    let huge = block(b"huge", b'0', b"\x80\0\0\0\x40\0\0\0\0\0\0\0", b"");
    assert!(matches!(read(&huge), Err(TarError::Read(_))));
    let extension = block(b"x", b'x', b"\x80\0\0\0\0\0\0\0\x40\0\0\0", b"");
    assert!(matches!(read(&extension), Err(TarError::Extension { bytes, .. }) if bytes == 1 << 30));
    for records in [
        &b"5 a=b\n"[..],
        b"x a=b\n",
        b"99 a=b\n",
        b"6 ab\n\n",
        b"0 a=b\n",
    ] {
        let bytes = entry(b"x", b'x', records);
        assert!(
            matches!(read(&bytes), Err(TarError::Extension { .. })),
            "{records:?}"
        );
    }
    let sparse = read(&entry(b"s", b'S', b"")).unwrap_err();
    assert!(sparse.to_string().contains("\"s\""), "{sparse}");
}

/// Requirement: N46
#[test]
fn base_256_and_blank_numbers() {
    assert_eq!(number(b"\x80\0\0\0\0\0\x01\0"), Some(256));
    assert_eq!(
        number(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
        None
    );
    assert_eq!(number(b" 17\0    "), Some(15));
    assert_eq!(number(b"\0\0\0\0\0\0\0\0"), Some(0));
    assert_eq!(number(b"18"), None);
    assert_eq!(number(b"1 7"), None);
    assert_eq!(number(b"-1"), None);
}

proptest! {
    /// Requirement: N46
    #[test]
    fn any_bytes_are_read_without_panic(
        blocks in proptest::collection::vec((any::<[u8; 4]>(), 0usize..9, proptest::collection::vec(any::<u8>(), 0..600)), 0..6),
        cut in 0usize..4096,
    ) {
        let kinds = *b"0125xLKgS";
        let mut bytes: Vec<u8> = blocks.iter().flat_map(|(name, kind, content)| entry(name, kinds[*kind], content)).collect();
        bytes.truncate(bytes.len().saturating_sub(cut));
        super::super::fuzz::container_archive(&bytes);
    }

    /// Requirement: N46
    #[test]
    fn noise_is_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
        super::super::fuzz::container_archive(&bytes);
    }
}
