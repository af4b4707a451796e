//! What a channel says when its server, its texts or its TLS are as they should not be.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fleet_release::{FetchLimits, Fetcher, ReadError, Repository, Scope, Trust};
use reqwest::Url;
use rustls::version::{TLS12, TLS13};
use test_records::{Missing, skip};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::forger::CHANNEL;
use crate::server::{Fault, FileServer};
use crate::shop::{Shop, install_provider};

/// Bounds with little patience.
fn hasty() -> FetchLimits {
    FetchLimits {
        within: Duration::from_millis(500),
        program_within: Duration::from_millis(500),
        ..FetchLimits::default()
    }
}

/// Requirement: R03
#[tokio::test]
async fn channel_that_is_down_names_no_version() {
    let shop = Shop::open().await;
    let version = shop.target("channel-stable.version");
    let version = format!("targets/{}", version.file_name().unwrap().to_str().unwrap());
    let role = format!("metadata/{}.{CHANNEL}.json", shop.version_of(CHANNEL));
    let whole = FileServer::start(&shop.folder(), |_| None).await;
    assert!(whole.read(&shop, FetchLimits::default()).await.is_ok());
    for path in [version.as_str(), role.as_str(), "metadata/timestamp.json"] {
        for fault in [
            Fault::Slow,
            Fault::Cut,
            Fault::Status(500),
            Fault::Status(404),
            Fault::Body(b"<!doctype html>".to_vec()),
            Fault::Body(Vec::new()),
        ] {
            let (path, shown) = (path.to_owned(), format!("{path} {fault:?}"));
            let server = FileServer::start(&shop.folder(), move |it| {
                (it == path).then(|| fault.clone())
            })
            .await;
            let read = server.read(&shop, hasty()).await;
            assert!(read.is_err(), "{shown}: {read:?}");
        }
    }
    let url = whole.url();
    drop(whole);
    let trust = Trust::Tuf {
        root: &shop.root(),
        verified: &shop.verified(),
    };
    let fetcher = crate::shop::fetcher();
    let refused = Repository::open(&fetcher, &url, trust, Scope::Machine).await;
    assert!(
        matches!(refused, Err(ReadError::Unavailable(_))),
        "{refused:?}"
    );
}

/// Requirement: R04
#[tokio::test]
async fn mark_that_is_down_is_not_set() {
    let shop = Shop::open().await;
    shop.publisher
        .promote("stable", "1.0.0", true)
        .await
        .unwrap();
    let digest = <sha2::Sha256 as sha2::Digest>::digest("yes\n");
    let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = format!("targets/{name}.channel-stable.critical");
    assert!(shop.folder().join(&path).exists());
    let critical = async |fault: Option<Fault>| {
        let path = path.clone();
        let faults = move |it: &str| (it == path).then(|| fault.clone()).flatten();
        let server = FileServer::start(&shop.folder(), faults).await;
        server.read(&shop, hasty()).await.unwrap().is_critical
    };
    assert!(critical(None).await);
    for fault in [
        Fault::Slow,
        Fault::Cut,
        Fault::Status(500),
        Fault::Status(404),
        Fault::Endless,
        Fault::Body(b"YES\n".to_vec()),
    ] {
        assert!(!critical(Some(fault.clone())).await, "{fault:?}");
    }
}

/// Requirement: R01
#[tokio::test]
async fn signed_text_that_is_no_version_is_no_version() {
    for text in [
        "1.2\n",
        "v1.2.3\n",
        "1.2.3+x\n",
        "1.0.0\n1.1.0\n",
        "<html>1.0.0</html>",
        "",
        "1.0.0\0",
    ] {
        let shop = Shop::open().await;
        let digest = <sha2::Sha256 as sha2::Digest>::digest(text);
        let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let file = format!("targets/{name}.channel-stable.version");
        fs::write(shop.folder().join(file), text).unwrap();
        shop.forge(CHANNEL, CHANNEL, |targets| {
            let name = tough::TargetName::new("channel-stable.version").unwrap();
            let target = targets.targets.get_mut(&name).unwrap();
            target.length = text.len() as u64;
            target.hashes.sha256 = digest.to_vec().into();
        });
        let read = shop.version().await;
        assert!(
            matches!(read, Err(ReadError::Invalid(_))),
            "{text:?}: {read:?}"
        );
    }
}

/// Texts of a folder without signatures are bounded too.
///
/// Requirement: R01
#[tokio::test]
async fn unsigned_text_is_one_short_line() {
    let shop = Shop::open().await;
    let path = shop.folder().join("v1/stable/version");
    let read = async || {
        let fetcher = crate::shop::fetcher();
        let url = shop.url();
        let local = Repository::open(&fetcher, &url, Trust::Local, Scope::Machine).await;
        local
            .unwrap()
            .channel("stable")
            .await
            .map(|it| it.version.to_string())
    };
    assert_eq!(read().await.as_deref(), Ok("1.0.0"));
    for bad in [
        "1.2",
        "1.0.0\n1.1.0",
        "1.0.0\0",
        "",
        "<html>",
        &"1".repeat(1 << 20),
    ] {
        fs::write(&path, bad).unwrap();
        assert!(read().await.is_err(), "{:?}", &bad[..bad.len().min(20)]);
    }
    fs::remove_file(&path).unwrap();
    let gone = read().await;
    assert!(matches!(gone, Err(ReadError::Unavailable(_))), "{gone:?}");
}

/// Requirement: R05
#[tokio::test]
async fn server_must_prove_its_name_by_tls_1_2_or_newer() {
    let shop = Shop::open().await;
    let folder = shop.folder();
    for version in [&TLS12, &TLS13] {
        let server = FileServer::with(&folder, |_| None, "localhost", &[version]).await;
        let read = server.read(&shop, FetchLimits::default()).await;
        assert!(read.is_ok(), "{version:?}: {read:?}");
    }
    let other = FileServer::with(&folder, |_| None, "other", rustls::ALL_VERSIONS).await;
    let read = other.read(&shop, FetchLimits::default()).await;
    assert!(matches!(read, Err(ReadError::Unavailable(_))), "{read:?}");
    let server = FileServer::start(&folder, |_| None).await;
    let trust = Trust::Tuf {
        root: &shop.root(),
        verified: &shop.verified(),
    };
    let open = async |url: &Url, fetcher: &Fetcher| {
        Repository::open(fetcher, url, trust, Scope::Machine).await
    };
    let stranger = open(&server.url(), &crate::shop::fetcher()).await;
    assert!(
        matches!(stranger, Err(ReadError::Unavailable(_))),
        "{stranger:?}"
    );
    let fetcher = server.fetcher(FetchLimits::default());
    let plain = Url::parse(&server.url().as_str().replace("https:", "http:")).unwrap();
    assert!(open(&plain, &fetcher).await.is_err(), "http");
    assert!(open(&server.url(), &fetcher).await.is_ok());
}

/// The server agrees to TLS 1.1. The client must break off before it sends its request.
///
/// Requirement: R05
#[tokio::test]
async fn server_of_tls_1_1_is_refused() {
    install_provider();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = [0; 5];
        stream.read_exact(&mut head).await.unwrap();
        let mut hello = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
        stream.read_exact(&mut hello).await.unwrap();
        // ServerHello: version 3.2, 32 random bytes, no session, a suite, no compression.
        let mut reply = vec![22, 3, 2, 0, 42, 2, 0, 0, 38, 3, 2];
        reply.extend([7; 32]);
        reply.extend([0, 0xc0, 0x2f, 0]);
        stream.write_all(&reply).await.unwrap();
        let mut alert = Vec::new();
        stream.read_to_end(&mut alert).await.unwrap();
        alert
    });
    let shop = Shop::open().await;
    let trust = Trust::Tuf {
        root: &shop.root(),
        verified: &shop.verified(),
    };
    let url = Url::parse(&format!("https://localhost:{port}/")).unwrap();
    let fetcher = crate::shop::fetcher();
    let read = Repository::open(&fetcher, &url, trust, Scope::Machine).await;
    assert!(matches!(read, Err(ReadError::Unavailable(_))), "{read:?}");
    let alert = server.await.unwrap();
    // A fatal alert about the version.
    assert_eq!((alert[0], &alert[5..7]), (21, &[2, 70][..]), "{alert:?}");
}

/// A common file server, put behind TLS by its own library.
const PYTHON_SERVER: &str = "
import http.server, os, ssl, sys
os.chdir(sys.argv[1])
server = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2], sys.argv[3])
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
";

/// Requirement: R06
#[tokio::test(flavor = "multi_thread")]
async fn plain_file_server_and_folder_say_the_same() {
    const NAME: &str = "plain_file_server_and_folder_say_the_same";
    let shop = Shop::open().await;
    shop.publisher
        .promote("stable", "1.1.0", true)
        .await
        .unwrap();
    let of_file = shop.read().await.unwrap();
    assert!(of_file.is_critical);
    let authority = test_authority::Authority::new("test");
    let certificates = tempfile::tempdir().unwrap();
    let (cert, key) = authority
        .signs("localhost")
        .put(certificates.path(), "server");
    let python = Command::new("python3")
        .args(["-c", PYTHON_SERVER])
        .args([&shop.folder(), &cert, &key])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut python) = python else {
        return skip(NAME, Missing::Tool, "python3: apt-get install python3");
    };
    let mut port = String::new();
    let mut output = std::io::BufReader::new(python.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut port).unwrap();
    let url = Url::parse(&format!("https://localhost:{}/", port.trim())).unwrap();
    let fetcher = Fetcher::new(FetchLimits::default(), &[authority.pem.as_bytes()]).unwrap();
    let trust = Trust::Tuf {
        root: &shop.root(),
        verified: &shop.verified(),
    };
    let begun = Instant::now();
    let read = Repository::open(&fetcher, &url, trust, Scope::Machine).await;
    let read = match read {
        Ok(repository) => repository.channel("stable").await,
        Err(error) => Err(error),
    };
    python.kill().unwrap();
    python.wait().unwrap();
    assert_eq!(read, Ok(of_file), "after {:?}", begun.elapsed());
}
