use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};

use super::*;

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A user that does not run this test.
fn other() -> u32 {
    me() + 65_532
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("is there").mode() & 0o7777
}

#[test]
fn new_folder_belongs_to_its_user_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("agent");
    prepare(&path, me()).expect("made");
    assert_eq!(
        (mode(&path), fs::metadata(&path).expect("is there").uid()),
        (0o700, me())
    );
    fs::write(path.join("events"), "").expect("written");
    prepare(&path, me()).expect("nothing to do");
    assert!(path.join("events").exists());
}

/// As kubelet makes it for a volume `DirectoryOrCreate`: by root, and open to readers.
#[test]
fn empty_folder_of_root_is_given_to_the_user() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("agent");
    fs::create_dir(&path).expect("made");
    fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("set");
    fs::create_dir(path.join(LOST_AND_FOUND)).expect("made");
    let given = prepare(&path, other());
    assert_eq!(mode(&path), 0o700);
    if me() != 0 {
        let error = crate::chain(&given.expect_err("it takes a capability"));
        assert!(
            error.starts_with("failed to change the owner of /"),
            "{error}"
        );
        return;
    }
    given.expect("given");
    let found = fs::metadata(&path).expect("is there");
    assert_eq!((found.uid(), found.gid()), (other(), other()));
    prepare(&path, other()).expect("nothing to do");
}

#[test]
fn folder_in_use_for_something_else_is_left_as_it_is() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("etc");
    fs::create_dir(&path).expect("made");
    fs::write(path.join("passwd"), "").expect("written");
    let before = (mode(&path), fs::metadata(&path).expect("is there").uid());
    let error = prepare(&path, other()).expect_err("it holds something");
    assert!(
        matches!(&error, PrepareError::InUse { name, .. } if name == "passwd"),
        "{error}"
    );
    assert_eq!(
        (mode(&path), fs::metadata(&path).expect("is there").uid()),
        before
    );
}

#[test]
fn folder_of_a_third_user_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let third = me() + 1234;
    let path = if me() == 0 {
        chown(dir.path(), Some(third), Some(third)).expect("changed");
        dir.path()
    } else {
        Path::new("/")
    };
    let error = prepare(path, other()).expect_err("it is another's");
    assert!(matches!(error, PrepareError::Foreign { .. }), "{error}");
}

#[test]
fn link_and_file_in_its_place_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let (target, link, file) = (
        dir.path().join("target"),
        dir.path().join("link"),
        dir.path().join("file"),
    );
    fs::create_dir(&target).expect("made");
    symlink(&target, &link).expect("made");
    fs::write(&file, "").expect("written");
    for path in [&link, &file, &dir.path().join("none/agent")] {
        let error = prepare(path, other()).expect_err("it is no folder");
        assert!(matches!(error, PrepareError::Io { .. }), "{error}");
    }
    assert_eq!(fs::metadata(&target).expect("is there").uid(), me());
}

#[test]
fn folder_that_others_may_write_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    fs::set_permissions(dir.path(), Permissions::from_mode(0o770)).expect("set");
    let error = prepare(dir.path(), me()).expect_err("others may write it");
    assert!(
        error.to_string().contains("(mode 0770): chmod 0700"),
        "{error}"
    );
    fs::set_permissions(dir.path(), Permissions::from_mode(0o750)).expect("set");
    prepare(dir.path(), me()).expect("files in it are private");
}

#[tokio::test(start_paused = true)]
async fn one_process_writes_a_folder_and_the_next_waits_for_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("events");
    let first = lock(&folder).expect("is free");
    assert_eq!(mode(&folder), 0o700);
    let patience = Duration::from_secs(30);
    let error = lock_within(&folder, patience).await.expect_err("is held");
    assert!(matches!(error, LockError::Locked(_)), "{error}");
    let waiting = lock_within(&folder, patience);
    let ended = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        drop(first);
    };
    let (next, ()) = tokio::join!(waiting, ended);
    next.expect("is free again");
}
