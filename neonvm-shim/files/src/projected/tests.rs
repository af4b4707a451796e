use super::*;

fn files(pairs: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
    pairs
        .iter()
        .map(|(n, c)| ((*n).to_owned(), c.as_bytes().to_vec()))
        .collect()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|n| n.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn layout_is_that_of_the_kubelet() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("var/sync");
    write(
        &dir,
        &files(&[("a", "1"), ("b", "2")]),
        WallTime(1_704_164_645_000_000),
    )
    .unwrap();
    assert_eq!(
        names(&dir),
        ["..2024_01_02T03_04_05_000000.0", "..data", "a", "b"].map(|n| n.replace('T', "_"))
    );
    assert_eq!(fs::read_link(dir.join("a")).unwrap(), Path::new("..data/a"));
    assert_eq!(fs::read_to_string(dir.join("b")).unwrap(), "2");
    let mode = fs::metadata(dir.join("a")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
}

#[test]
fn new_version_replaces_the_old_as_a_whole() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    write(dir, &files(&[("a", "1"), ("b", "2")]), WallTime(1)).unwrap();
    fs::write(dir.join("stranger"), "kept").unwrap();
    write(dir, &files(&[("b", "3"), ("c", "4")]), WallTime(2)).unwrap();
    assert_eq!(read(dir).unwrap(), files(&[("b", "3"), ("c", "4")]));
    let left = names(dir);
    assert!(!left.contains(&"a".to_owned()), "{left:?}");
    assert!(left.contains(&"stranger".to_owned()), "{left:?}");
    assert_eq!(
        left.iter().filter(|n| n.starts_with("..1970")).count(),
        1,
        "{left:?}"
    );
}

#[test]
fn equal_content_is_not_written_and_a_lost_link_is_restored() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    write(dir, &files(&[("a", "1")]), WallTime(1)).unwrap();
    let before = fs::read_link(dir.join(DATA_LINK)).unwrap();
    write(dir, &files(&[("a", "1")]), WallTime(2)).unwrap();
    assert_eq!(fs::read_link(dir.join(DATA_LINK)).unwrap(), before);
    fs::remove_file(dir.join("a")).unwrap();
    write(dir, &files(&[("a", "1")]), WallTime(3)).unwrap();
    assert_eq!(fs::read_to_string(dir.join("a")).unwrap(), "1");
}

fn versions(dir: &Path) -> Vec<String> {
    let names = names(dir).into_iter();
    names.filter(|name| name.starts_with("..1970")).collect()
}

#[test]
fn failed_publication_leaves_the_old_content() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    let (old, new) = (
        files(&[("a", "1"), ("z", "1")]),
        files(&[("a", "2"), ("b", "2"), ("foo", "2")]),
    );
    write(dir, &old, WallTime(1)).unwrap();
    let before = names(dir);
    // The mount point of another disk.
    fs::create_dir(dir.join("foo")).unwrap();
    for at in 2..5 {
        let error = write(dir, &new, WallTime(at)).unwrap_err();
        assert!(error.to_string().ends_with("foo"), "{error}");
        assert_eq!(read(dir).unwrap(), old);
        assert_eq!(fs::read_to_string(dir.join("a")).unwrap(), "1");
        let left = names(dir).into_iter().filter(|name| name != "foo");
        assert_eq!(left.collect::<Vec<_>>(), before, "nothing is left over");
    }
    fs::remove_dir(dir.join("foo")).unwrap();
    write(dir, &new, WallTime(5)).unwrap();
    assert_eq!(fs::read_to_string(dir.join("foo")).unwrap(), "2");
    assert_eq!(names(dir).len(), 5, "{:?}", names(dir));
}

#[test]
fn failed_first_publication_leaves_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    fs::create_dir(dir.join("foo")).unwrap();
    write(dir, &files(&[("a", "1"), ("foo", "1")]), WallTime(1)).unwrap_err();
    assert_eq!(names(dir), ["foo"]);
}

#[test]
fn only_a_version_in_the_directory_itself_is_removed() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, other) = (temp.path().join("dir"), temp.path().join("other"));
    let absolute = other.to_str().unwrap();
    // The second is a link within the directory, the last the directory's own parent.
    for target in [absolute, "..1970_01_01.7", "../other", "other", "..", "."] {
        fs::create_dir_all(dir.join("other")).unwrap();
        fs::create_dir_all(&other).unwrap();
        for place in [&other, &dir.join("other")] {
            fs::write(place.join("precious"), "kept").unwrap();
        }
        symlink(&other, dir.join("..1970_01_01.7")).unwrap();
        symlink(target, dir.join(DATA_LINK)).unwrap();
        write(&dir, &files(&[("a", "1")]), WallTime(1)).unwrap();
        for place in [&other, &dir.join("other")] {
            let left = fs::read_to_string(place.join("precious"));
            assert_eq!(left.expect(target), "kept", "{target}");
        }
        assert_eq!(read(&dir).unwrap(), files(&[("a", "1")]), "{target}");
        fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn content_that_is_equal_but_elsewhere_is_written() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, other) = (temp.path().join("dir"), temp.path().join("other"));
    let content = files(&[("a", "1")]);
    write(&dir, &content, WallTime(1)).unwrap();
    fs::rename(dir.join(&versions(&dir)[0]), &other).unwrap();
    fs::remove_file(dir.join(DATA_LINK)).unwrap();
    symlink(&other, dir.join(DATA_LINK)).unwrap();
    write(&dir, &content, WallTime(2)).unwrap();
    fs::write(other.join("a"), "anothers").unwrap();
    assert_eq!(read(&dir).unwrap(), content);
}

#[test]
fn leftovers_of_failed_and_killed_writers_are_removed_by_the_next_write() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    let (first, second) = (files(&[("a", "1")]), files(&[("a", "2")]));
    write(dir, &first, WallTime(1)).unwrap();
    for (content, at) in [(&first, 2), (&second, 3)] {
        for left_over in [
            "..1970_01_01_00_00_00_000000.9",
            "..2024_01_02_03_04_05.123",
        ] {
            fs::create_dir(dir.join(left_over)).unwrap();
            fs::write(dir.join(left_over).join("a"), "old").unwrap();
        }
        fs::create_dir_all(dir.join("..cache")).unwrap();
        write(dir, content, WallTime(at)).unwrap();
        assert_eq!(read(dir).unwrap(), *content);
        assert_eq!(versions(dir).len(), 1, "{:?}", names(dir));
        let left = names(dir);
        assert!(!left.iter().any(|name| name.starts_with("..2024")));
        assert!(left.contains(&"..cache".to_owned()), "not ours: {left:?}");
    }
}

#[test]
fn names_and_paths_cannot_leave_the_directory() {
    let temp = tempfile::tempdir().unwrap();
    for bad in ["", ".", "..", "..data", "a/b", "..x", &"x".repeat(256)] {
        let error = write(temp.path(), &files(&[(bad, "1")]), WallTime(1)).unwrap_err();
        assert!(matches!(error, FilesError::Name(_)), "{bad:?}: {error}");
    }
    assert_eq!(names(temp.path()).len(), 0, "nothing was touched");
    for bad in ["", "/", "/a/../b", "//", "a/.."] {
        assert!(directory(temp.path(), bad).is_err(), "{bad:?}");
    }
    assert_eq!(
        directory(Path::new("/"), "//mnt/ssh").unwrap(),
        Path::new("/mnt/ssh")
    );
}
