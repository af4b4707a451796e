use super::*;
use proptest::prelude::*;

fn files(pairs: &[(&str, &[u8])]) -> BTreeMap<String, Vec<u8>> {
    let own = pairs.iter().map(|(n, c)| ((*n).to_owned(), c.to_vec()));
    own.collect()
}

fn number(bytes: &[u8]) -> usize {
    let four = [bytes[0], bytes[1], bytes[2], bytes[3]];
    usize::try_from(u32::from_le_bytes(four)).unwrap()
}

/// Rock Ridge fields in these bytes: signature and body.
fn fields(mut bytes: &[u8]) -> Vec<(&[u8], &[u8])> {
    let mut all = Vec::new();
    while bytes.len() >= 4 && bytes[2] >= 4 {
        let (field, rest) = bytes.split_at(usize::from(bytes[2]));
        all.push((&field[..2], &field[4..]));
        bytes = rest;
    }
    all
}

/// An independent reader of the format: label and files, as a system with Rock Ridge sees them.
fn read(image: &[u8]) -> (String, BTreeMap<String, Vec<u8>>) {
    let volume = &image[16 * SECTOR..17 * SECTOR];
    assert_eq!(&volume[..7], b"\x01CD001\x01");
    assert_eq!(
        number(&volume[80..]) * SECTOR,
        image.len(),
        "size of the volume"
    );
    let label = String::from_utf8(volume[40..72].to_vec()).unwrap();
    let (at, length) = (number(&volume[158..]) * SECTOR, number(&volume[166..]));
    let mut files = BTreeMap::new();
    let mut seen = 0;
    for sector in image[at..at + length].chunks(SECTOR) {
        let mut rest = sector;
        while rest.first().is_some_and(|length| *length > 0) {
            let (entry, next) = rest.split_at(usize::from(rest[0]));
            rest = next;
            seen += 1;
            let name = usize::from(entry[32]);
            let extra = &entry[(33 + name).next_multiple_of(2)..];
            let mut own = fields(extra);
            if let Some((_, to)) = own.iter().find(|(mark, _)| *mark == b"CE") {
                let (block, offset, length) = (number(to), number(&to[8..]), number(&to[16..]));
                assert!(
                    offset + length <= SECTOR,
                    "Linux reads on within one sector"
                );
                own.extend(fields(&image[block * SECTOR + offset..][..length]));
            }
            if seen <= 2 {
                continue;
            }
            let parts = own.iter().filter(|(mark, _)| *mark == b"NM");
            let name = parts.flat_map(|(_, body)| body[1..].to_vec()).collect();
            let content = &image[number(&entry[2..]) * SECTOR..][..number(&entry[10..])];
            files.insert(String::from_utf8(name).unwrap(), content.to_vec());
        }
    }
    (label.trim_end().to_owned(), files)
}

#[test]
fn volume_is_the_same_for_the_same_files() {
    let given = files(&[("authorized_keys", b"ssh-ed25519 AAAA\n"), ("empty", b"")]);
    let image = iso("vmruntime", &given, &[]).unwrap();
    assert_eq!(image, iso("vmruntime", &given, &[]).unwrap());
    assert_eq!(read(&image), ("vmruntime".to_owned(), given));
}

#[test]
fn invalid_names_and_labels_are_refused() {
    for bad in ["", ".", "..", "a/b", "a\0", &"x".repeat(256)] {
        let error = iso("x", &files(&[(bad, b"")]), &[]).unwrap_err();
        assert!(matches!(error, IsoError::Name(_)), "{bad:?}: {error}");
    }
    for bad in ["", &"x".repeat(33)] {
        assert!(matches!(
            iso(bad, &BTreeMap::new(), &[]),
            Err(IsoError::Label(_))
        ));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_file_is_read_back(
        given in proptest::collection::btree_map("[a-zA-Z0-9_é-]{1,120}", proptest::collection::vec(any::<u8>(), 0..5000), 0..40),
    ) {
        let (label, found) = read(&iso("some-label", &given, &[]).unwrap());
        prop_assert_eq!(label, "some-label");
        prop_assert_eq!(found, given);
    }
}
