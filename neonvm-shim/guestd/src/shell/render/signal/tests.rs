use std::process::Command;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::signal::unix;

use super::*;

fn rights() -> Rights {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    Rights {
        user: user.as_raw(),
        group: group.as_raw(),
        mode: 0o644,
    }
}

#[tokio::test]
async fn v30_process_of_the_pid_file_is_hung_up() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("program.pid");
    let signal = Signal::Pidfile(path.clone());
    let missing = send(&signal, rights()).await.expect_err("no file");
    assert!(missing.contains("failed to read"), "{missing}");
    for text in ["", "none\n", "-5\n", "0\n", "1\n"] {
        fs::write(&path, text).expect("written");
        let error = send(&signal, rights()).await.expect_err(text);
        assert!(error.contains("has no process id"), "{text}: {error}");
    }
    // The program is this process, which takes the signal itself.
    let mut hangups = unix::signal(unix::SignalKind::hangup()).expect("a handler");
    fs::write(&path, format!("{}\n/srv/data\n", std::process::id())).expect("written");
    let stranger = Rights {
        user: rights().user + 1,
        ..rights()
    };
    let error = send(&signal, stranger).await.expect_err("another user's");
    assert!(error.contains("is not one of the unit's owner"), "{error}");
    assert_eq!(send(&signal, rights()).await, Ok(()));
    let hangup = timeout(LIMIT, hangups.recv()).await;
    assert_eq!(hangup, Ok(Some(())));
    let mut ended = Command::new("/bin/true").spawn().expect("a program");
    ended.wait().expect("it ends");
    fs::write(&path, ended.id().to_string()).expect("written");
    let error = send(&signal, rights()).await.expect_err("it has ended");
    assert!(error.contains("process"), "{error}");
}

#[tokio::test]
async fn v30_command_is_run() {
    let command =
        |script: &str| Signal::Command(["/bin/sh", "-c", script].map(str::to_owned).into());
    assert_eq!(send(&command("exit 0"), rights()).await, Ok(()));
    let failed = send(&command("echo no such program; exit 1"), rights()).await;
    assert_eq!(failed, Err("exit status: 1: no such program".to_owned()));
}

#[tokio::test]
async fn v30_address_is_posted_to() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let signal = Signal::Http(Loopback {
        address,
        path: "/-/reload".to_owned(),
    });
    let served = tokio::spawn(async move {
        let mut heads = Vec::new();
        for status in ["204 No Content", "500 Internal Server Error"] {
            let (mut stream, _) = listener.accept().await.expect("a caller");
            let mut head = vec![0; 1024];
            let read = stream.read(&mut head).await.expect("a head");
            heads.push(String::from_utf8_lossy(&head[..read]).into_owned());
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.expect("written");
        }
        heads
    });
    assert_eq!(send(&signal, rights()).await, Ok(()));
    let error = send(&signal, rights()).await.expect_err("500");
    assert!(error.contains("500"), "{error}");
    for head in served.await.expect("served") {
        assert!(head.starts_with("POST /-/reload HTTP/1.1\r\n"), "{head}");
    }
    let error = send(&signal, rights()).await.expect_err("nobody listens");
    assert!(
        error.starts_with(&format!("POST http://{address}/-/reload: ")),
        "{error}"
    );
}
