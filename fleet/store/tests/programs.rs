//! Programs are kept by their hash, and a changed file is noticed.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;

use fleet_store::Programs;

const SHA256_OF_ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

#[test]
fn program_is_kept_by_its_hash() {
    let dir = tempfile::tempdir().unwrap();
    let (program, folder) = (dir.path().join("program"), dir.path().join("kept"));
    fs::write(&program, "abc").unwrap();
    let programs = Programs::new(&folder);
    assert_eq!(programs.keep(&program).unwrap(), SHA256_OF_ABC);
    assert_eq!(programs.keep(&program).unwrap(), SHA256_OF_ABC, "again");
    assert_eq!(programs.read(SHA256_OF_ABC).unwrap(), b"abc");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing else");
    let mode = fs::metadata(&folder).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn changed_file_is_refused_and_replaced_by_the_next_copy() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    fs::write(&program, "abc").unwrap();
    let programs = Programs::new(dir.path().join("kept"));
    programs.keep(&program).unwrap();
    fs::write(programs.path(SHA256_OF_ABC), "abd").unwrap();
    let error = programs.read(SHA256_OF_ABC).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    programs.keep(&program).unwrap();
    assert_eq!(programs.read(SHA256_OF_ABC).unwrap(), b"abc");
}

#[test]
fn program_above_32_mib_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    let file = fs::File::create(&program).unwrap();
    file.set_len((32 << 20) + 1).unwrap();
    let folder = dir.path().join("kept");
    let error = Programs::new(&folder).keep(&program).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FileTooLarge);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "nothing is left");
    let missing = Programs::new(&folder).read(SHA256_OF_ABC).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}
