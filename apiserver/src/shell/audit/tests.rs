use super::*;

fn log(path: &Path) -> (AuditLog, AuditThread) {
    AuditLog::open(path).expect("a log")
}

/// Ends one call per number, each with the number as its status.
fn call(log: &AuditLog, codes: std::ops::Range<u16>) {
    for code in codes {
        let request = Request::new(Body::empty());
        let mut audited = log.begin(&request, true).expect("a line");
        audited.code = Some(code);
    }
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("a file");
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("JSON lines")
}

fn codes(path: &Path) -> Vec<Value> {
    let codes = lines(path).into_iter();
    codes
        .map(|line| line["responseStatus"]["code"].clone())
        .collect()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("a file").permissions().mode() & 0o777
}

/// Requirement: B49
#[test]
fn audit_log_appends_private_whole_lines() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("audit");
    fs::write(&path, "{\"a\":1}\n{\"b").expect("written");
    fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("a mode");
    let (first, thread) = log(&path);
    call(&first, 200..203);
    drop(first);
    thread.join();
    assert_eq!(lines(&path).len(), 4, "the torn line is cut");
    assert_eq!(mode(&path), 0o600);

    let (second, thread) = log(&path);
    call(&second, 203..204);
    fs::rename(&path, folder.path().join("moved")).expect("moved");
    // It may still be written to the moved file.
    call(&second, 204..205);
    drop(second);
    thread.join();
    let (second, thread) = log(&path);
    call(&second, 205..206);
    drop(second);
    thread.join();
    let all = [codes(&folder.path().join("moved")), codes(&path)].concat();
    assert_eq!(all[1..], [200, 201, 202, 203, 204, 205].map(Value::from));
    assert_eq!(mode(&path), 0o600);
}

/// Requirement: B49
#[test]
fn audit_log_that_is_too_long_becomes_the_older_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("audit");
    let older = folder.path().join("audit.1");
    fs::write(&older, "older\n").expect("written");
    let file = File::create(&path).expect("a file");
    file.set_len(MOST_BYTES - 1).expect("a length");
    (&file).seek(SeekFrom::End(0)).expect("the end");
    (&file).write_all(b"\n").expect("a line");
    let (log, thread) = log(&path);
    call(&log, 200..202);
    drop(log);
    thread.join();
    assert_eq!(codes(&path), [200, 201].map(Value::from));
    assert_eq!(fs::metadata(&older).expect("a file").len(), MOST_BYTES);
}

/// A disk that takes no lines holds no call, and what it cost is said.
///
/// Requirement: B49
#[test]
fn audit_log_on_a_full_disk_counts_what_it_loses() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("audit");
    std::os::unix::fs::symlink("/dev/full", &path).expect("a link");
    let (log, thread) = log(&path);
    call(&log, 200..300);
    while log.lost.load(Ordering::Relaxed) == 0 {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    fs::remove_file(&path).expect("removed");
    while !path.exists() {
        // The writer may still be busy with the lines before.
        call(&log, 200..201);
        std::thread::park_timeout(Duration::from_millis(1));
    }
    call(&log, 201..202);
    drop(log);
    thread.join();
    let lines = lines(&path);
    let lost = lines[0]["annotations"][LINES_LOST].as_str();
    let lost: u64 = lost.expect("a count").parse().expect("a number");
    assert!(
        lost > 0 && lost >= 100 - u64::try_from(lines.len()).unwrap_or(0),
        "{lost}"
    );
    let told = lines[1..]
        .iter()
        .all(|line| line.get("annotations").is_none());
    assert!(told, "the count is told once");
    assert_eq!(codes(&path).last(), Some(&Value::from(201)));
}

/// Requirement: B49
#[test]
fn callers_without_the_token_do_not_fill_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("audit");
    let (log, thread) = log(&path);
    let request = Request::new(Body::empty());
    let admitted = (0..1000).filter(|_| log.begin(&request, false).is_some());
    assert_eq!(admitted.count(), usize::try_from(STRANGERS).expect("few"));
    call(&log, 200..201);
    drop(log);
    thread.join();
    let lines = lines(&path);
    let told = lines
        .iter()
        .filter_map(|line| line["annotations"][LINES_LOST].as_str());
    let lost: u64 = told
        .map(|lost| lost.parse::<u64>().expect("a number"))
        .sum();
    assert_eq!(lines.len() + usize::try_from(lost).expect("few"), 1001);
}
