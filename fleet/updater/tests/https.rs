//! Channels by https, from servers that are sound and from others.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use bellows_updater::shell::channel::{Channel, read_trusting};
use bellows_updater::shell::settings::Settings;
use reqwest::Url;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, ServerConnection, Stream, SupportedProtocolVersion};
use semver::Version;
use test_authority::Authority;

/// How a server answers.
struct Server {
    /// Name of its certificate.
    name: &'static str,
    versions: &'static [&'static SupportedProtocolVersion],
    /// Answer to a request for a path.
    answer: fn(&str) -> Vec<u8>,
    /// Whether the reader trusts its authority.
    is_trusted: bool,
}

const SOUND: Server = Server {
    name: "localhost",
    versions: rustls::ALL_VERSIONS,
    answer: |path| {
        body(if path.ends_with("critical") {
            "yes\n"
        } else {
            "1.2.3\n"
        })
    },
    is_trusted: true,
};

fn body(text: &str) -> Vec<u8> {
    let length = text.len();
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}").into()
}

/// Reads the channel of a server.
fn read(server: &Server) -> Channel {
    // Another test of this process may have installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let authority = Authority::new("test");
    let identity = authority.signs(server.name);
    let certificate = CertificateDer::from_pem_slice(identity.cert.as_bytes()).expect("PEM");
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("PEM");
    let config = ServerConfig::builder_with_protocol_versions(server.versions)
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key);
    let config = Arc::new(config.expect("a key for the certificate"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let answer = server.answer;
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            serve(&config, stream.expect("a caller"), answer);
        }
    });
    let settings = Settings {
        enabled: true,
        base_url: Url::parse(&format!("https://localhost:{port}/base/")).expect("a URL"),
        channel: "stable".to_owned(),
        page: None,
    };
    let pem = authority.pem.as_bytes();
    let trusted: &[&[u8]] = if server.is_trusted { &[pem] } else { &[] };
    read_trusting(&settings, trusted)
}

/// The reader breaks off in some tests, so failures end the connection and nothing else.
fn serve(config: &Arc<ServerConfig>, mut tcp: std::net::TcpStream, answer: fn(&str) -> Vec<u8>) {
    let mut tls = ServerConnection::new(Arc::clone(config)).expect("a connection");
    let mut stream = Stream::new(&mut tls, &mut tcp);
    let mut request = [0; 4096];
    let Ok(length) = stream.read(&mut request) else {
        return;
    };
    let request = String::from_utf8_lossy(&request[..length]).into_owned();
    let path = request.split(' ').nth(1).unwrap_or_default();
    let _ = stream.write_all(&answer(path));
    stream.conn.send_close_notify();
    let _ = stream.flush();
    // The reader closes first: what is unread at a close makes it a reset.
    let _ = tcp.set_read_timeout(Some(Duration::from_secs(5)));
    let _ = std::io::copy(&mut tcp, &mut std::io::sink());
}

/// Requirements: R05, R06
#[test]
fn channel_by_tls_1_2_and_1_3_is_read() {
    static OLD: [&SupportedProtocolVersion; 1] = [&TLS12];
    static NEW: [&SupportedProtocolVersion; 1] = [&TLS13];
    for versions in [&OLD, &NEW] {
        let channel = read(&Server { versions, ..SOUND });
        assert_eq!(channel.version, Ok(Version::new(1, 2, 3)));
        assert!(channel.is_critical);
    }
}

/// Requirement: R05
#[test]
fn channel_of_an_unproven_server_is_not_read() {
    for server in [
        Server {
            name: "other",
            ..SOUND
        },
        Server {
            is_trusted: false,
            ..SOUND
        },
    ] {
        let channel = read(&server);
        assert!(channel.version.is_err(), "{}", server.name);
        assert!(!channel.is_critical, "{}", server.name);
    }
}

/// Requirement: R03
#[test]
fn channel_that_answers_otherwise_names_no_version() {
    let answers: [fn(&str) -> Vec<u8>; 6] = [
        |_| b"HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n".into(),
        |_| b"HTTP/1.1 404 no\r\nContent-Length: 0\r\n\r\n".into(),
        |_| b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\n1.2".into(),
        |_| b"HTTP/1.1 302 go\r\nLocation: http://localhost/v\r\nContent-Length: 0\r\n\r\n".into(),
        |_| body(&"1".repeat(1 << 20)),
        |_| body("<html>1.2.3</html>"),
    ];
    for (number, answer) in answers.into_iter().enumerate() {
        let channel = read(&Server { answer, ..SOUND });
        assert!(channel.version.is_err(), "answer {number}");
    }
}

/// Requirement: R04
#[test]
fn mark_that_is_not_there_is_not_set() {
    let answer: fn(&str) -> Vec<u8> = |path| {
        if path == "/base/v1/stable/version" {
            return body("1.2.3");
        }
        b"HTTP/1.1 404 no\r\nContent-Length: 0\r\n\r\n".into()
    };
    let channel = read(&Server { answer, ..SOUND });
    assert_eq!(channel.version, Ok(Version::new(1, 2, 3)));
    assert!(!channel.is_critical);
}
