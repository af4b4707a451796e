//! Reads the socket options of a client from the kernel.

use std::net::{SocketAddr, TcpStream};

use procfs::process::{FDTarget, Process};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

/// Duplicates of this process's sockets that are connected to `server`.
fn sockets_to(server: SocketAddr) -> Vec<TcpStream> {
    let inodes: Vec<u64> = procfs::net::tcp()
        .expect("the kernel lists connections")
        .into_iter()
        .filter(|entry| entry.remote_address == server)
        .map(|entry| entry.inode)
        .collect();
    let this = Pid::from_raw(std::process::id().cast_signed()).expect("is a process");
    let this = rustix::process::pidfd_open(this, PidfdFlags::empty()).expect("opens itself");
    let files = Process::myself().and_then(|process| process.fd());
    files
        .expect("the kernel lists descriptors")
        .flatten()
        .filter(|file| matches!(file.target, FDTarget::Socket(inode) if inodes.contains(&inode)))
        .map(|file| rustix::process::pidfd_getfd(&this, file.fd, PidfdGetfdFlags::empty()))
        .map(|copy| TcpStream::from(copy.expect("copies a descriptor")))
        .collect()
}

/// Answers every request with a server's version.
async fn answer(listener: TcpListener) {
    const VERSION: &str = r#"{"major":"1","minor":"34","gitVersion":"v1.34.0","gitCommit":"",
        "gitTreeState":"","buildDate":"","goVersion":"","compiler":"","platform":""}"#;
    let (mut stream, _) = listener.accept().await.expect("takes a connection");
    let mut request = [0; 4096];
    while stream.read(&mut request).await.expect("reads") > 0 {
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{VERSION}",
            VERSION.len()
        );
        stream.write_all(answer.as_bytes()).await.expect("writes");
    }
}

#[tokio::test]
async fn sockets_to_the_api_server_send_small_segments_at_once() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
    let server = listener.local_addr().expect("has an address");
    tokio::spawn(answer(listener));
    let url = format!("http://{server}").parse().expect("is a URL");
    let client = connect(Config::new(url)).expect("makes a client");
    let version = client.apiserver_version().await.expect("answers");
    assert_eq!(version.git_version, "v1.34.0");
    let sockets = sockets_to(server);
    assert_eq!(sockets.len(), 1, "{sockets:?}");
    assert!(sockets[0].nodelay().expect("says it"), "Nagle is on");
}

#[tokio::test]
async fn configuration_with_a_proxy_is_refused() {
    let mut config = Config::new("http://127.0.0.1:1".parse().expect("is a URL"));
    config.proxy_url = Some("http://127.0.0.1:2".parse().expect("is a URL"));
    let refused = connect(config).map(|_| ()).expect_err("has no proxies");
    assert!(refused.to_string().contains("127.0.0.1:2"), "{refused}");
}
